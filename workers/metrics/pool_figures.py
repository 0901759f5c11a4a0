"""Which figures of a background pool a worker's metrics show."""

from __future__ import annotations

from workers.background.building import BackgroundParts
from workers.metrics.collector import PartsCollector, copied


def pool_figures(collector: PartsCollector, parts: BackgroundParts) -> None:
    """Add the figures of one pool: what it holds, how items were settled, and the codes of failures."""
    pool, pump, counts, keeper = parts.server.pool, parts.pump, parts.server.counts, parts.server.keeper
    collector.add_gauge(
        f"turnkeeper_{pool}_held",
        f"Items of {pool} that this process holds.",
        lambda: float(pump.info()["held"]),
    )
    collector.add_counter(
        f"turnkeeper_{pool}_settled",
        f"Items of {pool}, by how they were settled.",
        "how",
        lambda: copied(counts.settled),
    )
    collector.add_counter(
        f"turnkeeper_{pool}_failures",
        f"Failed tries of {pool}, by code.",
        "code",
        lambda: copied(counts.failures),
    )
    collector.add_counter(
        f"turnkeeper_{pool}_leases",
        f"Renewals and losses of {pool}.",
        "event",
        lambda: {
            "renewed": keeper.counts.renewed,
            "refused": keeper.counts.refused,
            "watchdog_fired": keeper.counts.watchdog_fired,
        },
    )
