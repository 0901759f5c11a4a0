"""Which publisher serves a broker: the event loop where the broker is a plain Redis, a thread and kombu for any other."""

from __future__ import annotations

from shared.wakes.broker import PUBLISH_BOUND_S
from shared.wakes.celery_publisher import CeleryWakePublisher
from shared.wakes.loop_publisher import LoopWakePublisher
from shared.wakes.port import WakePublisher
from shared.wakes.redis_broker import RedisSender, is_plain_redis


def open_wakes(broker_url: str, *, bound_s: float = PUBLISH_BOUND_S) -> WakePublisher:
    """Return the publisher of a process whose event loop runs; a publish takes at most ``bound_s`` seconds."""
    if is_plain_redis(broker_url):
        return LoopWakePublisher(RedisSender(broker_url, bound_s=bound_s))
    return CeleryWakePublisher(broker_url, bound_s=bound_s)
