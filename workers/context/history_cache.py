"""What a process remembers of the sessions whose turns it ran last, so that it does not read and fold their logs again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.domain.canonical import first_tail
from shared.domain.ids import SessionId
from workers.context.history import History

HISTORIES_MAX_BYTES: Final = 32 * 1024 * 1024
#: What a session takes beside its turns.
_SESSION_BYTES: Final = 1_024


@dataclass(slots=True)
class HistoryCounts:
    """Figures of the process since its start: logs whose history was known, and those that had to be read."""

    found: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class _Kept:
    tail: bytes
    history: History
    size_bytes: int


class HistoryCache:
    """Keeps histories by session, each for exactly one tail of its log. Belongs to one event loop.

    A tail is a digest of all that a log holds. Whatever was written since, by whomever, gave the log another one, and so it
    needs no notice of anybody: what was kept is not found. At most ``bytes_max`` bytes are kept, by an estimate that is not
    below what they take; what was kept longest ago goes first.
    """

    def __init__(self, bytes_max: int = HISTORIES_MAX_BYTES) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.counts = HistoryCounts()
        self._kept: dict[SessionId, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, session: SessionId, tail: bytes) -> History | None:
        """Return the history of a log that ends in ``tail``, when it is known, and forget it: a turn is to follow."""
        kept = self._forget(session)
        if kept is not None and kept.tail == tail:
            self.counts.found += 1
            return kept.history
        if tail == first_tail(session):
            self.counts.found += 1
            return History(is_complete=True)
        self.counts.missed += 1
        return None

    def keep(self, session: SessionId, tail: bytes, history: History) -> None:
        """Keep the history of a log that ends in ``tail``; one that does not fit by itself is not kept."""
        self._forget(session)
        kept = _Kept(tail, history, _size_bytes(history))
        if kept.size_bytes > self.bytes_max:
            return
        self._kept[session] = kept
        self.size_bytes += kept.size_bytes
        while self.size_bytes > self.bytes_max:
            self._forget(next(iter(self._kept)))

    def _forget(self, session: SessionId) -> _Kept | None:
        kept = self._kept.pop(session, None)
        if kept is not None:
            self.size_bytes -= kept.size_bytes
        return kept


def _size_bytes(history: History) -> int:
    return _SESSION_BYTES + sum(turn.size_bytes for turn in history.turns)
