"""One file a schema version; its SQL lies in ``../sql/<number>/``."""
