"""Bring a database to this code's schema: Alembic under an advisory lock (OPS-05)."""

from __future__ import annotations

from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from shared.database.schema import COMPATIBLE_FROM, VERSION, require_compatible
from shared.domain.errors import ConfigError, SchemaOutOfRange, StoreUnavailable

MIGRATIONS = Path(__file__).with_name("migrations")
#: "turnkeep" as a number: concurrent migrations wait for each other (SES-31).
ADVISORY_LOCK = 0x7475726E6B656570


def migrate(database_url: str) -> int:
    """Migrate to the newest schema and return its version. Idempotent; safe to run from several processes at once.

    Raises ``SchemaOutOfRange`` before any write when the database is newer than this code.
    """
    with _connect(database_url) as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": ADVISORY_LOCK})
        connection.commit()
        try:
            _refuse_newer(connection)
            command.upgrade(_config(connection), "head")
            connection.execute(
                text(
                    "INSERT INTO schema (version, compatible_from) VALUES (:v, :c)"
                    " ON CONFLICT (one_row) DO UPDATE SET version = excluded.version,"
                    " compatible_from = excluded.compatible_from"
                ),
                {"v": VERSION, "c": COMPATIBLE_FROM},
            )
            connection.commit()
        finally:
            connection.rollback()
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": ADVISORY_LOCK})
            connection.commit()
    return VERSION


def check(database_url: str) -> int:
    """Return the database's schema version; raise ``SchemaOutOfRange`` if this code cannot run on it or it is behind."""
    with _connect(database_url) as connection:
        row = _read_version(connection)
        require_compatible(row)
        script = ScriptDirectory.from_config(_config(connection))
        current = MigrationContext.configure(connection).get_current_heads()
        if set(current) != set(script.get_heads()):
            raise SchemaOutOfRange("migrations are pending; run `turnkeeper migrate`", current=list(current))
        assert row is not None
        return row["version"]


def _connect(database_url: str) -> Connection:
    if not database_url:
        raise ConfigError("DATABASE_URL is not set", field="DATABASE_URL")
    url = make_url(database_url).set(drivername="postgresql+psycopg")
    try:
        return create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": 5}).connect()
    except OperationalError as error:
        raise StoreUnavailable("the database cannot be reached") from error


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config


def _read_version(connection: Connection) -> dict[str, int] | None:
    if connection.execute(text("SELECT to_regclass('schema') IS NULL")).scalar_one():
        return None
    row = connection.execute(text("SELECT version, compatible_from FROM schema")).mappings().first()
    return None if row is None else {"version": row["version"], "compatible_from": row["compatible_from"]}


def _refuse_newer(connection: Connection) -> None:
    row = _read_version(connection)
    if row is not None and row["version"] > VERSION:
        raise SchemaOutOfRange(
            f"the database is at schema {row['version']}, newer than this code's {VERSION}",
            version=row["version"],
            code_version=VERSION,
        )


def has_pgvector(database_url: str) -> bool:
    """Say whether the server offers the ``vector`` extension (the semantic index needs it, nothing else does)."""
    with psycopg.connect(database_url, connect_timeout=5) as connection:
        row = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone()
    return row is not None
