"""What one turn has still to write to its stream: pure state, planned and settled by the coalescer.

Every batch holds one delta or one snapshot of the current step. A snapshot is written each ``SNAPSHOT_ENTRIES`` entries or
``SNAPSHOT_S`` seconds and trims the stream to itself; it is written again when a batch failed or the stream vanished.
"""

from __future__ import annotations

from typing import Final

from shared.domain.bounds import clean_text
from shared.domain.ids import TurnId
from shared.feed.entries import Delta, Entry, Place, Snapshot

SNAPSHOT_ENTRIES: Final = 64
SNAPSHOT_S: Final = 1.0
#: Room in a stream for what entries cost beside their text.
OVERHEAD_BYTES: Final = 16 * 1024


class Outgoing:
    """The text of one turn and how much of it is written. Times are seconds of a monotonic clock.

    Holds at most ``max_bytes`` of UTF-8; a step with more text shows no more of it until its record comes, and
    ``dropped`` counts the pieces. A step's unwritten end is given up when the next step begins: its record has it.
    ``was_shown`` says whether anything of the turn was ever planned.
    """

    def __init__(self, turn_id: TurnId, epoch: int, *, max_bytes: int) -> None:
        self.turn_id = turn_id
        self.epoch = epoch
        self.dropped = 0
        self.was_shown = False
        self._max_bytes = max_bytes - OVERHEAD_BYTES
        self._place: Place | None = None
        self._parts: list[str] = []
        self._new: list[str] = []
        self._bytes = self._new_bytes = 0
        self._written = 0
        self._is_full = False
        self._needs_snapshot = False
        self._stream_bytes = self._stream_entries = 0
        self._snapshot_at = 0.0

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write."""
        return self._place is not None and (bool(self._new) or self._needs_snapshot)

    def begin(self, run: int, step: int) -> None:
        """Start the step's text, or start it over; earlier steps are refused silently."""
        place = (run, step)
        if self._place is not None and place < self._place:
            return
        started_over = place == self._place and bool(self._parts or self._new)
        self._move_to(place)
        # An empty snapshot is how followers learn that the text they hold is void.
        self._needs_snapshot = self._needs_snapshot or started_over

    def push(self, run: int, step: int, text: str) -> None:
        """Add a piece of text."""
        place = (run, step)
        if self._place is None or place > self._place:
            self._move_to(place)
        elif place < self._place:
            self.dropped += 1
            return
        text = clean_text(text)[0]
        size = len(text) if text.isascii() else len(text.encode())
        if self._is_full or self._bytes + self._new_bytes + size > self._max_bytes:
            self._is_full = True
            self.dropped += 1
        elif text:
            self._new.append(text)
            self._new_bytes += size

    def plan(self, now: float) -> Entry | None:
        """Return the entry to write now, if any, and take it as written; :meth:`fail` takes that back."""
        if self._place is None or not self.is_dirty:
            return None
        self.was_shown = True
        run, step = self._place
        new, new_bytes = "".join(self._new), self._new_bytes
        self._new, self._new_bytes = [], 0
        if new:
            self._parts.append(new)
            self._bytes += new_bytes
        offset, self._written = self._written, self._written + len(new)
        if self._is_snapshot_due(now, new_bytes):
            text = "".join(self._parts)
            self._parts = [text] if text else []
            self._needs_snapshot, self._snapshot_at = False, now
            self._stream_bytes, self._stream_entries = self._bytes, 0
            return Snapshot(self.turn_id, self.epoch, run, step, text)
        self._stream_bytes += new_bytes
        self._stream_entries += 1
        return Delta(self.turn_id, self.epoch, run, step, offset, new)

    def fail(self) -> None:
        """The last planned entry may not have arrived, or the stream vanished: the next one is a snapshot."""
        self._needs_snapshot = True

    def take_dropped(self) -> int:
        """Return how many pieces were given up since the last look."""
        dropped, self.dropped = self.dropped, 0
        return dropped

    def _is_snapshot_due(self, now: float, new_bytes: int) -> bool:
        if self._stream_entries == 0 and not self._stream_bytes:
            self._snapshot_at = (
                now  # the first entry of a stream: the second that a snapshot may take begins here
            )
        return (
            self._needs_snapshot
            or self._stream_entries >= SNAPSHOT_ENTRIES
            or now - self._snapshot_at >= SNAPSHOT_S
            or self._stream_bytes + new_bytes > self._max_bytes
        )

    def _move_to(self, place: Place) -> None:
        self._place = place
        self._parts, self._new = [], []
        self._bytes = self._new_bytes = self._written = 0
        self._is_full = False
