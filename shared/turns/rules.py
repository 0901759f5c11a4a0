"""The pure rules of the turn queue: fences, losses, promotion and fair shares. The SQL of migration 0001 says the same.

The twin judges with these, so that a rule reads here without its locks; docs/core.md gives their reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol, TypeVar
from uuid import UUID

from shared.leases.fence import Fence
from shared.turns.queue import ALIVE_LOSSES_FREE, FINISHED

LIVE: Final = frozenset({"ready", "running", "waiting"})
#: With no attempt for this long, a lost turn is ended instead of taken over.
ABANDONED_AFTER: Final = timedelta(hours=1)
#: How many owners one claim serves, and how many it looks at to find them.
OWNERS_SERVED_MAX: Final = 16
OWNERS_LOOKED_AT_MAX: Final = 256


class TurnState(Protocol):
    """What the rules look at in a turn's row."""

    @property
    def position(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def outcome(self) -> str | None: ...
    @property
    def on_worker_loss(self) -> str: ...
    @property
    def attempts(self) -> int: ...
    @property
    def suspect(self) -> bool: ...
    @property
    def alive_losses(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def token(self) -> UUID | None: ...
    @property
    def expires_at(self) -> datetime | None: ...


T = TypeVar("T", bound=TurnState)


@dataclass(frozen=True, slots=True)
class Losses:
    """A row's counters after one more loss."""

    attempts: int
    suspect: bool
    alive_losses: int


def is_lost(turn: TurnState, now: datetime) -> bool:
    """Say whether the row runs past its lease. At the very end of the lease it is still held."""
    return turn.status == "running" and turn.expires_at is not None and turn.expires_at < now


def is_spent(turn: TurnState, attempts_max: int) -> bool:
    """Say whether one more loss would be the last that the attempts allow."""
    counts = turn.suspect or turn.alive_losses >= ALIVE_LOSSES_FREE
    return counts and turn.attempts >= attempts_max - 1


def is_abandoned(turn: TurnState, now: datetime, started_at: datetime) -> bool:
    """Say whether the lease passed so long ago that nobody tried again; before the store's start nobody could."""
    return turn.expires_at is not None and max(turn.expires_at, started_at) < now - ABANDONED_AFTER


def is_dead(turn: TurnState, now: datetime, attempts_max: int, started_at: datetime) -> bool:
    """Say whether nobody may go on with the row: lost, and its policy, attempts or age forbid another try."""
    return is_lost(turn, now) and (
        turn.on_worker_loss == "interrupt"
        or is_spent(turn, attempts_max)
        or is_abandoned(turn, now, started_at)
    )


def may_take_over(turn: TurnState, now: datetime, attempts_max: int, started_at: datetime) -> bool:
    """Say whether a claim may take the row from its lost holder."""
    return is_lost(turn, now) and not is_dead(turn, now, attempts_max, started_at)


def count_loss(turn: TurnState, *, holder_is_gone: bool) -> Losses:
    """Return the counters after a loss that a takeover found.

    Of a holder whose process is gone, the first loss is free and marks the row suspect; of one that lives, the first
    ``ALIVE_LOSSES_FREE`` in a row are free.
    """
    if holder_is_gone:
        return Losses(turn.attempts + int(turn.suspect), True, 0)
    counted = int(turn.alive_losses >= ALIVE_LOSSES_FREE)
    return Losses(turn.attempts + counted, turn.suspect, turn.alive_losses + 1)


def fence_holds(turn: TurnState | None, fence: Fence, now: datetime) -> bool:
    """Say whether this fence may write now: the row runs under it and its lease has not passed."""
    return (
        turn is not None
        and turn.status == "running"
        and turn.epoch == fence.epoch
        and turn.token == fence.token
        and turn.expires_at is not None
        and turn.expires_at >= now
    )


def loss_reason(turn: TurnState | None) -> str:
    """Say why a fence does not hold: ``removed``, ``cancelled``, ``interrupted``, ``ended``, or merely ``lost``."""
    if turn is None:
        return "removed"
    if turn.status == "cancelled" or turn.outcome == "cancelled":
        return "cancelled"
    if turn.outcome == "interrupted":
        return "interrupted"
    return "ended" if turn.status in FINISHED else "lost"


def next_to_promote(turns: Iterable[T]) -> T | None:
    """Return the queued row of a session that becomes ready: the first unfinished one, when none is live."""
    unfinished = sorted((t for t in turns if t.status not in FINISHED), key=lambda t: t.position)
    if not unfinished or any(t.status in LIVE for t in unfinished):
        return None
    return unfinished[0]


def rotate_owners(owners: Iterable[str], cursor: str) -> Sequence[str]:
    """Return the owners in a claim's order: those after the cursor, then round to the cursor itself."""
    ordered = sorted(set(owners))
    ahead = [owner for owner in ordered if owner > cursor]
    return (ahead + [owner for owner in ordered if owner <= cursor])[:OWNERS_LOOKED_AT_MAX]


def even_share(places: int, owners: int) -> int:
    """Return how many of the places the first of ``owners`` may have: an even share, rounded up."""
    return -(-places // owners)
