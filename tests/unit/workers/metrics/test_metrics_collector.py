"""The figures of a worker's parts, read from the thread that answers a scrape."""

from __future__ import annotations

from workers.metrics.collector import PartsCollector, copied


class Counted(float):
    """A figure that makes the loop count something new just while it is read."""

    counts: dict[str, float]

    def __float__(self) -> float:
        self.counts[f"new-{len(self.counts)}"] = 1.0
        return 2.0


def test_a_scrape_outlives_what_is_counted_for_the_first_time_meanwhile() -> None:
    figure = Counted(2)
    counts: dict[str, float] = {"completed": figure}
    figure.counts = counts
    collector = PartsCollector()
    collector.add_counter("turns_ended", "Turns.", "outcome", lambda: copied(counts))
    [family] = collector.collect()
    assert [(s.labels, s.value) for s in family.samples] == [({"outcome": "completed"}, 2.0)]


def test_counts_of_pools_are_labelled_by_pool_and_event() -> None:
    collector = PartsCollector()
    collector.add_pool_counter("pool_events", "Events.", lambda: {("turns", "claims"): 3.0})
    [family] = collector.collect()
    assert [(s.labels, s.value) for s in family.samples] == [({"pool": "turns", "event": "claims"}, 3.0)]
