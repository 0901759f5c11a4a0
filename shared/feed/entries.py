"""Values of the feed: entries of a turn's stream, and the events that a follower gets.

Offsets and lengths count Unicode code points of one step's text, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from shared.domain.ids import TurnId
from shared.sessions.records import Record
from shared.turns.queue import Outcome, Status

#: (run, step) of a turn; later ones are greater.
Place: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Delta:
    """An entry: the next piece of a step's text. ``epoch`` is the writer's (core 3)."""

    turn_id: TurnId
    epoch: int
    run: int
    step: int
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An entry: a step's text so far, from offset 0. One that does not continue what is known starts the step over."""

    turn_id: TurnId
    epoch: int
    run: int
    step: int
    text: str


Entry: TypeAlias = Delta | Snapshot

#: ``cursor``: beyond the head. ``gone``: older than what is kept. ``attempt``: another worker runs the step anew.
#: ``retry``: the same worker does. ``step``: another step's text begins. ``gap``: text was lost. ``reply``: the stored
#: reply is another text.
ResetReason: TypeAlias = Literal["cursor", "gone", "attempt", "retry", "step", "gap", "reply"]


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """A record of the log; durable, and its ``seq`` is the cursor to come back with."""

    record: Record


@dataclass(frozen=True, slots=True)
class DeltaEvent:
    """The next piece of a step's text; ``offset`` is where it stands in it. ``turn`` is the turn's number."""

    turn: int
    run: int
    step: int
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """The step's text so far; it replaces what the reader holds."""

    turn: int
    run: int
    step: int
    text: str


@dataclass(frozen=True, slots=True)
class ResetEvent:
    """What the reader holds no longer counts.

    With a place (``turn``, ``run``, ``step``): the text before this; that place's text follows. With ``after``: the cursor
    it came with; records follow from ``after``, and what it missed must be read anew.
    """

    reason: ResetReason
    turn: int | None = None
    run: int | None = None
    step: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class EndEvent:
    """The last event. Of a turn: how it stands; ``removed``: its session is gone (``turn_id`` None on a session)."""

    status: Status | Literal["removed"]
    turn_id: TurnId | None = None
    outcome: Outcome | None = None
    code: str | None = None


FollowEvent: TypeAlias = RecordEvent | DeltaEvent | SnapshotEvent | ResetEvent | EndEvent
