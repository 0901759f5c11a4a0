"""The twin's rows: turns, their ledgers and the workers, and the moves that several operations share."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from shared.domain.canonical import canonical_json
from shared.domain.errors import FenceLost, StoreDefect, TurnClosed
from shared.domain.ids import OwnerId, RunId, SessionId, TurnId, WorkerId
from shared.leases.fence import Fence
from shared.sessions.inproc import InprocStore, StoredSession
from shared.sessions.records import draft
from shared.turns.queue import (
    FINISHED,
    Admission,
    CallEntry,
    Claim,
    OnWorkerLoss,
    Outcome,
    Status,
    TurnView,
    WorkerSeen,
)
from shared.turns.rules import LIVE, is_abandoned, is_dead, is_lost, next_to_promote

UNSETTLED = frozenset({"planned", "started"})
#: When a turn expires that is held without a lease.
FOREVER = datetime.max.replace(tzinfo=UTC)


@dataclass(slots=True)
class TurnRow:
    """A turn as stored. JSON is text, as in the database."""

    id: TurnId
    session_id: SessionId
    owner: OwnerId
    position: int
    status: Status
    key: str | None
    message: str | None
    command: str | None
    meta: str | None
    run_id: RunId
    agent: str
    agent_revision: str
    on_worker_loss: OnWorkerLoss
    priority: int
    due_at: datetime
    deadline: datetime | None
    admitted_at: datetime
    admitted_seq: int
    max_duration_s: float | None
    origin: str = "user"
    pool: str = "turns"
    number: int | None = None
    outcome: Outcome | None = None
    code: str | None = None
    failure: str | None = None
    usage: str = "{}"
    end_commit: str | None = None
    opened_at: datetime | None = None
    started_seq: int | None = None
    ended_at: datetime | None = None
    attempts: int = 0
    suspect: bool = False
    alive_losses: int = 0
    lease_owner: WorkerId | None = None
    epoch: int = 0
    token: UUID | None = None
    expires_at: datetime | None = None

    @property
    def fence(self) -> Fence:
        """The fence of the row's holder; raises ``StoreDefect`` when nobody holds it."""
        if self.token is None:
            raise StoreDefect("a turn without a holder was asked for its fence", turn=str(self.id))
        return Fence(self.epoch, self.token)

    def free(self) -> None:
        """Take the lease away; the epoch stays."""
        self.lease_owner = self.token = self.expires_at = None

    def finish(
        self, status: Status, now: datetime, outcome: Outcome | None = None, code: str | None = None
    ) -> None:
        """Move the row out of the unfinished ones."""
        self.status, self.outcome, self.code, self.ended_at = status, outcome, code, now
        self.free()


@dataclass(frozen=True, slots=True)
class OwnerBounds:
    """An owner's own bounds; None leaves the asking process's."""

    running_max: int | None = None
    queued_max: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """What a worker process last said of itself, and when."""

    said: WorkerSeen
    started_at: datetime
    last_seen: datetime


@dataclass(slots=True)
class TurnTables:
    """The turn queue's part of an :class:`~shared.sessions.inproc.InprocStore`."""

    turns: dict[TurnId, TurnRow] = field(default_factory=dict)
    ledger: dict[TurnId, dict[str, CallEntry]] = field(default_factory=dict)
    workers: dict[WorkerId, WorkerRow] = field(default_factory=dict)
    bounds: dict[OwnerId, OwnerBounds] = field(default_factory=dict)

    def forget(self, sessions: Collection[SessionId]) -> None:
        """Drop the turns and ledgers of removed sessions."""
        gone = [row.id for row in self.turns.values() if row.session_id in sessions]
        for turn_id in gone:
            del self.turns[turn_id]
            self.ledger.pop(turn_id, None)

    def of_session(self, session_id: SessionId) -> Iterator[TurnRow]:
        """Every row of a session."""
        return (row for row in self.turns.values() if row.session_id == session_id)

    def live(self, session_id: SessionId) -> TurnRow | None:
        """The session's live row."""
        return next((row for row in self.of_session(session_id) if row.status in LIVE), None)

    def unfinished(self, session_id: SessionId) -> int:
        """How many rows of the session are unfinished."""
        return sum(row.status not in FINISHED for row in self.of_session(session_id))

    def count(self, *statuses: Status, owner: OwnerId | None = None, pool: str | None = None) -> int:
        """How many rows have one of these statuses, of one owner or pool if named."""
        return sum(
            row.status in statuses and owner in (None, row.owner) and pool in (None, row.pool)
            for row in self.turns.values()
        )

    def promote(self, session_id: SessionId) -> TurnId | None:
        """Make the session's first unfinished row ready when none is live; return its id."""
        row = next_to_promote(self.of_session(session_id))
        if row is None:
            return None
        row.status = "ready"
        return row.id

    def write_calls(self, turn_id: TurnId, calls: Sequence[CallEntry]) -> None:
        """Write what changed in a turn's ledger; a settled line stays, and a line keeps what it was planned as."""
        lines = self.ledger.setdefault(turn_id, {})
        for call in calls:
            line = lines.get(call.invocation_id)
            if line is None:
                lines[call.invocation_id] = call
            elif line.state in UNSETTLED:
                lines[call.invocation_id] = replace(line, state=call.state, result=call.result)


