"""A worker's own metrics: read from the parts' counters when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

#: (name, what it means, figures by label value); a plain figure has the label value "".
Figures = Mapping[str, float]


def copied(counts: Mapping[str, float]) -> Figures:
    """Return counts as they stand now: a scrape has its own thread, and the loop may count something new meanwhile."""
    return {name: float(count) for name, count in list(counts.items())}


class PartsCollector(Collector):
    """Collects counters and gauges from plain figures; knows nothing of the parts."""

    def __init__(self) -> None:
        self._counters: list[tuple[str, str, str, Callable[[], Figures]]] = []
        self._by_pool: list[tuple[str, str, Callable[[], Mapping[tuple[str, str], float]]]] = []
        self._gauges: list[tuple[str, str, Callable[[], float]]] = []

    def add_counter(self, name: str, text: str, label: str, read: Callable[[], Figures]) -> None:
        """Add a counter with one label; ``read`` gives its figures by label value."""
        self._counters.append((name, text, label, read))

    def add_pool_counter(
        self, name: str, text: str, read: Callable[[], Mapping[tuple[str, str], float]]
    ) -> None:
        """Add a counter labelled by pool and event; ``read`` gives its figures by both."""
        self._by_pool.append((name, text, read))

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge without labels."""
        self._gauges.append((name, text, read))

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families as they stand now."""
        for name, text, label, read in self._counters:
            family = CounterMetricFamily(name, text, labels=[label])
            for value, figure in sorted(read().items()):
                family.add_metric([value], figure)
            yield family
        for name, text, read_pools in self._by_pool:
            family = CounterMetricFamily(name, text, labels=["pool", "event"])
            for labels, figure in sorted(read_pools().items()):
                family.add_metric(labels, figure)
            yield family
        for name, text, read_gauge in self._gauges:
            yield GaugeMetricFamily(name, text, value=read_gauge())
