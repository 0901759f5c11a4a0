"""The stores as the state machines drive them: the twin in memory, and Postgres with real connections.

Time stands still but for the hooks here, which move stored times: a lease passes, a deadline passes, a process falls silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar
from uuid import UUID

from psycopg import AsyncConnection

from shared.conformance import HandClock
from shared.conformance.turn_stage import TAKEOVER_LEASE_S, seen
from shared.database.pool import Database, Row
from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId
from shared.inbox.inproc import InprocInbox
from shared.inbox.port import Inbox
from shared.inbox.postgres import PostgresInbox
from shared.leases.fence import Fence
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.log import NewSession, SessionLog
from shared.sessions.postgres import PostgresSessionLog
from shared.sessions.records import Draft
from shared.tasks.inproc import InprocTaskStore
from shared.tasks.port import TaskStore
from shared.tasks.postgres import PostgresTaskStore
from shared.turns.grouping.postgres import TurnGroups
from shared.turns.inproc import InprocTurnQueue
from shared.turns.inproc.inbox import InboxTable
from shared.turns.inproc.rows import TurnTables
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits, Claim, ClaimRequest, Ending, TurnQueue
from tests.stateful.values import (
    ATTEMPTS_MAX,
    QUEUED_PER_OWNER,
    QUEUED_PER_SESSION,
    RUNNING_PER_OWNER,
    Answer,
    Asked,
    HeadState,
    Hold,
    InboxState,
    Item,
    RowState,
    Stored,
    Taken,
    Write,
)

LIMITS = AdmissionLimits(QUEUED_PER_SESSION, QUEUED_PER_OWNER, ATTEMPTS_MAX)
FAR = timedelta(hours=1)
#: What a row's state calls as its columns are called.
_SAME_NAMES = (
    *("position", "status", "number", "outcome", "code", "epoch", "attempts", "suspect", "alive_losses"),
    "priority",
)
_TABLES = (
    *("turns", "tool_calls", "session_keys", "records", "sessions", "owners", "workers"),
    *("inbox_items", "deliveries"),
)
T = TypeVar("T")
#: A token that no claim draws.
NOBODY = UUID(int=1)


class Clockwork(Protocol):
    """The hands of one store: what runs its calls, moves its stored times and shows its rows."""

    log: SessionLog
    queue: TurnQueue
    inbox: Inbox
    tasks: TaskStore

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call to its end."""
        ...

    async def begin(self) -> None:
        """Empty the store."""
        ...

    async def now(self) -> datetime: ...

    async def set_lease(self, turns: Sequence[TurnId], ends_in: timedelta) -> None:
        """Let the leases of running rows end then."""
        ...

    async def set_due(self, turn: TurnId) -> None:
        """Let a row be due now."""
        ...

    async def pass_deadline(self, turn: TurnId) -> None: ...

    async def set_seen(self, worker: WorkerId, ago: timedelta) -> None: ...

    async def stored(self) -> Stored: ...

    async def inbox_state(self) -> InboxState: ...


