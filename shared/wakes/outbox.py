"""What a publisher owes, when it may try to send it, and what came of it: no lock, no clock and no I/O of its own."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Sequence
from typing import Final

from shared.domain.errors import BrokerUnavailable
from shared.wakes.coalescer import NEVER, Coalescer, Message
from shared.wakes.port import WakeStats

_log: Final = logging.getLogger(__name__)

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0


class Outbox:
    """Owed wakes of one publisher. Times are of a monotonic clock, in seconds; one caller at a time.

    A message that the broker does not take stays owed without its ids, and is tried again after a pause that doubles from
    50 ms to 1 s with jitter, so that an absent broker costs one bounded attempt a pause (DST-05). Once closing, what is owed
    is due at once, and given up at the first failure or when the time is over.
    """

    def __init__(self, coalescer: Coalescer | None = None, rng: random.Random | None = None) -> None:
        self._owed = coalescer or Coalescer()
        self._rng = rng or random.Random()
        self._close_by: float | None = None
        self._retry_at = -NEVER
        self._failures = 0
        self._published: Counter[str] = Counter()
        self._failed = 0
        self._late = 0

    def add(self, queue: str, ids: Sequence[str]) -> bool:
        """Owe a message; return whether there is news for whoever sends. Rings after the close are dropped and counted."""
        if self._close_by is not None:
            self._late += 1
            return False
        return self._owed.add(queue, ids)

    def take(self, now: float) -> Message | None:
        """Remove and return a message that may leave now, if there is one."""
        return self._owed.take(now) if self.due_at() <= now else None

    def due_at(self) -> float:
        """Return when the next message may leave; ``NEVER`` if none is owed."""
        return max(self._owed.due_at(), self._retry_at)

    def is_over(self, now: float) -> bool:
        """Say whether a closed outbox has nothing more to send."""
        if self._close_by is None:
            return False
        self._owed.hurry()
        gave_up = self._failures > 0 and self._retry_at > now
        return self._owed.due_at() == NEVER or now >= self._close_by or gave_up

    def close(self, by: float) -> None:
        """Take no more, and try once more to send what is owed, until ``by``. The first call counts."""
        if self._close_by is None:
            self._close_by = by
            self._owed.hurry()
            self._retry_at = -NEVER

    def note_sent(self, message: Message) -> None:
        """The broker took a message."""
        self._published[message.queue] += 1
        recovered, self._failures = self._failures, 0
        if recovered:
            _log.warning("broker takes wakes again", extra={"failures": recovered})

    def note_failed(self, message: Message, error: BrokerUnavailable, now: float) -> None:
        """The broker did not take a message, or nobody knows."""
        self._owed.give_back(message)
        self._failed += 1
        self._failures += 1
        pause = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(self._failures - 1, 10))
        self._retry_at = now + pause * self._rng.uniform(0.5, 1.0)
        if self._failures == 1:
            _log.warning("broker takes no wakes: %s", error)

    def stats(self) -> WakeStats:
        """Return what was done so far."""
        return WakeStats(
            published=self._published.total(),
            coalesced=self._owed.coalesced,
            dropped=self._owed.dropped + self._late,
            failed=self._failed,
            broker_ok=self._failures == 0,
            published_by_queue=dict(self._published),
        )
