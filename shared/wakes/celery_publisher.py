"""The wake publisher: rings from any thread, coalesced, sent to Celery's queues by one thread of its own."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from shared.domain.errors import BrokerUnavailable
from shared.wakes.broker import KombuSender
from shared.wakes.coalescer import NEVER, Coalescer, Message
from shared.wakes.port import WakeStats

_log: Final = logging.getLogger(__name__)

PUBLISH_BOUND_S: Final = 0.25
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0


class WakeSender(Protocol):
    """Sends one message; used by one thread."""

    def send(self, queue: str, ids: Sequence[str]) -> None:
        """Send, or raise ``BrokerUnavailable`` within the bound it was made with."""
        ...

    def close(self) -> None: ...


class CeleryWakePublisher:
    """A ``WakePublisher`` over Celery's queues on Redis, Valkey or RabbitMQ.

    ``ring`` only notes the wake under a lock that is held for microseconds; a daemon thread, started by the first ring,
    sends. A message that the broker does not take stays owed without its ids, and is tried again after a pause that
    doubles from 50 ms to 1 s with jitter, so an absent broker costs one bounded attempt a pause (DST-05, DST-27, DST-28).
    """

    def __init__(
        self,
        broker_url: str,
        *,
        bound_s: float = PUBLISH_BOUND_S,
        coalescer: Coalescer | None = None,
        connect: Callable[[], WakeSender] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._connect = connect or (lambda: KombuSender(broker_url, bound_s=bound_s))
        self._owed = coalescer or Coalescer()
        self._rng = rng or random.Random()
        self._changed = threading.Condition(threading.Lock())
        self._sending: threading.Thread | None = None
        self._close_by: float | None = None
        self._retry_at = -NEVER
        self._failures = 0
        self._published: Counter[str] = Counter()
        self._failed = 0
        self._late = 0

    def ring(self, queue: str, ids: Sequence[str] = ()) -> None:
        with self._changed:
            if self._close_by is not None:
                self._late += 1
                return
            if not self._owed.add(queue, ids):
                return
            if self._sending is None:
                self._sending = threading.Thread(target=self._send_all, name="wakes", daemon=True)
                self._sending.start()
            self._changed.notify()

    def stats(self) -> WakeStats:
        with self._changed:
            return WakeStats(
                published=self._published.total(),
                coalesced=self._owed.coalesced,
                dropped=self._owed.dropped + self._late,
                failed=self._failed,
                broker_ok=self._failures == 0,
                published_by_queue=dict(self._published),
            )

    def close(self, timeout: float) -> None:
        """Send what is owed within ``timeout`` seconds, at most one attempt if the broker is away, then stop."""
        with self._changed:
            if self._close_by is None:
                self._close_by = time.monotonic() + timeout
                self._owed.hurry()
                self._retry_at = -NEVER
                self._changed.notify()
            sending = self._sending
        if sending is not None:
            sending.join(timeout)

    def _send_all(self) -> None:
        sender = self._connect()
        while (message := self._next_message()) is not None:
            try:
                sender.send(message.queue, message.ids)
            except BrokerUnavailable as error:
                self._note_failure(message, error)
            else:
                self._note_success(message)
        sender.close()

    def _next_message(self) -> Message | None:
        """Wait for the next message that may leave; ``None`` ends the thread."""
        with self._changed:
            while True:
                now = time.monotonic()
                due_at = max(self._owed.due_at(), self._retry_at)
                if self._close_by is not None:
                    self._owed.hurry()
                    gave_up = self._failures > 0 and self._retry_at > now
                    if self._owed.due_at() == NEVER or now >= self._close_by or gave_up:
                        return None
                if due_at <= now:
                    return self._owed.take(now)
                self._changed.wait(None if due_at == NEVER else due_at - now)

    def _note_success(self, message: Message) -> None:
        with self._changed:
            self._published[message.queue] += 1
            recovered, self._failures = self._failures, 0
        if recovered:
            _log.warning("broker takes wakes again", extra={"failures": recovered})

    def _note_failure(self, message: Message, error: BrokerUnavailable) -> None:
        with self._changed:
            self._owed.give_back(message)
            self._failed += 1
            self._failures += 1
            first = self._failures == 1
            pause = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(self._failures - 1, 10))
            self._retry_at = time.monotonic() + pause * self._rng.uniform(0.5, 1.0)
        if first:
            _log.warning("broker takes no wakes: %s", error)
