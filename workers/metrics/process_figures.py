"""Which figures every worker process shows, whatever it serves."""

from __future__ import annotations

from collections.abc import Mapping

from workers.health.loop_load import LoopLoad
from workers.metrics.collector import PartsCollector
from workers.metrics.totals import ProcessCounts


def process_figures(collector: PartsCollector, counts: ProcessCounts, load: LoopLoad) -> None:
    """Add what the process counts by pool, and how far its event loop lags."""

    def by_pool() -> Mapping[tuple[str, str], float]:
        return {key: float(count) for key, count in counts.read().items()}

    collector.add_pool_counter(
        "turnkeeper_pool_events", "Claims, refused renewals and wakes of this process, by pool.", by_pool
    )
    collector.add_gauge(
        "turnkeeper_loop_lag_seconds",
        "How far the event loop lags behind its timers, smoothed over a second.",
        lambda: load.lag_s,
    )
    collector.add_gauge(
        "turnkeeper_loop_overloaded",
        "Whether the loop lags so far that no more work is claimed.",
        lambda: float(load.is_overloaded),
    )