class Side:
    """One store under the machine: answers in the machine's own words, with the real claims and tokens kept here."""

    def __init__(self, works: Clockwork) -> None:
        self.works = works
        self.run = works.run
        self._claims: dict[tuple[TurnId, int], Claim] = {}

    async def begin(self) -> None:
        """Begin an example: nothing is stored, no claim is known."""
        self._claims.clear()
        await self.works.begin()

    async def create(self, session: SessionId, owner: OwnerId) -> Answer:
        """Create a session."""
        return ("created", (await self.works.log.create(NewSession(session, owner))).session_id)

    async def _admission(self, asked: Asked) -> Admission:
        return Admission(
            turn_id=asked.turn,
            run_id=asked.run,
            session_id=asked.session,
            owner=asked.owner,
            message={"text": asked.text},
            key=asked.key,
            agent_revision=asked.revision,
            on_busy=asked.on_busy,
            on_worker_loss=asked.on_worker_loss,
            priority=asked.priority,
            deadline=await self.works.now() + FAR if asked.has_deadline else None,
            resumes=asked.resumes,
        )

    async def admit(self, asked: Asked) -> Answer:
        """Admit a turn."""
        got = await self.works.queue.admit(await self._admission(asked), LIMITS)
        told = (got.turn_id, got.run_id, got.session_id, got.position, got.status, got.after, got.duplicate)
        return ("receipt", *told, sorted(got.superseded.items()))

    async def claim(
        self, worker: WorkerId, places: int, suspects: int, revisions: Sequence[str]
    ) -> Sequence[Taken]:
        """Claim; the leases had then last until the machine lets them pass."""
        request = ClaimRequest(
            worker,
            places,
            revisions,
            lease_s=TAKEOVER_LEASE_S,
            suspects_left=suspects,
            attempts_max=ATTEMPTS_MAX,
            running_per_owner=RUNNING_PER_OWNER,
        )
        claims = await self.works.queue.claim(request)
        await self.works.set_lease([claim.turn_id for claim in claims], FAR)
        self._claims |= {(claim.turn_id, claim.fence.epoch): claim for claim in claims}
        return [
            Taken(c.turn_id, c.session_id, c.fence.epoch, c.number, c.attempts, c.suspect, c.lost)
            for c in claims
        ]

    async def write(self, write: Write) -> Answer:
        """Send a fenced write."""
        claim, queue = self._claim(write.hold), self.works.queue
        match write.kind:
            case "open":
                opened = await queue.open(claim, write.commit_id, write.drafts)
                return ("opened", opened.result, opened.number, opened.seq)
            case "append":
                seq = await queue.append(
                    claim, write.commit_id, write.drafts, stepped=write.stepped, calls=write.calls
                )
                return ("appended", seq)
            case _:
                ending = Ending(write.outcome)
                ended = await queue.end(claim, write.commit_id, write.drafts, ending, calls=write.calls)
                return ("ended", ended.seq, ended.promoted)

    async def begin_turn(self, asked: Asked, write: Write, *, leased: bool) -> Answer:
        """Begin a turn in a host's own process, with a lease or held until it ends."""
        begun = await self.works.queue.begin(
            await self._admission(asked),
            write.hold.worker,
            lease_s=TAKEOVER_LEASE_S if leased else None,
            commit_id=write.commit_id,
            drafts=write.drafts,
            limits=LIMITS,
        )
        self._claims[begun.claim.turn_id, begun.claim.fence.epoch] = begun.claim
        if leased:
            await self.works.set_lease([begun.claim.turn_id], FAR)
        return ("begun", begun.opened.result, begun.opened.number, begun.opened.seq)

    async def abandon(self, hold: Hold) -> Answer:
        """Close a turn whose process is known to be gone."""
        return ("abandoned", await self.works.queue.abandon(hold.turn, self._fence(hold)))

    async def cancel(self, turn: TurnId, owner: OwnerId) -> Answer:
        """Cancel a turn."""
        got = await self.works.queue.cancel(turn, owner)
        told = (got.status, got.outcome, got.code, got.holder, got.session_id, got.after)
        return ("cancel", got.took_effect, got.reason, *told)

    async def release(self, hold: Hold, *, later: bool) -> Answer:
        """Give a claim back, due at once or not before the machine says so."""
        due_in_s = FAR.total_seconds() if later else 0.0
        return ("released", await self.works.queue.release(hold.turn, self._fence(hold), due_in_s=due_in_s))

    async def renew(self, holds: Sequence[Hold]) -> Answer:
        """Renew what a process believes to hold."""
        got = await self.works.queue.renew(self._fences(holds), FAR.total_seconds())
        assert not got.skipped, "nobody else locks rows while one rule runs"
        return ("renewed", sorted(got.renewed), sorted(got.lost))

    async def watch(self, worker: WorkerId, holds: Sequence[Hold]) -> Answer:
        """Ask what a process lost, and what it owns without knowing; the orphans' fences must be those of their claims."""
        got = await self.works.queue.watch(worker, self._fences(holds))
        for turn, fence in got.orphans.items():
            assert self._claims[turn, fence.epoch].fence == fence, "an orphan's fence is its claim's"
        orphans = sorted((turn, fence.epoch) for turn, fence in got.orphans.items())
        return ("watched", sorted(got.lost.items()), orphans)

    async def reap(self) -> Answer:
        """Sweep dead rows."""
        touched = await self.works.queue.reap(limit=1_000)
        return ("reaped", sorted((v.turn_id, v.status, v.outcome, v.code) for v in touched))

    async def expire(self) -> Answer:
        """Sweep rows whose deadline passed."""
        return ("expired", await self.works.queue.expire(limit=1_000))

    async def commit(self, session: SessionId, owner: OwnerId, drafts: Sequence[Draft]) -> Answer:
        """Append outside any turn."""
        done = await self.works.log.commit(session, owner, drafts)
        return ("committed", done.seq, done.revision)

    async def remove(self, session: SessionId, owner: OwnerId) -> Answer:
        """Remove a session."""
        return ("removed", list(await self.works.log.remove(session, owner)))

    async def hear(self, worker: WorkerId, *, silent: bool) -> Answer:
        """Hear of a worker process, for as long as the machine wants; or let it have been silent for long."""
        await self.works.queue.seen(seen(worker))
        await self.works.set_seen(worker, FAR if silent else -FAR)
        return ("heard",)

    def _claim(self, hold: Hold) -> Claim:
        claim = self._claims[hold.turn, hold.epoch]
        return replace(claim, fence=self._fence(hold))

    def _fence(self, hold: Hold) -> Fence:
        real = self._claims[hold.turn, hold.epoch].fence
        return Fence(hold.epoch, NOBODY) if hold.forged else real

    def _fences(self, holds: Sequence[Hold]) -> Mapping[TurnId, Fence]:
        return {hold.turn: self._fence(hold) for hold in holds}


