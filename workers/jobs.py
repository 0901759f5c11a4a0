"""The jobs: one a queue. Each offers its ids to what serves its queue in this process, and ends (core 9)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol

from celery import Celery, Task

from shared.domain.bounds import ID_MAX_CHARS
from shared.domain.errors import ConfigError
from shared.wakes.names import IDS_PER_MESSAGE, QUEUES, job_name

_log: Final = logging.getLogger(__name__)


class OfferSink(Protocol):
    """Takes the wakes of a process; returns whether it serves ``queue``. Never blocks, never raises."""

    def offer(self, queue: str, ids: Sequence[str]) -> bool: ...


class WakeJob(Task):  # type: ignore[misc]  # Celery publishes no types
    """The job of one queue. Its argument is ``ids``, a list of strings; it never fails, retries or waits.

    A message of another shape is junk: counted and dropped. Ids beyond their bounds are dropped from a good one. Until a
    pool connects itself, and for a queue that its process does not serve, a wake is counted and does nothing.
    """

    ignore_result = True
    acks_late = False
    typing = False
    queue_name: str

    def __init__(self, queue: str) -> None:
        self.name = job_name(queue)
        self.queue_name = queue
        self._sink: OfferSink | None = None
        self.counts = dict.fromkeys(("offered", "junk", "ids_dropped", "not_served"), 0)

    def connect(self, sink: OfferSink | None) -> None:
        """Send wakes to ``sink`` from now on; ``None`` disconnects."""
        self._sink = sink

    def run(self, ids: Any = None, *more: Any, **others: Any) -> None:
        if not isinstance(ids, list) or more or others:
            self.counts["junk"] += 1
            return
        good = [one for one in ids[:IDS_PER_MESSAGE] if isinstance(one, str) and 0 < len(one) <= ID_MAX_CHARS]
        self.counts["ids_dropped"] += len(ids) - len(good)
        if self._sink is not None and self._sink.offer(self.queue_name, good):
            self.counts["offered"] += 1
        else:
            self.counts["not_served"] += 1


def register_jobs(app: Celery) -> None:
    """Register the five jobs with the app."""
    for queue in QUEUES:
        app.register_task(WakeJob(queue))


def wake_jobs(app: Celery) -> dict[str, WakeJob]:
    """Return the app's jobs by queue."""
    return {task.queue_name: task for task in app.tasks.values() if isinstance(task, WakeJob)}


def check_jobs(app: Celery) -> None:
    """Raise ``ConfigError`` if the app holds a task that is not of our job class (Celery's own aside).

    Such a task would run in the hub's thread and stop every queue meanwhile; an ``async def`` one would report success
    with a coroutine that nobody awaits.
    """
    foreign = sorted(
        name
        for name, task in app.tasks.items()
        if not isinstance(task, WakeJob) and type(task).__module__ != "celery.app.builtins"
    )
    if foreign:
        raise ConfigError(
            f"tasks that are not jobs of this project are registered with its Celery app: {', '.join(foreign)};"
            " give them an app and workers of their own",
            field="tasks",
            tasks=foreign,
        )
