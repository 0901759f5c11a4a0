"""How statements reach Postgres on hot paths: a bounded psycopg pool of autocommit connections.

A rule that branches under a lock is one SQL function, so a unit of work is one statement: one round trip and one commit
(decision 0002). Nothing is set on the database session, so a transaction pooler may stand in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from shared.database.arrays import with_array_texts
from shared.database.counters import WorkCounters
from shared.database.schema import require_compatible
from shared.database.statements import Statement, load_statements
from shared.database.transactions import Transaction, transaction
from shared.database.translate import translated
from shared.domain.errors import StoreUnavailable

Row = dict[str, Any]
Params = Mapping[str, Any]

_SQL = load_statements(Path(__file__).with_name("queries.sql"))
CONNECT_TIMEOUT_S = 5
#: The pool tries again and again with pauses that double: after an outage it would go on waiting for about as long as the
#: outage was. It gives up this soon instead, and the next one who asks for a connection makes it try at once.
RECONNECT_S: Final = 2.0
#: A server that is gone without a word is noticed within about ten seconds, not after the system's quarter of an hour:
#: until then a statement would wait, and with it the renewals of every lease of the process.
SILENCE: Final = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class Database:
    """A pool of connections to one database. Owned by the process's root; ``open`` before use, ``close`` after.

    Every call may raise ``StoreBusy`` (nothing was stored), ``StoreUnavailable`` (for a write: the outcome is
    unknown) or ``StoreDefect``. Each new connection checks that the schema's range holds this code (core 11).
    """

    def __init__(
        self,
        url: str,
        *,
        connections: int,
        wait_s: float = 2.0,
        prepared: bool = True,
        counters: WorkCounters | None = None,
        name: str = "turnkeeper",
    ) -> None:
        self.counters = counters if counters is not None else WorkCounters()
        self.connections_max = connections
        self._url = url
        self._prepared = prepared
        self._wait_s = wait_s
        self._pool: AsyncConnectionPool[AsyncConnection[Row]] = AsyncConnectionPool(
            url,
            min_size=min(2, connections),
            max_size=connections,
            timeout=wait_s,
            reconnect_timeout=RECONNECT_S,
            open=False,
            name=name,
            configure=self._configure,
            kwargs={
                "autocommit": True,
                "row_factory": dict_row,
                "connect_timeout": CONNECT_TIMEOUT_S,
                "application_name": name,
                **SILENCE,
            },
        )

    async def open(self, *, wait_s: float = 10.0) -> None:
        """Connect. Raises ``SchemaOutOfRange`` before any write, ``StoreUnavailable`` after ``wait_s`` seconds."""
        with translated("connect"):
            probe = await self._connect_once(wait_s)
        await probe.close()
        with translated("connect"):
            await self._pool.open(wait=True, timeout=wait_s)

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close()

    async def call(
        self, unit: str, statement: Statement, params: Params, *, repeatable: bool = False
    ) -> list[Row]:
        """Send one statement, its own transaction, and return its rows.

        ``repeatable`` says that sending it again is safe (it is a read, or carries its own identity): a connection that
        turns out dead is then replaced and the statement sent once more.
        """
        return await self._call(unit, statement, params, commits=1, repeatable=repeatable)

    async def read(self, unit: str, statement: Statement, params: Params) -> list[Row]:
        """Send one statement that writes nothing and return its rows; like a repeatable ``call``, but no commit."""
        return await self._call(unit, statement, params, commits=0, repeatable=True)

    async def _call(
        self, unit: str, statement: Statement, params: Params, *, commits: int, repeatable: bool
    ) -> list[Row]:
        try:
            rows = await self._send(statement, params)
        except StoreUnavailable:
            if not repeatable:
                raise
            # A restart leaves a pool of dead connections: replace them all, then try once more.
            with translated(statement.name):
                await self._pool.check()
            rows = await self._send(statement, params)
        self.counters.add(unit, statements=1, round_trips=1, commits=commits, rows=len(rows))
        return rows

    async def _send(self, statement: Statement, params: Params) -> list[Row]:
        # By hand: the pool's own context manager also commits, which on an autocommit connection is a look at nothing.
        with translated(statement.name):
            connection = await self._pool.getconn()
            try:
                cursor = await connection.execute(statement.text, with_array_texts(params))
                return await cursor.fetchall() if cursor.rownumber is not None else []
            finally:
                await self._pool.putconn(connection)

    @asynccontextmanager
    async def transaction(self, unit: str) -> AsyncIterator[Transaction]:
        """Lend a transaction of several statements: committed after the block, undone when that raises.

        Its connection is taken for as long as the block runs. Raises ``StoreUnavailable`` when the outcome of the commit
        is unknown, and what the block raised as it is.
        """
        async with transaction(self._pool, unit) as opened:
            yield opened
        sent = opened.statements + 2
        self.counters.add(unit, statements=sent, round_trips=sent, commits=1, rows=opened.rows)

    @asynccontextmanager
    async def connection(self, unit: str) -> AsyncIterator[AsyncConnection[Row]]:
        """Lend a connection to a cold path (a read in pages, a test); what it sends is not counted."""
        with translated(unit):
            async with self._pool.connection() as connection:
                yield connection

    async def _configure(self, connection: AsyncConnection[Row]) -> None:
        connection.prepare_threshold = 2 if self._prepared else None
        try:
            row = await (await connection.execute(_SQL["read_version"].text)).fetchone()
        except psycopg.errors.UndefinedTable:
            row = None  # a database that was never migrated
        require_compatible(row)

    async def _connect_once(self, wait_s: float) -> AsyncConnection[Row]:
        """Connect once outside the pool: the pool would retry a schema mismatch for ever and hide its error."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        delay = 0.05
        while True:
            try:
                connection: AsyncConnection[Row] = await AsyncConnection.connect(
                    self._url,
                    autocommit=True,
                    row_factory=dict_row,
                    connect_timeout=CONNECT_TIMEOUT_S,
                )
            except psycopg.OperationalError:
                if loop.time() + delay > deadline:
                    raise
                await asyncio.sleep(delay)
                delay = min(delay * 2, 1.0)
                continue
            try:
                await self._configure(connection)
            except BaseException:
                await connection.close()
                raise
            return connection
