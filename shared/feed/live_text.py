"""What a process knows of one turn's text while it streams: entries go in as they come, followers look at the result."""

from __future__ import annotations

import asyncio
from typing import assert_never

from shared.feed.entries import Delta, Entry, Place, ResetReason, Snapshot


class Wakes:
    """Events of those who wait for news; level-triggered, so news between a look and a wait is never missed."""

    def __init__(self) -> None:
        self._events: set[asyncio.Event] = set()

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: asyncio.Event) -> None:
        """Set ``event`` at every news from now on."""
        self._events.add(event)

    def discard(self, event: asyncio.Event) -> None:
        """Leave ``event`` alone from now on."""
        self._events.discard(event)

    def wake(self) -> None:
        """Tell all of them."""
        for event in self._events:
            event.set()


class LiveText:
    """The current step's text of the newest attempt. Not thread-safe; one writer, any number of readers.

    ``generation`` grows whenever the text is no longer a continuation of what it was; ``reason`` says why. While
    ``is_whole`` is False a piece is missing and ``text`` must not be shown: the next snapshot mends it. ``base`` counts the
    code points that came with the generation's first entry, if that was a snapshot.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.place: Place | None = None
        self.generation = 0
        self.reason: ResetReason = "step"
        self.text = ""
        self.is_whole = False
        self.base = 0
        self.wakes = Wakes()

    def apply(self, entry: Entry) -> bool:
        """Take an entry in; False when it says nothing new: a lower epoch than seen, an earlier step, a repetition."""
        place = (entry.run, entry.step)
        if (
            entry.epoch > self.epoch
            or self.place is None
            or (entry.epoch == self.epoch and place > self.place)
        ):
            self._begin(entry, place)
            return True
        if entry.epoch < self.epoch or place < self.place:
            return False
        match entry:
            case Snapshot():
                return self._apply_snapshot(entry)
            case Delta():
                return self._apply_delta(entry)
            case _:
                assert_never(entry)

    def _begin(self, entry: Entry, place: Place) -> None:
        self._start("attempt" if entry.epoch > self.epoch > 0 else "step")
        self.epoch, self.place = entry.epoch, place
        match entry:
            case Snapshot(text=text):
                self.text, self.base, self.is_whole = text, len(text), True
            case Delta(text=text, offset=offset):
                self.is_whole = offset == 0
                self.text = text if self.is_whole else ""
            case _:
                assert_never(entry)

    def _apply_snapshot(self, entry: Snapshot) -> bool:
        if self.is_whole and entry.text.startswith(self.text):
            news = len(entry.text) > len(self.text)
        else:
            self._start("retry" if self.is_whole else "gap")
            self.base, self.is_whole, news = len(entry.text), True, True
        self.text = entry.text
        return news

    def _apply_delta(self, entry: Delta) -> bool:
        if not self.is_whole:
            return False
        known = len(self.text)
        overlap = known - entry.offset
        if overlap < 0 or not self.text.startswith(entry.text[:overlap], entry.offset):
            self.is_whole = False
            return True
        if overlap >= len(entry.text):
            return False
        self.text += entry.text[overlap:]
        return True

    def _start(self, reason: ResetReason) -> None:
        self.generation += 1
        self.reason = reason
        self.text, self.base = "", 0
