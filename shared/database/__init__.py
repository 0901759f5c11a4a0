"""Postgres: the connection pool of hot paths, named statements, translated errors, migrations, embedded servers.

Reading order: :mod:`shared.database.statements` (SQL files), :mod:`shared.database.pool` (how a statement is sent and
counted), :mod:`shared.database.translate` (driver errors → ours), :mod:`shared.database.migrate` (the schema's range).
"""
