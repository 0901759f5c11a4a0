"""What one follower shows of a turn: records and live text become one order of events. Pure; no waiting, no reading.

The reader's rule: a reset voids the text it holds, a snapshot replaces it, a delta adds to it. Then, at ``turn.reply``, it
holds the stored reply: what the feed lost is shown from the record just before it (API-06).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from shared.domain.ids import TurnId
from shared.feed.entries import DeltaEvent, FollowEvent, Place, RecordEvent, ResetEvent, SnapshotEvent
from shared.feed.live_text import LiveText
from shared.sessions.records import Record

#: Kinds that a follower must read to do its work, whatever it shows.
MERGE_KINDS: Final = frozenset(
    {"turn.started", "step.started", "step.ended", "memory.message", "turn.reply", "turn.ended"}
)

_BEFORE_ALL: Final[Place] = (-1, -1)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the reader holds: the text of a place, as of a generation of the live text."""

    generation: int
    place: Place
    text: str


class TurnMerge:
    """One turn as one follower shows it.

    ``is_resumed``: the follower came in after the turn's start, so its reader may hold text from before and is shown a
    snapshot first. ``began_live``: the turn began before its eyes, so that all text it ever shows is new to the reader. ``completes``: the end of the reply's text is shown from its record; off where no text was or will be
    shown (no feed, or a turn that is replayed whole).
    """

    def __init__(self, number: int, *, is_resumed: bool, completes: bool, began_live: bool = False) -> None:
        self.number = number
        self.is_resumed = is_resumed
        self.began_live = began_live
        self.completes = completes
        self.is_replied = False
        self._is_late = False
        self._shown: _Shown | None = None
        self._begun = _BEFORE_ALL
        self._settled = _BEFORE_ALL
        self._run = 0
        self._message: tuple[Place, str] | None = None

    def join(self, live: LiveText) -> None:
        """Say that live text is followed from now on; what it holds already was streamed before the reader came."""
        self.completes = True
        self._is_late = live.is_whole and bool(live.text)

    def must_read(self, live: LiveText) -> bool:
        """Whether text waits whose step the follower has not seen begin: records that come before it are due first."""
        known = max(self._begun, self._shown.place if self._shown is not None else _BEFORE_ALL)
        return live.place is not None and live.place > known and self._is_showable(live)

    def of_live(self, live: LiveText) -> Iterator[FollowEvent]:
        """Yield what the live text says beyond what was shown."""
        place = live.place
        if place is None or not self._is_showable(live):
            return
        shown = self._shown
        if shown is not None and shown.generation == live.generation:
            if len(live.text) > len(shown.text):
                yield self._delta(place, len(shown.text), live.text)
        else:
            yield from self._begin(place, live)
        self._shown = _Shown(live.generation, place, live.text)

    def of_record(self, record: Record) -> Iterator[FollowEvent]:
        """Yield the record, after the text that must stand before it."""
        match record.kind:
            case "turn.started":
                self.is_resumed = False
            case "step.started":
                self._begun = max(self._begun, self._note_run(_place_of(record.data)))
            case "memory.message" if self.completes:
                yield from self._complete_step(record.data)
            case "step.ended":
                self._settled = max(self._settled, self._note_run(_place_of(record.data)))
            case "turn.reply":
                if self.completes:
                    yield from self._complete_reply(record.data)
                self.is_replied = True
            case _:
                pass
        yield RecordEvent(record)

    def _is_showable(self, live: LiveText) -> bool:
        return live.is_whole and live.place is not None and live.place > self._settled and not self.is_replied

    def _begin(self, place: Place, live: LiveText) -> Iterator[FollowEvent]:
        """Show a text that does not continue what was shown."""
        if self._shown is None:
            came_late = not self.began_live and (self._is_late or bool(live.base))
            is_partial = self.is_resumed or came_late
        else:
            is_partial = bool(live.base)
            reason = "step" if place != self._shown.place and live.reason != "attempt" else live.reason
            yield ResetEvent(reason, self.number, *place)
        if is_partial:
            yield SnapshotEvent(self.number, *place, live.text)
        elif live.text:
            yield self._delta(place, 0, live.text)

    def _complete_step(self, data: Any) -> Iterator[FollowEvent]:
        """A step's message is stored: what was shown of it becomes whole, so that no text stays cut in the middle."""
        place, text = self._note_run(_place_of(data)), _text_of(data)
        self._message = (place, text)
        self._settled = max(self._settled, place)
        if self._shown is not None and self._shown.place == place:
            yield from self._complete(place, text)

    def _complete_reply(self, data: Any) -> Iterator[FollowEvent]:
        step, text = data.get("step"), data.get("text")
        message_place, message = self._message or (None, "")
        place = (self._run, step) if isinstance(step, int) else None
        if text is None and place is not None and place == message_place:
            text = message
        if isinstance(text, str):
            yield from self._complete(place, text)

    def _complete(self, place: Place | None, text: str) -> Iterator[FollowEvent]:
        """Make what the reader holds equal ``text``; ``place`` is None for a text that no step of the model wrote."""
        shown = self._shown
        target = place or (shown.place if shown is not None else (self._run, 0))
        if shown is None:
            if self.is_resumed:
                yield SnapshotEvent(self.number, *target, text)
            elif text:
                yield self._delta(target, 0, text)
        elif target == shown.place and text.startswith(shown.text):
            if len(text) > len(shown.text):
                yield self._delta(target, len(shown.text), text)
        else:
            yield ResetEvent("reply", self.number, *target)
            if text:
                yield self._delta(target, 0, text)
        self._shown = _Shown(shown.generation if shown is not None else -1, target, text)

    def _delta(self, place: Place, offset: int, text: str) -> DeltaEvent:
        return DeltaEvent(self.number, *place, offset, text[offset:])

    def _note_run(self, place: Place) -> Place:
        self._run = max(self._run, place[0])
        return place


