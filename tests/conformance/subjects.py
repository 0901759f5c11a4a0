"""The adapters as the kits want them: one world of owners, workers and time over memory, one over a database."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Self
from uuid import uuid4

from psycopg import AsyncConnection

from shared.conformance import HandClock
from shared.database.pool import Database
from shared.domain.ids import OwnerId, SessionId, WorkerId
from shared.inbox.inproc import InprocInbox
from shared.inbox.port import Inbox
from shared.inbox.postgres import PostgresInbox
from shared.leases.inproc import InprocLeases, LeaseTable
from shared.leases.port import Leases
from shared.leases.postgres import PostgresLeases
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.log import SessionLog
from shared.sessions.postgres import PostgresSessionLog
from shared.transfer.inproc import InprocArchives, InprocTransferStore
from shared.transfer.port import Archives, TransferStore
from shared.transfer.postgres import PostgresArchives, PostgresTransferStore
from shared.turns.grouping.postgres import TurnGroups
from shared.turns.inproc import InprocTurnQueue
from shared.turns.inproc.rows import OwnerBounds, TurnTables
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import TurnQueue

#: What a day's passing moves, by table: the stored times of this subject's rows, and nobody else's.
_ADVANCES = {
    "owners": (
        """UPDATE turns SET expires_at = expires_at - %(by)s, due_at = due_at - %(by)s, deadline = deadline - %(by)s,
             admitted_at = admitted_at - %(by)s, opened_at = opened_at - %(by)s, ended_at = ended_at - %(by)s
           WHERE owner = ANY (%(names)s)""",
        """UPDATE sessions SET created_at = created_at - %(by)s, updated_at = updated_at - %(by)s,
             active_at = active_at - %(by)s WHERE owner = ANY (%(names)s)""",
        """UPDATE deliveries SET due_at = due_at - %(by)s
           WHERE parent IN (SELECT id FROM sessions WHERE owner = ANY (%(names)s))""",
        """UPDATE inbox_items SET due_at = due_at - %(by)s, delivered_at = delivered_at - %(by)s
           WHERE session_id IN (SELECT id FROM sessions WHERE owner = ANY (%(names)s))""",
    ),
    "workers": ("UPDATE workers SET last_seen = last_seen - %(by)s WHERE id = ANY (%(names)s)",),
    "leases": ("UPDATE sweep_leases SET expires_at = expires_at - %(by)s WHERE name = ANY (%(names)s)",),
}


class Names:
    """Fresh names of one subject; they sort in the order they were asked for."""

    def __init__(self) -> None:
        self._prefix = uuid4().hex
        self._numbers = itertools.count(1)
        self.given: dict[str, list[str]] = {"owners": [], "workers": [], "revisions": [], "leases": []}

    def new(self, what: str) -> str:
        name = f"{what}-{self._prefix}-{next(self._numbers):06d}"
        self.given[what].append(name)
        return name

    def new_owner(self) -> OwnerId:
        return OwnerId(self.new("owners"))

    def new_worker(self) -> WorkerId:
        return WorkerId(self.new("workers"))

    def new_revision(self) -> str:
        return self.new("revisions")

    def new_name(self) -> str:
        return self.new("leases")


class InprocWorld(Names):
    """One store in memory under a hand clock; every handle is over it (KIT-40)."""

    caller_clock = True

    def __init__(self, *, tick_s: float = 0.0) -> None:
        super().__init__()
        self.clock = HandClock(tick_s=tick_s)
        self.store = InprocStore(self.clock)
        self.leases = LeaseTable(self.clock)
        self.clock.advance(3600)

    async def log(self) -> SessionLog:
        return InprocSessionLog(self.store)

    async def close(self, log: SessionLog) -> None:
        """A handle over memory holds nothing."""

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def make_child(self, child: SessionId, parent: SessionId) -> None:
        self.store.sessions[child].parent = parent

    async def inherit(self, child: SessionId, parent: SessionId, *, turns: int) -> None:
        self.store.sessions[child].parent, self.store.sessions[child].parent_number = parent, turns

    async def limit_owner(
        self, owner: OwnerId, *, running_max: int | None = None, queued_max: int | None = None
    ) -> None:
        self.store.part(TurnTables).bounds[owner] = OwnerBounds(running_max, queued_max)


class InprocSessionLogSubject(InprocWorld):
    async def open(self) -> SessionLog:
        return await self.log()


class InprocTurnQueueSubject(InprocWorld):
    def __init__(self) -> None:
        super().__init__(tick_s=1e-6)

    async def open(self) -> TurnQueue:
        return InprocTurnQueue(self.store)

    async def inbox(self) -> Inbox:
        return InprocInbox(self.store)


class InprocTransferSubject(InprocTurnQueueSubject):
    async def transfer(self) -> TransferStore:
        return InprocTransferStore(self.store)

    async def archives(self) -> Archives:
        return InprocArchives(self.store)


class InprocLeasesSubject(InprocWorld):
    async def open(self) -> Leases:
        return InprocLeases(self.leases)


class PostgresWorld(Names):
    """One database; every handle has a pool of its own. Time passes by moving stored times back (KIT-08)."""

    caller_clock = False

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._stack = AsyncExitStack()
        self._databases: dict[int, Database] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._stack.aclose()

    async def database(self) -> Database:
        """Open one more pool."""
        database = Database(self._url, connections=8, wait_s=20)
        await database.open()
        self._stack.push_async_callback(database.close)
        return database

    async def log(self) -> SessionLog:
        database = await self.database()
        log = PostgresSessionLog(database)
        self._databases[id(log)] = database
        return log

    async def close(self, log: SessionLog) -> None:
        await self._databases.pop(id(log)).close()

    async def advance(self, seconds: float) -> None:
        statements = [
            (statement, names) for what, names in self.given.items() for statement in _ADVANCES.get(what, ())
        ]
        async with await AsyncConnection.connect(self._url) as connection:
            for statement, names in statements:
                await connection.execute(
                    statement.encode(), {"by": timedelta(seconds=seconds), "names": names}
                )

    async def make_child(self, child: SessionId, parent: SessionId) -> None:
        await self._execute("UPDATE sessions SET parent = %s WHERE id = %s", [parent, child])

    async def inherit(self, child: SessionId, parent: SessionId, *, turns: int) -> None:
        statement = "UPDATE sessions SET parent = %s, parent_number = %s WHERE id = %s"
        await self._execute(statement, [parent, turns or None, child])

    async def limit_owner(
        self, owner: OwnerId, *, running_max: int | None = None, queued_max: int | None = None
    ) -> None:
        statement = "UPDATE owners SET running_max = %s, queued_max = %s WHERE id = %s"
        await self._execute(statement, [running_max, queued_max, owner])

    async def _execute(self, statement: str, values: Sequence[Any]) -> None:
        async with await AsyncConnection.connect(self._url) as connection:
            await connection.execute(statement.encode(), values)


class PostgresSessionLogSubject(PostgresWorld):
    async def open(self) -> SessionLog:
        return await self.log()


class PostgresTurnQueueSubject(PostgresWorld):
    async def open(self) -> TurnQueue:
        return PostgresTurnQueue(await self.database())

    async def inbox(self) -> Inbox:
        return PostgresInbox(await self.database())


class GroupedTurnQueueSubject(PostgresTurnQueueSubject):
    """The same queue, which sends every unit of work that may share a statement by the group's."""

    async def open(self) -> TurnQueue:
        database = await self.database()
        groups = TurnGroups(database, least=1)
        self._stack.push_async_callback(groups.close)
        return PostgresTurnQueue(database, groups=groups)


class PostgresTransferSubject(PostgresTurnQueueSubject):
    async def transfer(self) -> TransferStore:
        return PostgresTransferStore(await self.database())

    async def archives(self) -> Archives:
        return PostgresArchives(await self.database())


class PostgresLeasesSubject(PostgresWorld):
    async def open(self) -> Leases:
        return PostgresLeases(await self.database())
