"""kombu's Redis transport without acknowledgements of what is consumed without them.

A queue that says ``no_ack`` is delivered without a copy that waits for its acknowledgement. Celery acknowledges every job all the
same, and a channel of Redis then removes the copy that was never made: a transaction for each wake, for nothing.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import redis


class DeliveredQoS(redis.QoS):
    """Acknowledges what it keeps a copy of; anything else is gone from the broker already."""

    def ack(self, delivery_tag: Any) -> None:
        if delivery_tag in self._delivered:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call]  # kombu leaves it bare


class NoAckChannel(redis.Channel):
    QoS = DeliveredQoS


class Transport(redis.Transport):
    Channel = NoAckChannel
