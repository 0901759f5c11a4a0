"""The wake publisher of a process with an event loop and a Redis broker: the loop itself sends, so that a wake waits for no thread."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from shared.domain.errors import BrokerUnavailable
from shared.wakes.coalescer import NEVER, Coalescer, Message
from shared.wakes.outbox import Outbox
from shared.wakes.port import WakeStats


class LoopSender(Protocol):
    """Sends one message; used by one task."""

    async def send(self, queue: str, ids: Sequence[str]) -> None:
        """Send, or raise ``BrokerUnavailable`` within the bound it was made with."""
        ...

    async def close(self) -> None: ...


class LoopWakePublisher:
    """A ``WakePublisher`` that sends from the event loop in which it is made, one message after the other.

    A ring by that loop notes the wake for its task; one by another thread does so with the loop's next step. Nobody waits
    for the broker but that task, and it never for longer than the sender's bound (DST-05, DST-27, DST-28).
    """

    def __init__(
        self, sender: LoopSender, *, coalescer: Coalescer | None = None, rng: random.Random | None = None
    ) -> None:
        self._sender = sender
        self._outbox = Outbox(coalescer, rng)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._changed = asyncio.Event()
        self._ended = threading.Event()
        self._sending: asyncio.Task[None] | None = None

    def ring(self, queue: str, ids: Sequence[str] = ()) -> None:
        if threading.get_ident() != self._thread:
            with suppress(RuntimeError):  # the loop has ended: sweeps find what this was about
                self._loop.call_soon_threadsafe(self.ring, queue, tuple(ids))
            return
        if not self._outbox.add(queue, ids):
            return
        if self._sending is None:
            self._sending = self._loop.create_task(self._send_all(), name="wakes")
        self._changed.set()

    def stats(self) -> WakeStats:
        return self._outbox.stats()

    def close(self, timeout: float) -> None:
        """Send what is owed within ``timeout`` seconds, at most one attempt if the broker is away, then stop.

        For another thread: the loop cannot send while it waits here.
        """
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._begin_close, time.monotonic() + timeout)
            self._ended.wait(timeout)

    def _begin_close(self, by: float) -> None:
        self._outbox.close(by)
        self._changed.set()
        if self._sending is None:
            self._ended.set()

    async def _send_all(self) -> None:
        try:
            while (message := await self._next_message()) is not None:
                try:
                    await self._sender.send(message.queue, message.ids)
                except BrokerUnavailable as error:
                    self._outbox.note_failed(message, error, time.monotonic())
                else:
                    self._outbox.note_sent(message)
        finally:
            await self._sender.close()
            self._ended.set()

    async def _next_message(self) -> Message | None:
        """Wait for the next message that may leave; ``None`` ends the task."""
        while True:
            self._changed.clear()
            now = time.monotonic()
            if self._outbox.is_over(now):
                return None
            if (message := self._outbox.take(now)) is not None:
                return message
            due_at = self._outbox.due_at()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if due_at == NEVER else due_at - now):
                    await self._changed.wait()
