"""The torture's view of the database: read past every port, straight from the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shared.database.pool import Database, Row
from shared.database.statements import load_statements

_SQL: Final = load_statements(Path(__file__).with_name("queries.sql"))


class PostgresTables:
    """Reads the tables. Every method raises ``StoreUnavailable`` while the database is away."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def read(self, name: str) -> list[Row]:
        """Run one of the statements of ``queries.sql`` and return its rows."""
        return await self._db.read(f"torture.{name}", _SQL[name], {})
