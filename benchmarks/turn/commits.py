"""The floor of any durable design: plain commits by psycopg and nothing else, on as many connections as the product has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from benchmarks.harness.arms import Arm
from benchmarks.harness.load import closed_loop
from benchmarks.harness.site import Site
from shared.database.statements import load_statements

_SQL: Final = load_statements(Path(__file__).with_name("queries.sql"))
DATABASE: Final = "plain"
CLIENTS: Final = 32
#: The pools of one producer and one worker.
CONNECTIONS: Final = 20
#: Of each commit: about what a commit of a turn writes.
ROWS: Final = 3
ROW_BYTES: Final = 400


@dataclass(frozen=True, slots=True)
class PlainCommits:
    """Statements of one commit each, ``ROWS`` rows in a table without anything else, in a database of their own."""

    pool: AsyncConnectionPool[AsyncConnection[Any]]

    @classmethod
    async def open(cls, site: Site) -> Self:
        """Make the database and open the pool."""
        url = site.servers.create_database(DATABASE)
        pool: AsyncConnectionPool[AsyncConnection[Any]] = AsyncConnectionPool(
            url, min_size=CONNECTIONS, max_size=CONNECTIONS, open=False, kwargs={"autocommit": True}
        )
        await pool.open(wait=True)
        async with pool.connection() as connection:
            await connection.execute(_SQL["create"].text)
        return cls(pool)

    def arm(self, share: float) -> Arm:
        """Return the arm."""
        return Arm("plain commits", self._measure, share)

    async def close(self) -> None:
        """Close the pool."""
        await self.pool.close()

    async def _measure(self, seconds: float) -> Mapping[str, float]:
        load = await closed_loop([self._commit] * CLIENTS, seconds)
        return {"plain_commits_per_s": load.per_s}

    async def _commit(self) -> None:
        async with self.pool.connection() as connection:
            await connection.execute(_SQL["insert"].text, {"about": "x" * ROW_BYTES, "rows": ROWS})
