"""A worker's own port: where it listens, and what its health says."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from shared.domain.errors import ConfigError
from tests.support.brokers import free_port
from workers.health.loop_load import LoopLoad
from workers.metrics.collector import PartsCollector
from workers.metrics.serving import health_of, serve_metrics
from workers.parts import Health

FIT = (True, {"status": "ok"})


@dataclass
class Held:
    """A queue's server that does nothing but hold."""

    held: int
    draining: bool = False

    def info(self) -> dict[str, Any]:
        return {"held": self.held, "capacity": 5, "ids": [], "draining": self.draining}

    def offer(self, ids: object) -> None: ...

    async def serve(self) -> None: ...

    async def drain(self, timeout_s: float) -> None: ...

    def stop_now(self) -> None: ...


@dataclass
class Bench:
    health: Health = field(default_factory=Health)
    load: LoopLoad = field(default_factory=LoopLoad)
    pumps: dict[str, Held] = field(default_factory=lambda: {"turns": Held(2), "index": Held(0)})
    silent_max_s: float = 60.0
    port: int = field(default_factory=free_port)

    def ask(self, path: str = "/healthz") -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()

    def report() -> tuple[bool, dict[str, Any]]:
        return health_of(made.health, made.load, made.pumps, silent_max_s=made.silent_max_s)

    stop = serve_metrics(PartsCollector(), report, "127.0.0.1", made.port)
    yield made
    stop()


@pytest.mark.behaviour("SHD-20")
def test_a_process_reports_its_own_activity_by_pool(bench: Bench) -> None:
    status, report = bench.ask()
    assert (status, report["status"], report["busy"], report["draining"]) == (200, "ok", True, False)
    assert report["pools"] == {"turns": {"held": 2, "capacity": 5}, "index": {"held": 0, "capacity": 5}}
    bench.pumps["turns"].held = 0
    assert bench.ask()[1]["busy"] is False


@pytest.mark.behaviour("DST-30")
def test_a_process_that_is_stuck_says_so_and_why(bench: Bench) -> None:
    bench.health.unfit = "turns: 3 wakes wait at the broker and none is taken"
    status, report = bench.ask()
    assert (status, report["status"], report["reason"]) == (503, "unfit", bench.health.unfit)


@pytest.mark.behaviour("DST-30")
def test_a_loop_that_beats_no_more_is_not_healthy_also_before_the_process_leaves(bench: Bench) -> None:
    bench.silent_max_s = -1.0
    status, report = bench.ask()
    assert (status, report["reason"]) == (503, "the event loop has been silent for 0 s")


@pytest.mark.behaviour("DST-30", "DST-32")
def test_draining_and_overload_are_shown_and_no_reason_to_be_restarted(bench: Bench) -> None:
    bench.pumps["turns"].draining = True
    bench.load.note(9.0, 9.0)
    status, report = bench.ask()
    assert (status, report["draining"], report["overloaded"]) == (200, True, True)


def test_metrics_are_served_at_their_address_alone_and_no_longer_after_the_stop() -> None:
    port = free_port()
    stop = serve_metrics(PartsCollector(), lambda: FIT, "127.0.0.2", port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.2:{port}/metrics", timeout=5) as answer:
            assert answer.status == 200
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    finally:
        stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)


def test_a_taken_metrics_port_is_a_configuration_error_that_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError) as refused:
        serve_metrics(PartsCollector(), lambda: FIT, "127.0.0.1", taken.getsockname()[1])
    assert refused.value.fields["field"] == "TURNKEEPER_METRICS_PORT"
    assert "127.0.0.1:" in str(refused.value)
