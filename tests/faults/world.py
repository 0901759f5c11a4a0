"""What the interleavings are made of: two workers, held locks, statements that wait, and leases that pass on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from shared.conformance.turn_stage import commit_id, ended, started, step
from shared.database.pool import Database, Row
from shared.domain.errors import TurnkeeperError
from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId, new_run_id, new_session_id, new_turn_id
from shared.inbox.port import Delivered, Delivery
from shared.inbox.postgres import PostgresInbox
from shared.sessions.log import NewSession
from shared.sessions.postgres import PostgresSessionLog
from shared.sessions.records import Head, Record, draft, verify_log
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import (
    Admission,
    AdmissionLimits,
    Claim,
    ClaimRequest,
    Ended,
    Ending,
    OnBusy,
    Opened,
    Outcome,
    Receipt,
)

OWNER = OwnerId("ann")
LEASE_S = 60.0
ATTEMPTS_MAX = 3
LOOK_S = 0.005
BOUND_S = 10.0

T = TypeVar("T")


class StageError(Exception):
    """The scene could not be set: no assertion, so that no mutation proof passes by it."""


async def outcome(call: Awaitable[T]) -> T | TurnkeeperError:
    """Return a call's answer, or the typed error that it raised."""
    try:
        return await call
    except TurnkeeperError as error:
        return error


@dataclass(slots=True)
class World:
    """One database with the adapters over it, and ``admin``: a connection of the test's own."""

    url: str
    database: Database
    queue: PostgresTurnQueue
    log: PostgresSessionLog
    inbox: PostgresInbox
    admin: AsyncConnection[Row]

    async def rows(self, sql: str, *values: object) -> list[Row]:
        """Run a statement of the test's own and return its rows."""
        cursor = await self.admin.execute(sql.encode(), values)
        return await cursor.fetchall() if cursor.description else []

    async def session(self, owner: OwnerId = OWNER) -> SessionId:
        """Create a session."""
        return (await self.log.create(NewSession(new_session_id(), owner))).session_id

    async def admit(self, session: SessionId, owner: OwnerId = OWNER, **given: Any) -> Receipt:
        """Admit a turn."""
        return await self.queue.admit(admission(session, owner, **given), AdmissionLimits())

    async def claims(self, worker: str = "w1", places: int = 1, **given: Any) -> Sequence[Claim]:
        """Claim turns for a worker."""
        return await self.queue.claim(request(worker, places, **given))

    async def claim(self, worker: str = "w1", **given: Any) -> Claim:
        """Claim the one turn that there is."""
        found = await self.claims(worker, **given)
        if len(found) != 1:
            raise StageError(f"{len(found)} turns were claimed")
        return found[0]

    async def open(self, claim: Claim, *items: str) -> Opened:
        """Open a claimed turn with the items that it answers, or take it over."""
        return await self.queue.open(claim, commit_id(claim, "open"), [started(claim)], claims=items)

    async def deliver(self, session: SessionId, item: str) -> Delivered:
        """Deliver an item."""
        return await self.inbox.deliver(Delivery(session, OWNER, item, "mail", f"about {item}"))

    async def waiting(self, session: SessionId) -> list[str]:
        """Read the items that wait."""
        return [item.id for item in await self.inbox.waiting(session, OWNER)]

    async def inbox_turn(self, session: SessionId) -> TurnId:
        """Read which turn will answer what waits in a session."""
        [row] = await self.rows(
            "SELECT id FROM turns WHERE session_id = %s AND origin = 'inbox'"
            " AND status IN ('queued', 'ready', 'running')",
            session,
        )
        return TurnId(row["id"])

    async def append(self, claim: Claim, name: str, *, stepped: bool = False) -> int:
        """Append one record of a step under the commit id ``name``."""
        return await self.queue.append(claim, commit_id(claim, name), [step()], stepped=stepped)

    async def reply(self, claim: Claim) -> int:
        """Store the turn's reply."""
        stored = draft("turn.reply", {"v": 1, "outcome": "completed", "text": "hi"})
        return await self.queue.append(claim, commit_id(claim, "reply"), [stored])

    async def end(self, claim: Claim, reason: Outcome = "completed") -> Ended:
        """End an open turn."""
        return await self.queue.end(claim, commit_id(claim, "end"), [ended(reason)], Ending(reason))

    async def held_turn(
        self, worker: str = "w1", owner: OwnerId = OWNER, *, lease_s: float = LEASE_S, **given: Any
    ) -> Claim:
        """Make a session with one turn that the worker holds and has opened."""
        await self.admit(await self.session(owner), owner, **given)
        claim = await self.claim(worker, lease_s=lease_s)
        await self.open(claim)
        return claim

    async def expire(self, *turns: TurnId) -> None:
        """Let the leases of these turns pass now."""
        await self.rows(
            "UPDATE turns SET expires_at = clock_timestamp() - interval '1 ms' WHERE id = ANY (%s)",
            list(turns),
        )

    async def row(self, turn: TurnId) -> Row:
        """Read a turn's row."""
        [row] = await self.rows("SELECT * FROM turns WHERE id = %s", turn)
        return row

    async def statuses(self, session: SessionId) -> list[str]:
        """Read the statuses of a session's rows in their order."""
        found = await self.rows("SELECT status FROM turns WHERE session_id = %s ORDER BY position", session)
        return [row["status"] for row in found]

    async def records(self, session: SessionId, owner: OwnerId = OWNER) -> Sequence[Record]:
        """Read a session's whole log after rechecking every digest and the chain against its head."""
        head = await self.head(session, owner)
        records = await self.log.read(session)
        verify_log(session, records, seq=head.seq, tail=head.tail)
        return records

    async def kinds(self, session: SessionId, owner: OwnerId = OWNER) -> list[str]:
        """Read the kinds of a session's records."""
        return [record.kind for record in await self.records(session, owner)]

    async def head(self, session: SessionId, owner: OwnerId = OWNER) -> Head:
        """Read a session's head."""
        return await self.log.head(session, owner)

    async def waits(self, call: asyncio.Task[Any], statement: str) -> bool:
        """Say whether the call comes to wait for a lock inside ``statement``; False when it ends without waiting."""
        async with asyncio.timeout(BOUND_S):
            while not call.done():
                waiting = await self.rows(
                    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
                    " AND wait_event_type = 'Lock' AND strpos(query, %s) > 0 AND pid <> pg_backend_pid()",
                    statement,
                )
                if waiting:
                    return True
                await asyncio.sleep(LOOK_S)
        return False

    async def until(self, sql: str, *values: object) -> None:
        """Wait until a query of the test's own has a row."""
        async with asyncio.timeout(BOUND_S):
            while True:
                if await self.rows(sql, *values):
                    return
                await asyncio.sleep(LOOK_S)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Row]]:
        """Lend a connection inside a transaction, which commits after the block unless the block ended it."""
        connection = await connect(self.url)
        try:
            await connection.execute("BEGIN")
            yield connection
            await connection.execute("COMMIT")
        finally:
            await connection.close()


