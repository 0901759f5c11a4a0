"""The rows of the reference model: a session and a turn in plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId
from tests.stateful.values import ATTEMPTS_MAX, Asked, HeadState, Hold, RowState

FINISHED = ("ended", "cancelled", "refused", "expired")
LIVE = ("ready", "running", "waiting")
SETTLED = ("done", "failed", "unknown")
ALIVE_LOSSES_FREE = 10


@dataclass(slots=True)
class Session:
    """A session as the model knows it; ``log`` holds (turn's number, kind, text)."""

    id: SessionId
    owner: OwnerId
    revision: int = 0
    next_position: int = 1
    next_number: int = 1
    open: Hold | None = None
    last_commit: tuple[str, int] | None = None
    log: list[tuple[int | None, str, str]] = field(default_factory=list)

    def append(self, number: int | None, records: Sequence[tuple[str, str]]) -> int:
        self.log += [(number, kind, text) for kind, text in records]
        self.revision += 1
        return len(self.log)


@dataclass(slots=True)
class Turn:
    """A turn as the model knows it. ``due`` is its place in the order of due times, None before its time.

    ``passed``: when its lease did, None while it is held. ``unleased``: held without a lease, until it ends.
    """

    asked: Asked
    session: Session
    position: int
    after: int
    status: str
    due: int | None
    priority: int
    number: int | None = None
    outcome: str | None = None
    code: str | None = None
    epoch: int = 0
    holder: WorkerId | None = None
    passed: int | None = None
    abandoned: bool = False
    late: bool = False
    unleased: bool = False
    attempts: int = 0
    suspect: bool = False
    alive_losses: int = 0
    replied: str | None = None
    #: What a resume was refused with as it opened.
    refusal: tuple[object, ...] | None = None
    end: tuple[str, int] | None = None
    ledger: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    @property
    def id(self) -> TurnId:
        return self.asked.turn

    @property
    def finished(self) -> bool:
        return self.status in FINISHED

    @property
    def is_owed(self) -> bool:
        return self.status in ("queued", "ready")

    @property
    def is_open(self) -> bool:
        return self.session.open is not None and self.session.open.turn == self.id

    @property
    def dead(self) -> bool:
        counts = self.suspect or self.alive_losses >= ALIVE_LOSSES_FREE
        spent = counts and self.attempts >= ATTEMPTS_MAX - 1
        never = self.asked.on_worker_loss == "interrupt" or spent or self.abandoned
        return self.status == "running" and self.passed is not None and never

    def free(self) -> None:
        self.holder, self.passed, self.abandoned, self.unleased = None, None, False, False

    def finish(self, status: str, outcome: str | None = None, code: str | None = None) -> None:
        self.status, self.outcome, self.code = status, outcome, code
        self.free()

    def loss(self) -> str:
        """Why a fence of this turn does not hold."""
        if "cancelled" in (self.status, self.outcome):
            return "cancelled"
        if self.outcome == "interrupted":
            return "interrupted"
        return "ended" if self.finished else "lost"


def head_state(session: Session) -> HeadState:
    """Return what is stored of a head."""
    opened = None if session.open is None else (session.open.turn, session.open.epoch)
    return HeadState(
        session.id,
        len(session.log),
        session.revision,
        session.next_position,
        session.next_number,
        opened,
    )


def row_state(turn: Turn) -> RowState:
    """Return what is stored of a row."""
    return RowState(
        turn.id,
        turn.session.id,
        turn.position,
        turn.status,
        turn.number,
        turn.outcome,
        turn.code,
        turn.epoch,
        turn.holder,
        turn.attempts,
        turn.suspect,
        turn.alive_losses,
        turn.priority,
    )
