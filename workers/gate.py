"""The consumer gate over kombu: stops and starts consuming per queue, in the thread of Celery's hub.

A shut queue is cancelled at the broker and stays in the consumer's list, so that ``inspect active_queues`` shows it. Every
connection brings a new consumer, which begins with all its queues consumed; the gate then applies what was last said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

_log: Final = logging.getLogger(__name__)


class HubGate:
    """A :class:`workers.parts.ConsumerGate`. ``shut`` and ``open`` come from any thread, the rest from the hub's."""

    def __init__(self) -> None:
        self._shut: frozenset[str] = frozenset()
        self._consumer: Any = None
        self._call_in_hub: Callable[[Callable[[], None]], object] | None = None

    def shut(self, queue: str) -> None:
        self._shut = self._shut | {queue}
        self._apply_soon()

    def open(self, queue: str) -> None:
        self._shut = self._shut - {queue}
        self._apply_soon()

    def attach(self, consumer: Any) -> None:
        """Take the Celery consumer of a connection that is being set up."""
        self._consumer = consumer

    def attach_hub(self, hub: Any) -> None:
        """Take the hub of that connection; the gate is applied at its first step, when the queues are consumed."""
        self._call_in_hub = hub.call_soon
        self._apply_soon()

    def detach(self) -> None:
        """Forget consumer and hub: the worker stops."""
        self._consumer = self._call_in_hub = None

    def _apply_soon(self) -> None:
        # kombu's ``call_soon`` takes calls from any thread and wakes the hub.
        if (call_in_hub := self._call_in_hub) is not None:
            call_in_hub(self._apply)

    def _apply(self) -> None:
        consumer = self._consumer
        if consumer is None or consumer.task_consumer is None or consumer.connection is None:
            return
        try:
            apply_gate(consumer.task_consumer, self._shut)
        except (*consumer.connection_errors, *consumer.channel_errors) as error:
            # The connection is gone; the hub meets the same error, and the next connection applies the gate again.
            _log.warning("consumer gate not applied: %s", error)


def apply_gate(consumer: Any, shut: frozenset[str]) -> None:
    """Make a kombu consumer consume exactly those of its queues that are not ``shut``, and list all of them as before."""
    listed = list(consumer.queues)
    to_cancel = [queue.name for queue in listed if queue.name in shut and consumer.consuming_from(queue.name)]
    to_consume = [queue for queue in listed if queue.name not in shut]
    try:
        for name in to_cancel:
            consumer.cancel_by_queue(name)
        consumer.queues = to_consume
        if not all(consumer.consuming_from(queue.name) for queue in to_consume):
            consumer.consume()
    finally:
        consumer.queues = listed
