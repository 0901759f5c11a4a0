"""The event loop beside the hub: how it starts, fails, drains and stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shared.domain.errors import StoreUnavailable
from shared.wakes.inproc import InprocWakes
from workers.parts import WorkerParts
from workers.process import LoopProcess

BOUND_S = 10.0


class HandServer:
    """Serves until told to end; its drain takes as long as the test wants."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.offers: list[tuple[str, ...]] = []
        self.offered = threading.Event()
        self.said: list[str] = []
        self.endless_drain = False

    def offer(self, ids: Sequence[str]) -> None:
        self.offers.append(tuple(ids))
        self.offered.set()

    async def serve(self) -> None:
        await self.ended.wait()

    async def drain(self, timeout_s: float) -> None:
        self.said.append(f"drain {timeout_s:g}")
        if not self.endless_drain:
            self.ended.set()
        await self.ended.wait()

    def stop_now(self) -> None:
        self.said.append("stop")
        self.ended.set()

    def info(self) -> dict[str, Any]:
        return {"held": 2, "capacity": 5, "ids": ["a", "b"]}


class Bench:
    def __init__(self, *services: Any) -> None:
        self.server = HandServer()
        self.services = services
        self.failure: Exception | None = None
        self.hold_build = False
        self.closed = threading.Event()
        self.unfit: list[str] = []
        self.told_unfit = threading.Event()
        self.leave = asyncio.Event()
        self.stopped = threading.Event()
        self.process = LoopProcess(
            self.build, drain_s=7.0, on_unfit=self.on_unfit, after_stop=self.stopped.set
        )

    @asynccontextmanager
    async def build(self) -> AsyncIterator[WorkerParts]:
        if self.failure is not None:
            raise self.failure
        if self.hold_build:
            await asyncio.Event().wait()
        try:
            yield WorkerParts(
                pumps={"turns": self.server}, wakes=InprocWakes(), services=self.services, leave=self.leave
            )
        finally:
            self.closed.set()

    def on_unfit(self, reason: str) -> None:
        self.unfit.append(reason)
        self.told_unfit.set()

    def start(self) -> LoopProcess:
        self.process.start(look=lambda: None)
        return self.process


def test_it_offers_wakes_tells_what_it_holds_and_drains_before_it_closes() -> None:
    bench = Bench()
    process = bench.start()
    assert process.offer("turns", ["a"])
    assert not process.offer("index", ["a"])
    assert bench.server.offered.wait(BOUND_S)
    assert process.info() == {
        "held": 2,
        "capacity": 5,
        "ids": ["a", "b"],
        "pumps": {"turns": {"held": 2, "capacity": 5, "ids": ["a", "b"]}},
    }
    assert not process.wait_ended(0.001)
    process.begin_drain()
    assert process.wait_ended(BOUND_S)
    assert (bench.server.offers, bench.server.said) == ([("a",)], ["drain 7"])
    assert bench.closed.is_set() and bench.unfit == []
    process.stop_now()
    assert not process.offer("turns", ["b"])


@pytest.mark.behaviour("DST-18")
def test_a_stop_ends_a_drain_that_goes_on() -> None:
    bench = Bench()
    bench.server.endless_drain = True
    process = bench.start()
    process.begin_drain()
    process.stop_now()
    assert process.wait_ended(BOUND_S)
    assert bench.server.said[-1] == "stop"
    assert bench.closed.is_set()
    assert bench.stopped.wait(BOUND_S)


def test_what_building_raises_is_raised_by_the_start() -> None:
    bench = Bench()
    bench.failure = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable, match="away"):
        bench.start()
    assert bench.process.wait_ended(BOUND_S)


def test_a_shutdown_asked_for_while_it_builds_ends_the_start() -> None:
    bench = Bench()
    bench.hold_build = True

    def look() -> None:
        raise SystemExit(0)

    with pytest.raises(SystemExit):
        bench.process.start(look)
    assert bench.process.wait_ended(BOUND_S)


def test_a_service_that_ends_makes_the_process_unfit_and_it_waits_for_the_drain() -> None:
    async def give_up() -> None:
        raise StoreUnavailable("renewals failed")

    bench = Bench(give_up)
    process = bench.start()
    assert bench.told_unfit.wait(BOUND_S)
    assert "renewals failed" in bench.unfit[0]
    assert not process.wait_ended(0.001)
    process.begin_drain()
    assert process.wait_ended(BOUND_S)
    assert bench.server.said == ["drain 7"]


@pytest.mark.behaviour("DST-31")
def test_a_part_that_asks_to_leave_makes_the_process_unfit() -> None:
    bench = Bench()
    process = bench.start()
    process.call(bench.leave.set)
    assert bench.told_unfit.wait(BOUND_S)
    assert bench.unfit == ["a part asked to leave"]
    process.begin_drain()
    assert process.wait_ended(BOUND_S)


def test_services_go_on_until_the_drain_is_over() -> None:
    order: list[str] = []
    bench = Bench()

    async def renew() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            order.extend([*bench.server.said, "renewals end"])

    bench.services = (renew,)
    process = bench.start()
    process.begin_drain()
    assert process.wait_ended(BOUND_S)
    assert order == ["drain 7", "renewals end"]
