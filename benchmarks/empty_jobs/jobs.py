"""The Celery app of the baseline; its worker and its publisher load it by name, the broker told by the environment."""

from __future__ import annotations

import time
from typing import Any, Final

import redis
from celery import Celery

from benchmarks.empty_jobs.names import QUEUE
from benchmarks.harness.quantiles import quantile
from shared.settings import load_settings

BROKER_URL: Final = load_settings().broker_url.get_secret_value()

app: Final = Celery("empty_jobs", broker=BROKER_URL, set_as_current=False)
app.conf.update(
    task_default_queue=QUEUE,
    task_ignore_result=True,
    worker_send_task_events=False,
    task_send_sent_event=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)

_starts_ms: list[float] = []


@app.task  # type: ignore[untyped-decorator]  # Celery publishes no types
def empty() -> None:
    """Do nothing."""


@app.task  # type: ignore[untyped-decorator]  # Celery publishes no types
def stamp(sent_at: float) -> None:
    """Note how long it is since the job was published: both processes read the machine's one monotonic clock."""
    _starts_ms.append((time.monotonic() - sent_at) * 1e3)


@app.task  # type: ignore[untyped-decorator]  # Celery publishes no types
def tell(key: str) -> None:
    """Push the median of what was noted to a list of the broker's, and forget it."""
    median = quantile(_starts_ms, 0.5)
    _starts_ms.clear()
    client: Any = redis.Redis.from_url(BROKER_URL)
    client.rpush(key, repr(median))
    client.close()
