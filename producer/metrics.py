"""The producer's metrics: its own counts, and on each scrape what the queue and the workers' rows say (decision 43)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from producer.traffic import Traffic
from shared.database.counters import WorkCounters
from shared.inbox.backlog import InboxBacklog
from shared.jobs.queue import JobBacklog
from shared.turns.queue import Backlog
from shared.wakes.port import WakePublisher

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

#: Seconds; an admission is one round trip to Postgres, so the interesting part is far below one.
ADMISSION_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ProducerMetrics:
    """Metrics of one producer in a registry of its own; made once by its root."""

    def __init__(self, counters: WorkCounters, wakes: WakePublisher, traffic: Traffic) -> None:
        self._registry = CollectorRegistry()
        self.admissions = Counter(
            "turnkeeper_admissions", "Admissions by result.", ["result"], registry=self._registry
        )
        self.admission_seconds = Histogram(
            "turnkeeper_admission_seconds",
            "Time from a parsed request to its committed receipt.",
            buckets=ADMISSION_BUCKETS_S,
            registry=self._registry,
        )
        self.deliveries = Counter(
            "turnkeeper_deliveries", "Deliveries to inboxes by result.", ["result"], registry=self._registry
        )
        self.cancels = _by_result("turnkeeper_cancels", "Cancels by what they did.", self._registry)
        self.task_starts = _by_result("turnkeeper_task_starts", "Task starts by result.", self._registry)
        self.responses = Counter(
            "turnkeeper_http_responses",
            "Answers by route and status.",
            ["route", "status"],
            registry=self._registry,
        )
        self._backlog = Gauge(
            "turnkeeper_backlog_turns",
            "Turns owed, by state (a count stops at 10,000).",
            ["pool", "state"],
            registry=self._registry,
        )
        self._items = Gauge(
            "turnkeeper_backlog_items",
            "Items of the background pools and of all inboxes, by state (a count stops at 10,000).",
            ["pool", "state"],
            registry=self._registry,
        )
        self._oldest = Gauge(
            "turnkeeper_oldest_due_seconds",
            "Age of the oldest due turn or item; of inboxes, of the oldest that waits.",
            ["pool"],
            registry=self._registry,
        )
        self._unserved = Gauge(
            "turnkeeper_unserved_turns",
            "Ready turns of revisions that no worker serves.",
            ["pool", "revision"],
            registry=self._registry,
        )
        self._workers = Gauge(
            "turnkeeper_workers", "Worker processes that were seen lately.", ["pool"], registry=self._registry
        )
        self._places = Gauge(
            "turnkeeper_worker_places",
            "Places of seen workers: capacity and held.",
            ["pool", "kind"],
            registry=self._registry,
        )
        self._store_up = Gauge(
            "turnkeeper_store_up", "Whether this scrape could read Postgres.", registry=self._registry
        )
        self._registry.register(_LiveCounts(counters, wakes, traffic))

    def show_queue(self, pool: str, backlog: Backlog, workers: Iterable[Mapping[str, Any]]) -> None:
        """Set what this scrape read of the queue and of the workers that are not silent."""
        self._store_up.set(1)
        for state in ("ready", "queued", "running"):
            self._backlog.labels(pool, state).set(getattr(backlog, state))
        self._oldest.labels(pool).set(backlog.oldest_due_s)
        self._unserved.clear()
        for revision, count in backlog.unserved.items():
            self._unserved.labels(pool, revision).set(count)
        self._workers.clear()
        self._places.clear()
        for worker in workers:
            for queue in worker["queues"]:
                self._workers.labels(queue).inc()
                self._places.labels(queue, "capacity").inc(worker["capacity"])
                self._places.labels(queue, "held").inc(worker["held"])

    def show_pool(self, pool: str, backlog: JobBacklog) -> None:
        """Set what this scrape read of a background pool."""
        for state in ("ready", "running", "parked"):
            self._items.labels(pool, state).set(getattr(backlog, state))
        self._oldest.labels(pool).set(backlog.oldest_due_s)

    def show_inbox(self, backlog: InboxBacklog) -> None:
        """Set what this scrape read of the inboxes."""
        self._items.labels("inbox", "waiting").set(backlog.waiting)
        self._oldest.labels("inbox").set(backlog.oldest_s)

    def show_store_away(self) -> None:
        """Say that this scrape could not read Postgres; old figures are taken away rather than repeated."""
        self._store_up.set(0)
        for gauge in (self._backlog, self._items, self._oldest, self._unserved, self._workers, self._places):
            gauge.clear()

    def render(self) -> bytes:
        """Return everything in Prometheus' text form."""
        return generate_latest(self._registry)


class _LiveCounts(Collector):
    """What others count themselves, read when scraped."""

    def __init__(self, counters: WorkCounters, wakes: WakePublisher, traffic: Traffic) -> None:
        self._counters = counters
        self._wakes = wakes
        self._traffic = traffic

    def collect(self) -> Iterable[Metric]:
        yield from self._units()
        stats = self._wakes.stats()
        wakes = CounterMetricFamily("turnkeeper_wakes", "Wakes by what became of them.", labels=["result"])
        for result in ("published", "coalesced", "failed", "dropped"):
            wakes.add_metric([result], getattr(stats, result))
        yield wakes
        yield _gauge("turnkeeper_broker_up", "Whether the broker took the last wake.", stats.broker_ok)
        yield _gauge("turnkeeper_sse_connections", "Open event streams.", self._traffic.streams)
        yield _gauge("turnkeeper_requests_in_flight", "Requests being answered.", self._traffic.requests)
        yield _gauge("turnkeeper_draining", "Whether this process is going away.", self._traffic.is_draining)

    def _units(self) -> Iterable[Metric]:
        units = self._counters.snapshot()
        for field in ("calls", "statements", "round_trips", "commits", "rows"):
            family = CounterMetricFamily(
                f"turnkeeper_store_{field}",
                f"Database {field.replace('_', ' ')} by unit of work.",
                labels=["unit"],
            )
            for unit, count in sorted(units.items()):
                family.add_metric([unit], getattr(count, field))
            yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    metric = Metric(name, text, "gauge")
    metric.add_sample(name, {}, float(value))
    return metric


def _by_result(name: str, text: str, registry: CollectorRegistry) -> Counter:
    return Counter(name, text, ["result"], registry=registry)
