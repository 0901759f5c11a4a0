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
from shared.sessions.inproc import StoredSession
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
from shared.turns.resume import PastTurn
from shared.turns.rules import LIVE, is_lost, next_to_promote

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
    parent: SessionId | None = None
    resumes: int | None = None
    resumed: TurnId | None = None
    number: int | None = None
    outcome: Outcome | None = None
    code: str | None = None
    failure: str | None = None
    usage: str = "{}"
    end_commit: str | None = None
    opened_at: datetime | None = None
    started_seq: int | None = None
    opened_seq: int | None = None
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

    def numbered(self, session_id: SessionId, number: int | None) -> TurnId | None:
        """The id of the session's turn of a number."""
        if number is None:
            return None
        return next((row.id for row in self.of_session(session_id) if row.number == number), None)

    def past(self, session_id: SessionId) -> Sequence[PastTurn]:
        """The turns of a session that opened."""
        return [
            PastTurn(row.number, row.origin, row.outcome, row.resumes)
            for row in self.of_session(session_id)
            if row.number is not None
        ]

    def count(self, *statuses: Status, owner: OwnerId | None = None, pool: str | None = None) -> int:
        """How many rows have one of these statuses, of one owner or pool if named."""
        return sum(
            row.status in statuses and owner in (None, row.owner) and pool in (None, row.pool)
            for row in self.turns.values()
        )

    def make_ready(self, session_id: SessionId) -> TurnId | None:
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
        origin=admission.origin,
        resumes=admission.resumes,
    )


def insert(tables: TurnTables, session: StoredSession, row: TurnRow, now: datetime) -> None:
    """Give the row the session's next position; it is ready when no row of the session is live."""
    behind_another = tables.live(session.id) is not None
    row.position, session.next_position = session.next_position, session.next_position + 1
    row.due_at = row.admitted_at = now
    row.admitted_seq = session.seq
    row.resumed = tables.numbered(session.id, row.resumes)
    row.status = "queued" if behind_another else "ready"
    tables.turns[row.id] = row
    if behind_another:
        # What waits before an urgent row must not hold it back: the rows before it are lifted to its priority.
        for other in tables.of_session(session.id):
            if other.status not in FINISHED:
                other.priority = min(other.priority, row.priority)


def is_open(session: StoredSession, row: TurnRow) -> bool:
    """Say whether the head names this turn as open."""
    return session.open is not None and session.open.turn_id == row.id


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
        parent=row.parent,
        deadline_in_s=None if row.deadline is None else (row.deadline - now).total_seconds(),
        resumes=row.resumes,
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
        resumes=row.resumed,
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