class InprocWorks:
    """The twin, with a clock of its own that moves a little at each reading; ``queue`` may be a broken one."""

    def __init__(self, queue: type[InprocTurnQueue] = InprocTurnQueue) -> None:
        self._kind = queue

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        # Nothing here waits for anything, so that no loop is needed.
        try:
            while True:
                call.send(None)
        except StopIteration as end:
            answer: T = end.value
            return answer

    async def begin(self) -> None:
        clock = HandClock(tick_s=1e-6)
        self._store = InprocStore(clock)
        clock.advance(2 * FAR.total_seconds())
        self._tables = self._store.part(TurnTables)
        self.log: SessionLog = InprocSessionLog(self._store)
        self.queue: TurnQueue = self._kind(self._store, attempts_max=ATTEMPTS_MAX)
        self.inbox: Inbox = InprocInbox(self._store, turn_attempts_max=ATTEMPTS_MAX)
        self.tasks: TaskStore = InprocTaskStore(self._store)

    async def now(self) -> datetime:
        return self._store.now()

    async def set_lease(self, turns: Sequence[TurnId], ends_in: timedelta) -> None:
        for turn in turns:
            self._tables.turns[turn].expires_at = self._store.now() + ends_in

    async def set_due(self, turn: TurnId) -> None:
        self._tables.turns[turn].due_at = self._store.now()

    async def pass_deadline(self, turn: TurnId) -> None:
        self._tables.turns[turn].deadline = self._store.now()

    async def set_seen(self, worker: WorkerId, ago: timedelta) -> None:
        row = self._tables.workers[worker]
        self._tables.workers[worker] = replace(row, last_seen=self._store.now() - ago)

    async def stored(self) -> Stored:
        store, turns = self._store, self._tables.turns
        heads = [store.sessions[session] for session in sorted(store.sessions)]
        rows = sorted(turns.values(), key=lambda row: (row.session_id, row.position))
        records = [record for head in heads for record in head.records]
        ledgers = {turn: lines for turn, lines in sorted(self._tables.ledger.items()) if lines}
        return Stored(
            heads=[
                HeadState(
                    head.id,
                    head.seq,
                    head.revision,
                    head.next_position,
                    head.next_number,
                    None if head.open is None else (TurnId(head.open.turn_id), head.open.epoch),
                )
                for head in heads
            ],
            rows=[
                RowState(
                    id=row.id,
                    session=row.session_id,
                    holder=row.lease_owner,
                    **{name: getattr(row, name) for name in _SAME_NAMES},
                )
                for row in rows
            ],
            records=[(r.session_id, r.seq, r.turn, r.kind, r.text) for r in records],
            ledger=[
                (turn, name, lines[name].state, lines[name].result)
                for turn, lines in ledgers.items()
                for name in sorted(lines)
            ],
            tails=[(head.id, head.tail) for head in heads],
            digests=[record.digest for record in records],
        )

    async def inbox_state(self) -> InboxState:
        items, sessions = self._store.part(InboxTable).items, self._store.sessions
        return InboxState(
            [
                Item(at, item.id, item.attempts, item.turn_id)
                for at in sorted(items)
                for item in sorted(items[at], key=lambda item: item.id)
            ],
            {row.id: row.origin for row in self._tables.turns.values()},
            [(session, sessions[session].inbox_waiting) for session in sorted(sessions)],
        )


