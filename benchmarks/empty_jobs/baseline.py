"""Starts the worker and the publisher of the baseline on a site, and measures both what they carry and how soon a job starts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import redis

from benchmarks.empty_jobs.names import DONE, ORDERS, QUEUE
from benchmarks.harness.arms import Arm
from benchmarks.harness.processes import cpu_between, usage_of
from benchmarks.harness.site import VALKEY, Site
from producer.dev.processes import Program
from producer.dev.programs import PYTHON
from shared.database.embedded.child import Child
from shared.settings import Settings, variable_of

WORKER: Final = "empty-worker"
PUBLISHER: Final = "empty-publisher"
#: Of the shared Redis; the product has 0.
DATABASE_NUMBER: Final = 1
BOUND_S: Final = 60.0
LOOK_S: Final = 0.005
#: Jobs that note their start are this far apart: none waits for another, and no process has fallen asleep.
STAMP_EVERY_S: Final = 0.005
TELL: Final = "told"
#: What is published until a rate is known, in jobs a second.
FIRST_RATE: Final = 800.0
JOBS_MIN: Final = 50
GRACE_S: Final = 5.0


@dataclass(slots=True)
class EmptyJobs:
    """A running worker and publisher. ``rate`` is the last one seen, by which the next block is sized."""

    client: Any
    publisher: Child
    pids: Callable[[], Mapping[str, int]]
    rate: float = FIRST_RATE

    @classmethod
    def start(cls, site: Site) -> Self:
        """Start both and wait until both work. Blocks."""
        url = site.beside_url(DATABASE_NUMBER)
        env: dict[str, str | None] = dict.fromkeys(map(variable_of, Settings.model_fields), "")
        env["CELERY_BROKER_URL"] = url
        celery = ("celery", "-A", "benchmarks.empty_jobs.jobs", "worker", "-P", "solo", "-Q", QUEUE)
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING")
        python = tuple(word for word in PYTHON if word != "-P")  # the checkout is the working directory
        _, publisher = [
            site.processes.start(Program(name, (*python, *words), env=env, restart=False, grace_s=GRACE_S))
            for name, words in (
                (WORKER, (*celery, *quiet)),
                (PUBLISHER, ("benchmarks.empty_jobs.publisher",)),
            )
        ]
        jobs = cls(redis.Redis.from_url(url, socket_timeout=None), publisher, site.pids)
        jobs._wait_published()
        jobs._order(jobs=1)
        jobs._wait_run()
        return jobs

    def arms(self, *, rate_share: float, start_share: float) -> tuple[Arm, Arm]:
        """Return the two arms: jobs published and run as fast as it goes, and jobs one by one."""
        return (
            Arm("empty jobs", self._measure_rate, rate_share),
            Arm("empty job, start", self._measure_start, start_share),
        )

    def close(self) -> None:
        """Close the connection; the processes are the site's."""
        self.client.close()

    async def _measure_rate(self, seconds: float) -> Mapping[str, float]:
        count = max(JOBS_MIN, round(self.rate * seconds))
        before = usage_of(self._used())
        self.rate = await asyncio.to_thread(self._run_jobs, count)
        used = cpu_between(before, usage_of(self._used()))
        return {"empty_jobs_per_s": self.rate, "cpu_ms_per_empty_job": sum(used.values()) * 1e3 / count}

    async def _measure_start(self, seconds: float) -> Mapping[str, float]:
        count = max(JOBS_MIN, round(seconds / STAMP_EVERY_S))
        return {"empty_job_start_p50_ms": await asyncio.to_thread(self._run_stamps, count)}

    def _used(self) -> dict[str, int]:
        pids = self.pids()
        return {name: pids[name] for name in (WORKER, PUBLISHER, VALKEY) if name in pids}

    def _run_jobs(self, count: int) -> float:
        """Publish and run so many; return how many that is a second, from the order to the last acknowledgement."""
        began = time.perf_counter()
        self._order(jobs=count)
        self._wait_run()
        return count / (time.perf_counter() - began)

    def _run_stamps(self, count: int) -> float:
        self._order(stamps=count, every_s=STAMP_EVERY_S, key=TELL)
        return float(self.client.blpop([TELL], timeout=BOUND_S)[1])

    def _order(self, **order: object) -> None:
        self.client.rpush(ORDERS, json.dumps(order))
        self._wait_published()

    def _wait_published(self) -> None:
        """Return when the publisher says that it did what it was told."""
        self.publisher.wait_until(
            lambda: self.client.blpop([DONE], timeout=LOOK_S) is not None, what="answer", timeout_s=BOUND_S
        )

    def _wait_run(self) -> None:
        """Return when no job waits and none is unacknowledged."""
        deadline = time.monotonic() + BOUND_S
        while self.client.llen(QUEUE) or self.client.hlen("unacked"):
            if time.monotonic() > deadline:
                raise TimeoutError("the worker of empty jobs does not run them")
            time.sleep(LOOK_S)  # a poll's pause: a plain queue says nothing when it is empty
