"""A worker's own metrics, served on ``TURNKEEPER_METRICS_PORT`` (0 = off): read from the parts' counters when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.domain.errors import ConfigError

#: (name, what it means, figures by label value); a plain figure has the label value "".
Figures = Mapping[str, float]


def copied(counts: Mapping[str, float]) -> Figures:
    """Return counts as they stand now: a scrape has its own thread, and the loop may count something new meanwhile."""
    return {name: float(count) for name, count in list(counts.items())}


class PartsCollector(Collector):
    """Collects counters and gauges from plain figures; knows nothing of the parts."""

    def __init__(self) -> None:
        self._counters: list[tuple[str, str, str, Callable[[], Figures]]] = []
        self._gauges: list[tuple[str, str, Callable[[], float]]] = []

    def add_counter(self, name: str, text: str, label: str, read: Callable[[], Figures]) -> None:
        """Add a counter with one label; ``read`` gives its figures by label value."""
        self._counters.append((name, text, label, read))

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
        for name, text, read_gauge in self._gauges:
            yield GaugeMetricFamily(name, text, value=read_gauge())


def serve_metrics(collector: PartsCollector, host: str, port: int) -> Callable[[], None]:
    """Serve the metrics at an address and return what stops it; does nothing for port 0.

    Raises ``ConfigError`` when nothing can listen there.
    """
    if port == 0:
        return lambda: None
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigError(
            f"the metrics cannot listen at {host}:{port}: {error.strerror}", field="TURNKEEPER_METRICS_PORT"
        ) from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(timeout=1.0)

    return stop