def new_row(admission: Admission) -> TurnRow:
    """Return the row of an admission before it has a position, a status and its times."""
    return TurnRow(
        id=admission.turn_id,
        session_id=admission.session_id,
        owner=admission.owner,
        position=0,
        status="queued",
        key=admission.key,
        message=canonical_json(dict(admission.message)),
        command=_optional_text(admission.command),
        meta=_optional_text(admission.meta),
        run_id=admission.run_id,
        agent=admission.agent,
        agent_revision=admission.agent_revision,
        on_worker_loss=admission.on_worker_loss,
        priority=admission.priority,
        due_at=datetime.min,
        deadline=admission.deadline,
        admitted_at=datetime.min,
        admitted_seq=0,
        max_duration_s=admission.max_duration_s,
    )


def close_open(
    store: InprocStore,
    tables: TurnTables,
    session: StoredSession,
    row: TurnRow,
    outcome: Outcome,
    code: str | None,
) -> None:
    """End the turn that the head names as open, with a ``turn.ended`` that the store itself writes."""
    ended = draft("turn.ended", {"v": 1, "reason": outcome} | ({"code": code} if code else {}))
    store.append(session, [ended], turn=row.number)
    row.finish("ended", store.now(), outcome, code)
    session.open = None
    tables.promote(session.id)


def reply_outcome(session: StoredSession, row: TurnRow) -> Outcome | None:
    """Return the outcome of the turn's stored reply, if it has one."""
    for record in reversed(session.records):
        if record.turn == row.number and record.kind == "turn.reply":
            outcome: Outcome = record.data["outcome"]
            return outcome
    return None


def is_open(session: StoredSession, row: TurnRow) -> bool:
    """Say whether the head names this turn as open."""
    return session.open is not None and session.open.turn_id == row.id


def reap(
    store: InprocStore, tables: TurnTables, session: StoredSession, row: TurnRow, attempts_max: int
) -> None:
    """End or free a dead row."""
    now = store.now()
    if is_open(session, row):
        reply = reply_outcome(session, row)
        code = None if reply is not None else "turn.lease"
        close_open(store, tables, session, row, reply or "interrupted", code)
    elif row.attempts >= attempts_max - 1 or is_abandoned(row, now, store.started_at):
        row.attempts += 1
        row.finish("ended", now, "interrupted", "turn.lease")
        tables.promote(session.id)
    else:
        # Never opened: nothing of it is in the log, so it may simply wait again. The loss counts all the same.
        row.attempts += int(row.suspect)
        row.status, row.suspect = "ready", True
        row.free()


def cancel(
    store: InprocStore, tables: TurnTables, session: StoredSession, row: TurnRow, attempts_max: int
) -> str:
    """End a turn as cancelled unless it finished, replied, is dead or the inbox's; return what was done."""
    if row.status in FINISHED:
        return "cancelled" if "cancelled" in (row.status, row.outcome) else "finished"
    if not is_open(session, row):
        if row.origin == "inbox":
            return "inbox"
        row.finish("cancelled", store.now())
        tables.promote(session.id)
        return "cancelled"
    if (reply := reply_outcome(session, row)) is not None:
        close_open(store, tables, session, row, reply, None)
        return "replied"
    if is_dead(row, store.now(), attempts_max, store.started_at):
        reap(store, tables, session, row, attempts_max)
        return "reaped"
    close_open(store, tables, session, row, "cancelled", None)
    return "cancelled"


def loss_of(reason: str, turn_id: TurnId, epoch: int) -> FenceLost:
    """Return the error of a write whose fence does not hold."""
    turn = str(turn_id)
    if reason == "lost":
        return FenceLost("another worker owns the turn, or its lease passed", turn=turn, epoch=epoch)
    return TurnClosed(f"the turn was closed: {reason}", turn=turn, reason=reason, epoch=epoch)


def claim_of(row: TurnRow, now: datetime, *, lost: bool) -> Claim:
    """Return what a holder gets of its row."""
    return Claim(
        turn_id=row.id,
        session_id=row.session_id,
        owner=row.owner,
        fence=row.fence,
        number=row.number,
        origin=row.origin,
        run_id=row.run_id,
        key=row.key,
        message=_optional_json(row.message),
        command=_optional_json(row.command),
        meta=_optional_json(row.meta),
        agent=row.agent,
        agent_revision=row.agent_revision,
        on_worker_loss=row.on_worker_loss,
        priority=row.priority,
        attempts=row.attempts,
        suspect=row.suspect,
        lost=lost,
        max_duration_s=row.max_duration_s,
        open_for_s=None if row.opened_at is None else (now - row.opened_at).total_seconds(),
    )


def view_of(row: TurnRow, session: StoredSession, now: datetime) -> TurnView:
    """Return a turn as anyone may see it."""
    opened = is_open(session, row)
    unheld = opened and (row.status != "running" or is_lost(row, now))
    return TurnView(
        turn_id=row.id,
        session_id=row.session_id,
        owner=row.owner,
        run_id=row.run_id,
        position=row.position,
        number=row.number,
        origin=row.origin,
        status=row.status,
        outcome=row.outcome,
        code=row.code,
        failure=row.failure,
        agent=row.agent,
        agent_revision=row.agent_revision,
        priority=row.priority,
        attempts=row.attempts,
        epoch=row.epoch,
        recovering=unheld and row.on_worker_loss == "continue",
        is_open=opened and not (unheld and row.on_worker_loss == "interrupt"),
        holder=row.lease_owner,
        leased=row.expires_at not in (None, FOREVER),
        usage=json.loads(row.usage),
        key=row.key,
        after=row.admitted_seq,
        started_seq=row.started_seq,
        admitted_at=row.admitted_at,
        opened_at=row.opened_at,
        ended_at=row.ended_at,
        deadline=row.deadline,
        now=now,
    )


def _optional_text(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else canonical_json(dict(value))


def _optional_json(text: str | None) -> Mapping[str, Any] | None:
    return None if text is None else json.loads(text)
