"""The publisher of the baseline: a process that takes orders from a list of the broker's and publishes empty jobs.

An order is JSON: ``{"jobs": n}`` publishes n empty jobs as fast as it goes; ``{"stamps": n, "every_s": s, "key": k}``
publishes n jobs that note when they start, ``s`` seconds apart, then one that tells the median to list ``k``.
"""

from __future__ import annotations

import json
import time
from typing import Any

import redis

from benchmarks.empty_jobs.jobs import BROKER_URL, empty, stamp, tell
from benchmarks.empty_jobs.names import DONE, ORDERS


def main() -> None:
    """Follow orders until a signal ends the process."""
    client: Any = redis.Redis.from_url(BROKER_URL, socket_timeout=None)  # it may wait long for an order
    client.rpush(DONE, "ready")
    while True:
        _, text = client.blpop([ORDERS])
        order = json.loads(text)
        if "jobs" in order:
            for _ in range(order["jobs"]):
                empty.apply_async()
        else:
            _publish_stamps(order["stamps"], order["every_s"], order["key"])
        client.rpush(DONE, "done")


def _publish_stamps(count: int, every_s: float, key: str) -> None:
    due = time.monotonic()
    for _ in range(count):
        due += every_s
        time.sleep(max(0.0, due - time.monotonic()))  # the pace of the jobs
        stamp.apply_async((time.monotonic(),))
    tell.apply_async((key,))


if __name__ == "__main__":
    main()
