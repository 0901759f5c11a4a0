"""The figures of a worker's parts, read from the thread that answers a scrape."""

from __future__ import annotations

import socket

import pytest

from shared.domain.errors import ConfigError
from workers.metrics.collector import PartsCollector, copied, serve_metrics


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


def test_metrics_are_served_at_their_address_alone_and_no_longer_after_the_stop() -> None:
    port = free_port("127.0.0.2")
    stop = serve_metrics(PartsCollector(), "127.0.0.2", port)
    try:
        with socket.create_connection(("127.0.0.2", port), timeout=5):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    finally:
        stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)


def test_a_taken_metrics_port_is_a_configuration_error_that_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError) as refused:
        serve_metrics(PartsCollector(), "127.0.0.1", taken.getsockname()[1])
    assert refused.value.fields["field"] == "TURNKEEPER_METRICS_PORT"
    assert "127.0.0.1:" in str(refused.value)


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])
