"""Which rings share a message and when it may leave: pure, the caller brings the time and the lock (DST-27, DST-28)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from shared.wakes.names import IDS_PER_MESSAGE, MESSAGE_INTERVAL_S, QUEUES, WAITING_IDS_MAX

NEVER: Final = float("inf")


class Message(NamedTuple):
    """What leaves for one queue at once."""

    queue: str
    ids: tuple[str, ...]


@dataclass(slots=True)
class _Line:
    """A queue's owed message: ids in the order they came, each once; a ring without ids owes a message too."""

    ids: dict[str, None] = field(default_factory=dict)
    owed: bool = False
    free_at: float = -NEVER


class Coalescer:
    """Owed messages of one producer.

    The first ring of a queue at rest is due at once; after it at most one message each ``interval_s`` leaves, with at most
    ``ids_per_message`` ids. At most ``waiting_max`` ids wait over all queues; past it a ring keeps its message and loses
    its ids, which are counted.
    """

    def __init__(
        self,
        *,
        interval_s: float = MESSAGE_INTERVAL_S,
        ids_per_message: int = IDS_PER_MESSAGE,
        waiting_max: int = WAITING_IDS_MAX,
    ) -> None:
        self._interval_s = interval_s
        self._ids_per_message = ids_per_message
        self._waiting_max = waiting_max
        self._waiting = 0
        self._lines = {queue: _Line() for queue in QUEUES}
        self.coalesced = 0
        self.dropped = 0

    def add(self, queue: str, ids: Sequence[str]) -> bool:
        """Owe a message to ``queue``; return whether none was owed before. An unknown queue is dropped and counted."""
        line = self._lines.get(queue)
        if line is None:
            self.dropped += 1
            return False
        for one in ids:
            if one in line.ids:
                continue
            if self._waiting >= self._waiting_max:
                self.dropped += 1
                continue
            line.ids[one] = None
            self._waiting += 1
        if line.owed:
            self.coalesced += 1
            return False
        line.owed = True
        return True

    def due_at(self) -> float:
        """Return when the next owed message may leave; ``NEVER`` if none is owed."""
        return min((line.free_at for line in self._lines.values() if line.owed), default=NEVER)

    def take(self, now: float) -> Message | None:
        """Remove and return the message that has been due for longest at ``now``; ids beyond its bound stay owed."""
        due = [
            (line.free_at, queue) for queue, line in self._lines.items() if line.owed and line.free_at <= now
        ]
        if not due:
            return None
        queue = min(due)[1]
        line = self._lines[queue]
        ids = tuple(islice(line.ids, self._ids_per_message))
        for one in ids:
            del line.ids[one]
        self._waiting -= len(ids)
        line.owed = bool(line.ids)
        line.free_at = now + self._interval_s
        return Message(queue, ids)

    def give_back(self, message: Message) -> None:
        """Owe a message that was not sent again, without its ids: by then a claim in fair order serves as well."""
        self._lines[message.queue].owed = True
        self.dropped += len(message.ids)

    def hurry(self) -> None:
        """Let all that is owed be due now, whatever the interval says."""
        for line in self._lines.values():
            line.free_at = -NEVER

    @property
    def waiting(self) -> int:
        """Ids that wait, over all queues."""
        return self._waiting
