"""Which figures of a turn worker its metrics show."""

from __future__ import annotations

from workers.metrics.collector import PartsCollector, copied
from workers.stores import WorkerStores
from workers.turns.building import TurnParts


def turn_figures(collector: PartsCollector, parts: TurnParts, stores: WorkerStores) -> None:
    """Add the figures of the turns queue: claims, ends, refusals, wakes and the cost of each unit of work."""
    pump, holdings, runner = parts.pump, parts.holdings, parts.runner
    wakes, counters = stores.wakes, stores.database.counters
    collector.add_gauge(
        "turnkeeper_turns_held", "Turns that this process holds.", lambda: float(pump.info()["held"])
    )
    collector.add_counter(
        "turnkeeper_turns_ended",
        "Turns that this process ended, by outcome.",
        "outcome",
        lambda: copied(runner.counts.ended),
    )
    collector.add_counter(
        "turnkeeper_turns_lost",
        "Turns that were no longer ours, by reason.",
        "reason",
        lambda: copied(holdings.counts.lost),
    )
    collector.add_counter(
        "turnkeeper_turn_events",
        "Claims, renewals, refusals and repairs of this process.",
        "event",
        lambda: {
            "stale_write_refused": runner.counts.stale_writes_refused,
            "handed_back": runner.counts.handed_back,
            "taken_over": runner.counts.taken_over,
            "renewed": holdings.keeper.counts.renewed,
            "renewal_refused": holdings.keeper.counts.refused,
            "watchdog_fired": holdings.keeper.counts.watchdog_fired,
            "orphan_released": holdings.counts.orphans_released,
            "history_found": runner.histories.counts.found,
            "history_missed": runner.histories.counts.missed,
            **{name: pump.info()[name] for name in ("claims", "claimed", "lost_claims", "claim_failures")},
        },
    )
    collector.add_counter(
        "turnkeeper_wakes",
        "Wakes of this process, by what became of them.",
        "result",
        lambda: {
            "published": wakes.stats().published,
            "coalesced": wakes.stats().coalesced,
            "dropped": wakes.stats().dropped,
            "failed": wakes.stats().failed,
        },
    )
    for figure in ("calls", "statements", "round_trips", "commits", "rows"):
        collector.add_counter(
            f"turnkeeper_store_{figure}",
            f"{figure} by unit of work.",
            "unit",
            lambda figure=figure: {u: float(getattr(c, figure)) for u, c in list(counters.units.items())},  # type: ignore[misc]  # mypy cannot type a lambda's default
        )
