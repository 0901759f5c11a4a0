"""Alembic migrations. SQL functions are versioned by name; a release expands, the next one contracts."""