@asynccontextmanager
async def world(url: str, *, connections: int = 6) -> AsyncIterator[World]:
    """Open the adapters over a migrated database."""
    database = Database(url, connections=connections)
    await database.open()
    admin = await connect(url)
    try:
        queue = PostgresTurnQueue(database, attempts_max=ATTEMPTS_MAX)
        yield World(url, database, queue, PostgresSessionLog(database), PostgresInbox(database), admin)
    finally:
        await admin.close()
        await database.close()


async def connect(url: str) -> AsyncConnection[Row]:
    """Return an autocommit connection with rows as dicts."""
    connection: AsyncConnection[Row] = await AsyncConnection.connect(
        url, autocommit=True, row_factory=dict_row
    )
    return connection


def admission(session: SessionId, owner: OwnerId = OWNER, **given: Any) -> Admission:
    """Return an admission with fresh ids."""
    standard = Admission(new_turn_id(), new_run_id(), session, owner, {"text": "hello"})
    return replace(standard, **given)


def request(worker: str, places: int, **given: Any) -> ClaimRequest:
    """Return a claim request of a worker."""
    standard = ClaimRequest(
        worker=WorkerId(worker), places=places, lease_s=LEASE_S, attempts_max=ATTEMPTS_MAX
    )
    return replace(standard, **given)


async def hold_head(connection: AsyncConnection[Row], session: SessionId) -> None:
    """Lock a session's head and change nothing."""
    await connection.execute("SELECT 1 FROM sessions WHERE id = %s FOR NO KEY UPDATE", (session,))


async def hold_row(connection: AsyncConnection[Row], turn: TurnId) -> None:
    """Lock a turn's row and change nothing."""
    await connection.execute("SELECT 1 FROM turns WHERE id = %s FOR NO KEY UPDATE", (turn,))


async def run_as(connection: AsyncConnection[Row], call: Mapping[str, Any], function: str) -> Row:
    """Call a function of the schema with named arguments in the connection's own transaction; return its row."""
    names = ", ".join(f"{name} => %({name})s" for name in call)
    cursor = await connection.execute(f"SELECT * FROM {function} ({names})".encode(), call)
    row = await cursor.fetchone()
    if row is None:
        raise StageError(f"{function} answered nothing")
    return row


def admit_call(
    session: SessionId, turn: UUID, *, key: str | None = None, on_busy: OnBusy = "enqueue"
) -> Mapping[str, Any]:
    """Return the arguments of an admission that the test runs in a transaction of its own."""
    return {
        "p_id": turn,
        "p_session": session,
        "p_owner": OWNER,
        "p_key": key,
        "p_print": "p",
        "p_run": f"run of {turn}",
        "p_message": "{}",
        "p_command": None,
        "p_meta": None,
        "p_agent": "",
        "p_revision": "1",
        "p_on_busy": on_busy,
        "p_on_worker_loss": "continue",
        "p_priority": 1,
        "p_deadline": None,
        "p_max_duration_s": None,
        "p_resumes": None,
        "p_session_max": 100,
        "p_owner_max": 1000,
        "p_all_full": False,
        "p_attempts_max": ATTEMPTS_MAX,
    }


def fenced(claim: Claim, name: str) -> dict[str, Any]:
    """Return the arguments that every write of a holder begins with."""
    return {
        "p_id": claim.turn_id,
        "p_session": claim.session_id,
        "p_epoch": claim.fence.epoch,
        "p_token": claim.fence.token,
        "p_commit": commit_id(claim, name),
    }