class PostgresWorks:
    """Postgres; the store's server has been up for longer than a takeover judges by."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        database: Database,
        admin: AsyncConnection[Row],
        *,
        groups: TurnGroups | None = None,
    ) -> None:
        self._loop, self._admin = loop, admin
        self.log: SessionLog = PostgresSessionLog(database)
        self.queue: TurnQueue = PostgresTurnQueue(database, attempts_max=ATTEMPTS_MAX, groups=groups)
        self.inbox: Inbox = PostgresInbox(database, turn_attempts_max=ATTEMPTS_MAX)
        self.tasks: TaskStore = PostgresTaskStore(database, attempts_max=ATTEMPTS_MAX)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)

    async def begin(self) -> None:
        for table in _TABLES:
            await self._rows(f"DELETE FROM {table}")

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def set_lease(self, turns: Sequence[TurnId], ends_in: timedelta) -> None:
        if turns:
            moved = "UPDATE turns SET expires_at = clock_timestamp() + %s WHERE id = ANY (%s)"
            await self._rows(moved, ends_in, list(turns))

    async def set_due(self, turn: TurnId) -> None:
        await self._rows("UPDATE turns SET due_at = clock_timestamp() WHERE id = %s", turn)

    async def pass_deadline(self, turn: TurnId) -> None:
        await self._rows("UPDATE turns SET deadline = clock_timestamp() WHERE id = %s", turn)

    async def set_seen(self, worker: WorkerId, ago: timedelta) -> None:
        await self._rows("UPDATE workers SET last_seen = clock_timestamp() - %s WHERE id = %s", ago, worker)

    async def stored(self) -> Stored:
        heads = await self._rows('SELECT * FROM sessions ORDER BY id COLLATE "C"')
        # Not every column: the end of a lease that never ends has no counterpart here.
        named = ", ".join(("id", "session_id", "lease_owner", *_SAME_NAMES))
        rows = await self._rows(f'SELECT {named} FROM turns ORDER BY session_id COLLATE "C", position')
        records = await self._rows('SELECT * FROM records ORDER BY session_id COLLATE "C", seq')
        ledger = await self._rows('SELECT * FROM tool_calls ORDER BY turn_id, invocation_id COLLATE "C"')
        return Stored(
            heads=[
                HeadState(
                    *(row["id"], row["seq"], row["revision"], row["next_position"], row["next_number"]),
                    None if row["open_turn"] is None else (row["open_turn"], row["open_epoch"]),
                )
                for row in heads
            ],
            rows=[_row_state(row) for row in rows],
            records=[(r["session_id"], r["seq"], r["turn"], r["kind"], r["data"]) for r in records],
            ledger=[(r["turn_id"], r["invocation_id"], r["state"], r["result"]) for r in ledger],
            tails=[(row["id"], bytes(row["tail"])) for row in heads],
            digests=[bytes(row["digest"]) for row in records],
        )

    async def inbox_state(self) -> InboxState:
        items = await self._rows('SELECT * FROM inbox_items ORDER BY session_id COLLATE "C", id COLLATE "C"')
        heads = await self._rows('SELECT id, inbox_waiting FROM sessions ORDER BY id COLLATE "C"')
        return InboxState(
            [Item(row["session_id"], row["id"], row["attempts"], row["turn_id"]) for row in items],
            {row["id"]: row["origin"] for row in await self._rows("SELECT id, origin FROM turns")},
            [(row["id"], row["inbox_waiting"]) for row in heads],
        )

    async def _rows(self, statement: str, *values: Any) -> list[Row]:
        cursor = await self._admin.execute(statement.encode(), values)
        return await cursor.fetchall() if cursor.description else []


def _row_state(row: Row) -> RowState:
    return RowState(
        id=row["id"],
        session=row["session_id"],
        holder=row["lease_owner"],
        **{name: row[name] for name in _SAME_NAMES},
    )
