"""What the state machines speak in: what was asked, who holds what, answers without times and tokens, stored state."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.domain.errors import TurnkeeperError
from shared.domain.ids import OwnerId, RunId, SessionId, TurnId, WorkerId
from shared.sessions.records import Draft
from shared.turns.queue import CallEntry, OnBusy, OnWorkerLoss, Outcome

ATTEMPTS_MAX = 3
QUEUED_PER_SESSION = 4
QUEUED_PER_OWNER = 7
RUNNING_PER_OWNER = 2

#: What an operation answered, comparable between stores: no clock's time, no token.
Answer = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """An admission. ``has_deadline``: it has one, which passes when the machine says so."""

    turn: TurnId
    run: RunId
    session: SessionId
    owner: OwnerId
    key: str | None
    text: str
    on_busy: OnBusy
    on_worker_loss: OnWorkerLoss
    priority: int
    revision: str
    has_deadline: bool
    #: The number of the turn that it continues.
    resumes: int | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """One claim of one worker. ``forged``: with the right epoch and a token that nobody drew."""

    turn: TurnId
    session: SessionId
    epoch: int
    worker: WorkerId
    forged: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """One fenced write of a holder, as it is sent, and sent again after a lost answer."""

    kind: str
    hold: Hold
    commit_id: str
    drafts: Sequence[Draft]
    calls: Sequence[CallEntry] = ()
    stepped: bool = False
    outcome: Outcome = "completed"


@dataclass(frozen=True, slots=True)
class Taken:
    """A claim as it was answered."""

    turn: TurnId
    session: SessionId
    epoch: int
    number: int | None
    attempts: int
    suspect: bool
    lost: bool


@dataclass(frozen=True, slots=True)
class RowState:
    """A turn's row as stored; ``holder`` is None when nobody has a lease, passed or not."""

    id: TurnId
    session: SessionId
    position: int
    status: str
    number: int | None
    outcome: str | None
    code: str | None
    epoch: int
    holder: WorkerId | None
    attempts: int
    suspect: bool
    alive_losses: int
    priority: int


@dataclass(frozen=True, slots=True)
class HeadState:
    """A head as stored; ``open`` is (turn, epoch)."""

    id: SessionId
    seq: int
    revision: int
    next_position: int
    next_number: int
    open: tuple[TurnId, int] | None


@dataclass(frozen=True, slots=True)
class Item:
    """An inbox item as stored, and the turn that has claimed it."""

    session: SessionId
    id: str
    attempts: int
    turn: TurnId | None


@dataclass(frozen=True, slots=True)
class InboxState:
    """The items, where each turn comes from, and how many items wait by each head."""

    items: Sequence[Item]
    origins: Mapping[TurnId, str]
    waiting: Sequence[tuple[SessionId, int]]


@dataclass(frozen=True, slots=True)
class Stored:
    """All that a store holds for the machine's sessions, each part in a fixed order."""

    heads: Sequence[HeadState]
    rows: Sequence[RowState]
    #: (session, seq, turn's number, kind, text)
    records: Sequence[tuple[SessionId, int, int | None, str, str]]
    #: (turn, invocation, state, result)
    ledger: Sequence[tuple[TurnId, str, str, str | None]]
    #: Tails and digests are compared between stores and verified, but no model predicts them.
    tails: Sequence[tuple[SessionId, bytes]] = field(default=(), compare=False)
    digests: Sequence[bytes] = field(default=(), compare=False)


def refused(code: str, reason: str | None = None) -> Answer:
    """The answer of an operation that raised."""
    return ("refused", code, reason)


async def answered(call: Awaitable[Answer]) -> Answer:
    """A call's answer, or its typed error as one."""
    try:
        return await call
    except TurnkeeperError as error:
        return refused(error.code, error.fields.get("reason"))
