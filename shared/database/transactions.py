"""A transaction of several statements, for what one statement cannot hold: a host's own writes beside ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from shared.database.statements import Statement
from shared.database.translate import translated
from shared.domain.errors import StoreUnavailable

Row = dict[str, Any]


class Transaction:
    """An open transaction. ``run`` sends ours, ``execute`` a host's; what they raise is translated, and undoes it all."""

    def __init__(self, connection: AsyncConnection[Row]) -> None:
        self._connection = connection
        self.statements = 0
        self.rows = 0

    async def run(self, statement: Statement, params: Mapping[str, Any]) -> list[Row]:
        """Send a named statement and return its rows."""
        return await self._send(statement.name, statement.text, params)

    async def execute(
        self, statement: str, params: Mapping[str, Any] | Sequence[Any] = ()
    ) -> Sequence[Mapping[str, Any]]:
        """Send a host's statement and return its rows."""
        return await self._send("host", statement, params)

    async def _send(self, name: str, text: str, params: Mapping[str, Any] | Sequence[Any]) -> list[Row]:
        with translated(name):
            cursor = await self._connection.execute(text.encode(), params or None)
            rows = await cursor.fetchall() if cursor.description else []
        self.statements += 1
        self.rows += len(rows)
        return rows


class _Undone(Exception):
    """Carries what the block raised past the translation: it is the caller's, not the driver's."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


@asynccontextmanager
async def transaction(
    pool: AsyncConnectionPool[AsyncConnection[Row]], unit: str
) -> AsyncIterator[Transaction]:
    """Lend a transaction of a connection of the pool: committed after the block, undone when that raises.

    Raises ``StoreUnavailable`` when the outcome of the commit is unknown, and what the block raised as it is.
    """
    try:
        with translated(unit):
            async with AsyncExitStack() as stack:
                opened = Transaction(await _begin(pool, stack, unit))
                try:
                    yield opened
                except Exception as error:
                    raise _Undone(error) from error
    except _Undone as undone:
        raise undone.error from undone.error.__cause__


async def _begin(
    pool: AsyncConnectionPool[AsyncConnection[Row]], stack: AsyncExitStack, unit: str
) -> AsyncConnection[Row]:
    """Begin on a connection that lives: a restart leaves a pool of dead ones, which are then replaced once."""
    try:
        return await _begin_once(pool, stack, unit)
    except StoreUnavailable:
        with translated(unit):
            await pool.check()
        return await _begin_once(pool, stack, unit)


async def _begin_once(
    pool: AsyncConnectionPool[AsyncConnection[Row]], stack: AsyncExitStack, unit: str
) -> AsyncConnection[Row]:
    with translated(unit):
        async with AsyncExitStack() as begun:
            connection = await begun.enter_async_context(pool.connection())
            await begun.enter_async_context(connection.transaction())
            await stack.enter_async_context(begun.pop_all())
    return connection