class SessionMerge:
    """A session as one follower shows it: all records, and the text of the turn that is open.

    ``head_seq`` is the head when the follower came: a turn that started and replied up to it is replayed without text.
    ``turn`` limits it to one turn; then the text is always shown, also of a turn that is over.
    """

    def __init__(self, *, head_seq: int, has_feed: bool, turn: TurnId | None = None) -> None:
        self._head_seq = head_seq
        self._has_feed = has_feed
        self._only = turn
        self._merge: TurnMerge | None = None
        self.live_turn: TurnId | None = None
        self.ended: Record | None = None

    @property
    def number(self) -> int | None:
        """The number of the turn at hand."""
        return self._merge.number if self._merge is not None else None

    @property
    def turn(self) -> TurnMerge | None:
        """The turn at hand: the one that is open, or was the last to be."""
        return self._merge

    def adopt(self, turn_id: TurnId | None, number: int) -> None:
        """Say that this turn stands at the cursor, started before it; ``turn_id`` is None when it is not live."""
        self.live_turn = turn_id
        self._merge = TurnMerge(number, is_resumed=True, completes=self._has_feed)

    def of_record(self, record: Record) -> Iterator[FollowEvent]:
        """Yield what a record gives; nothing when it is of another turn than the one followed."""
        if record.turn is None:
            if self._only is None:
                yield RecordEvent(record)
            return
        merge = self._merge_of(record)
        if merge is None:
            return
        yield from merge.of_record(record)
        if record.kind == "turn.ended":
            self.live_turn = None
            self.ended = record

    def of_live(self, live: LiveText) -> Iterator[FollowEvent]:
        """Yield what the live text of the turn at hand gives."""
        if self._merge is not None:
            yield from self._merge.of_live(live)

    def _merge_of(self, record: Record) -> TurnMerge | None:
        number = record.turn
        if number is None or (self._merge is not None and self._merge.number == number):
            return self._merge
        turn_id = _turn_id_of(record)
        if self._only is not None and turn_id != self._only:
            return None
        began_live = turn_id is not None and record.seq > self._head_seq
        is_replay = self._only is None and turn_id is not None and not began_live
        self._merge = TurnMerge(
            number,
            is_resumed=turn_id is None,
            completes=self._has_feed and not is_replay,
            began_live=began_live,
        )
        self.live_turn = turn_id
        return self._merge


def _turn_id_of(record: Record) -> TurnId | None:
    """The turn's id, which only its first record holds."""
    if record.kind != "turn.started":
        return None
    return TurnId(UUID(str(record.data["turn_id"])))


def _place_of(data: Any) -> Place:
    return int(data["run"]), int(data["step"])


def _text_of(data: Any) -> str:
    text = data.get("text")
    return text if isinstance(text, str) else ""
