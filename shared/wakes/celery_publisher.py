"""The wake publisher of any broker that Celery serves: rings from any thread, sent through kombu by one thread of its own."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from shared.domain.errors import BrokerUnavailable
from shared.wakes.broker import PUBLISH_BOUND_S, KombuSender
from shared.wakes.coalescer import NEVER, Coalescer, Message
from shared.wakes.outbox import Outbox
from shared.wakes.port import WakeStats


class WakeSender(Protocol):
    """Sends one message; used by one thread."""

    def send(self, queue: str, ids: Sequence[str]) -> None:
        """Send, or raise ``BrokerUnavailable`` within the bound it was made with."""
        ...

    def close(self) -> None: ...


class CeleryWakePublisher:
    """A ``WakePublisher`` over Celery's queues on Redis, Valkey or RabbitMQ.

    ``ring`` only notes the wake under a lock that is held for microseconds; a daemon thread, started by the first ring,
    sends (DST-05, DST-27, DST-28).
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
        self._outbox = Outbox(coalescer, rng)
        self._changed = threading.Condition(threading.Lock())
        self._sending: threading.Thread | None = None

    def ring(self, queue: str, ids: Sequence[str] = ()) -> None:
        with self._changed:
            if not self._outbox.add(queue, ids):
                return
            if self._sending is None:
                self._sending = threading.Thread(target=self._send_all, name="wakes", daemon=True)
                self._sending.start()
            self._changed.notify()

    def stats(self) -> WakeStats:
        with self._changed:
            return self._outbox.stats()

    def close(self, timeout: float) -> None:
        """Send what is owed within ``timeout`` seconds, at most one attempt if the broker is away, then stop."""
        with self._changed:
            self._outbox.close(time.monotonic() + timeout)
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
                with self._changed:
                    self._outbox.note_failed(message, error, time.monotonic())
            else:
                with self._changed:
                    self._outbox.note_sent(message)
        sender.close()

    def _next_message(self) -> Message | None:
        """Wait for the next message that may leave; ``None`` ends the thread."""
        with self._changed:
            while True:
                now = time.monotonic()
                if self._outbox.is_over(now):
                    return None
                if (message := self._outbox.take(now)) is not None:
                    return message
                due_at = self._outbox.due_at()
                self._changed.wait(None if due_at == NEVER else due_at - now)
