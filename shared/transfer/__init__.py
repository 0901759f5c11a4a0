"""Sessions on the move and at rest: export, check and import of a session, archives of old records, retention.

The line format is in ``lines``, what a file must say in ``reading``, the ports in ``port``, one operation a module beside them.
"""
