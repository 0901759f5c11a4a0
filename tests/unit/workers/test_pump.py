"""The claim pump: when it claims, how much, what it does without room, what it survives, how it ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shared.domain.errors import StoreUnavailable
from tests.support.waiting import await_until
from workers.pump import Pump

#: A mean time between unasked claims that no test reaches.
NEVER_S = 3_600.0


class Store:
    """Owed works, and what the pump asked of it; ``answer`` may hold a claim back or fail it."""

    def __init__(self, *owed: str) -> None:
        self.owed = list(owed)
        self.claims: list[tuple[int, tuple[str, ...]]] = []
        self.answer: Callable[[], Awaitable[None]] | None = None

    async def claim(self, n: int, hints: Sequence[str]) -> Sequence[str]:
        self.claims.append((n, tuple(hints)))
        if self.answer is not None:
            await self.answer()
        taken, self.owed[:] = self.owed[:n], self.owed[n:]
        return taken


class Bench:
    """A pump with all its parts in the test's hand."""

    def __init__(self, store: Store, *, capacity: int = 2, **options: Any) -> None:
        self.store = store
        self.rings = 0
        self.gate: list[str] = []
        self.running: dict[str, asyncio.Event] = {}
        self.done: list[str] = []
        self.cancelled: list[str] = []
        self.pump: Pump[str] = Pump(
            queue="turns",
            capacity=capacity,
            claim=store.claim,
            run=self.run,
            name=str,
            ring=self.ring,
            gate=self,
            **{"unasked_s": NEVER_S, "rng": random.Random(1), **options},
        )

    def ring(self) -> None:
        self.rings += 1

    def shut(self, queue: str) -> None:
        self.gate.append("shut")

    def open(self, queue: str) -> None:
        self.gate.append("open")

    async def run(self, work: str) -> None:
        go_on = self.running[work] = asyncio.Event()
        try:
            await go_on.wait()
            if work.startswith("bad"):
                raise ValueError(work)
            self.done.append(work)
        except asyncio.CancelledError:
            self.cancelled.append(work)
            raise
        finally:
            del self.running[work]

    async def until_running(self, *works: str) -> None:
        await await_until(lambda: set(self.running) == set(works), what=f"{works} running")

    async def until_claims(self, number: int) -> None:
        await await_until(lambda: len(self.store.claims) >= number, what=f"{number} claims")

    def release(self, *works: str) -> None:
        for work in works:
            self.running[work].set()


@asynccontextmanager
async def serving(bench: Bench) -> AsyncIterator[Bench]:
    task = asyncio.create_task(bench.pump.serve())
    try:
        yield bench
    finally:
        bench.pump.stop_now()
        await bench.pump.drain(0)
        await task


async def settle() -> None:
    """Let everything that is ready on the loop happen."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.behaviour("DST-12")
async def test_a_pump_claims_what_is_owed_when_it_starts_and_rests() -> None:
    async with serving(Bench(Store("a"))) as bench:
        await bench.until_running("a")
        await settle()
        assert bench.store.claims == [(2, ())]


@pytest.mark.behaviour("DST-01", "DST-27")
async def test_offered_ids_wake_it_and_are_tried_first_each_once() -> None:
    async with serving(Bench(Store(), capacity=5)) as bench:
        await bench.until_claims(1)
        await settle()
        bench.store.owed.extend(["a", "b"])
        for ids in (["a"], ["b", "a"], []):
            bench.pump.offer(ids)
        await bench.until_running("a", "b")
        await settle()
        assert bench.store.claims == [(5, ()), (5, ("a", "b"))]


async def test_an_offer_while_a_claim_is_under_way_is_followed_by_another_claim() -> None:
    store = Store()
    held_back = asyncio.Event()

    async def hold_back() -> None:
        await held_back.wait()

    store.answer = hold_back
    async with serving(Bench(store)) as bench:
        await bench.until_claims(1)
        bench.pump.offer(["a"])
        held_back.set()
        await bench.until_claims(2)
        assert store.claims == [(2, ()), (2, ("a",))]


@pytest.mark.behaviour("DST-12")
async def test_it_claims_unasked_again_and_again_when_it_has_room() -> None:
    async with serving(Bench(Store(), unasked_s=0.001)) as bench:
        await bench.until_claims(5)


@pytest.mark.behaviour("DST-27", "DST-29")
async def test_it_claims_all_its_room_at_once_and_again_as_soon_as_a_place_is_free() -> None:
    async with serving(Bench(Store("a", "b", "c", "d"), capacity=3)) as bench:
        await bench.until_running("a", "b", "c")
        bench.release("b")
        await bench.until_running("a", "c", "d")
        assert [n for n, _ in bench.store.claims] == [3, 1]
        bench.release("a")
        await bench.until_claims(3)
        await settle()
        assert [n for n, _ in bench.store.claims] == [3, 1, 1]


@pytest.mark.behaviour("DST-29")
async def test_without_room_it_shuts_its_gate_and_rings_once_and_opens_when_no_more_is_owed() -> None:
    async with serving(Bench(Store("a", "b", "c"))) as bench:
        await bench.until_running("a", "b")
        await settle()
        assert (bench.gate, bench.rings) == (["shut"], 1)
        assert bench.pump.info()["without_room"]

        bench.release("a")
        await bench.until_running("b", "c")
        await settle()
        assert (bench.gate, bench.rings) == (["shut"], 1)

        bench.release("b")
        await await_until(lambda: bench.gate == ["shut", "open"], what="an open gate")
        assert bench.rings == 1


@pytest.mark.behaviour("DST-29")
async def test_a_wake_swallowed_without_room_is_passed_on_once() -> None:
    async with serving(Bench(Store("a", "b"))) as bench:
        await bench.until_running("a", "b")
        await await_until(lambda: bench.rings == 1)
        for _ in range(3):
            bench.pump.offer(["c"])
            await settle()
        assert bench.rings == 2


async def test_offered_ids_are_bounded() -> None:
    store = Store()
    held_back = asyncio.Event()

    async def hold_back() -> None:
        await held_back.wait()

    store.answer = hold_back
    async with serving(Bench(store, hints_max=3)) as bench:
        await bench.until_claims(1)
        bench.pump.offer(["a", "b", "c", "d", "e"])
        held_back.set()
        await bench.until_claims(2)
        assert store.claims[1] == (2, ("a", "b", "c"))
        assert (bench.pump.info()["offered"], bench.pump.info()["dropped"]) == (1, 2)


@pytest.mark.behaviour("DST-07")
async def test_a_wake_whose_work_is_gone_is_counted_and_forgotten() -> None:
    async with serving(Bench(Store())) as bench:
        await bench.until_claims(1)
        bench.pump.offer(["gone"])
        await bench.until_claims(2)
        bench.pump.offer([])
        await bench.until_claims(3)
        assert bench.store.claims == [(2, ()), (2, ("gone",)), (2, ())]
        assert bench.pump.info()["lost_claims"] == 1


async def test_a_failing_claim_is_tried_again_and_keeps_its_ids(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("a")
    failures = 2

    async def fail_twice() -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise StoreUnavailable("away")

    store.answer = fail_twice
    async with serving(Bench(store)) as bench:
        bench.pump.offer(["a"])
        await bench.until_running("a")
        assert store.claims == [(2, ("a",))] * 3
        assert bench.pump.info()["claim_failures"] == 2
    assert [record.getMessage() for record in caplog.records] == ["claims fail: away", "claims succeed again"]


async def test_offers_do_not_hurry_a_failing_claim() -> None:
    store = Store()

    async def fail() -> None:
        raise StoreUnavailable("away")

    store.answer = fail
    async with serving(Bench(store)) as bench:
        await bench.until_claims(1)
        for _ in range(10):
            bench.pump.offer(["a"])
            await settle()
        assert len(store.claims) == 1


async def test_a_failing_work_ends_neither_the_pump_nor_its_neighbours() -> None:
    async with serving(Bench(Store("bad", "b"), capacity=3)) as bench:
        await bench.until_running("bad", "b")
        bench.release("bad")
        await bench.until_running("b")
        assert (bench.pump.info()["failed"], bench.pump.info()["ids"]) == (1, ["b"])
        bench.store.owed.append("c")
        bench.pump.offer()
        await bench.until_running("b", "c")


@pytest.mark.behaviour("DST-18")
async def test_a_drain_claims_no_more_and_waits_for_what_is_held() -> None:
    async with serving(Bench(Store("a"))) as bench:
        await bench.until_running("a")
        draining = asyncio.create_task(bench.pump.drain(NEVER_S))
        bench.store.owed.append("b")
        bench.pump.offer(["b"])
        await settle()
        assert (len(bench.store.claims), draining.done()) == (1, False)
        bench.release("a")
        await draining
        assert (bench.done, bench.cancelled) == (["a"], [])


@pytest.mark.behaviour("DST-18", "SHD-28")
async def test_a_drain_cancels_what_is_held_past_its_time_and_logs_how_much_that_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(Bench(Store("a", "b"))) as bench:
        await bench.until_running("a", "b")
        await bench.pump.drain(0.01)
        assert (sorted(bench.cancelled), bench.pump.info()["held"]) == (["a", "b"], 0)
    assert "the time to drain is over: 2 works are handed back" in caplog.text


async def test_a_drain_awaits_the_claim_under_way_and_runs_what_it_owned() -> None:
    store = Store("a")
    held_back = asyncio.Event()

    async def hold_back() -> None:
        await held_back.wait()

    store.answer = hold_back
    async with serving(Bench(store)) as bench:
        await bench.until_claims(1)
        draining = asyncio.create_task(bench.pump.drain(NEVER_S))
        await settle()
        held_back.set()
        await bench.until_running("a")
        bench.release("a")
        await draining
        assert (bench.done, len(store.claims)) == (["a"], 1)


@pytest.mark.behaviour("DST-18")
async def test_a_stop_ends_a_drain_at_once() -> None:
    async with serving(Bench(Store("a", "b"))) as bench:
        await bench.until_running("a", "b")
        draining = asyncio.create_task(bench.pump.drain(NEVER_S))
        await settle()
        bench.pump.stop_now()
        await draining
        assert sorted(bench.cancelled) == ["a", "b"]


@pytest.mark.behaviour("DST-18")
async def test_a_work_that_was_just_claimed_sees_run_before_it_is_cancelled() -> None:
    store = Store("a")
    bench = Bench(store)

    async def stop_behind_the_claim() -> None:
        asyncio.get_running_loop().call_soon(bench.pump.stop_now)

    store.answer = stop_behind_the_claim
    async with serving(bench):
        await bench.until_claims(1)
        await bench.pump.drain(NEVER_S)
        assert bench.cancelled == ["a"]


async def test_serving_ends_with_the_pump_and_a_cancelled_server_cancels_what_it_holds() -> None:
    bench = Bench(Store("a"))
    task = asyncio.create_task(bench.pump.serve())
    await bench.until_running("a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await bench.pump.drain(NEVER_S)
    assert bench.cancelled == ["a"]


async def test_a_pump_that_never_served_drains() -> None:
    await Bench(Store()).pump.drain(NEVER_S)


@pytest.mark.behaviour("DST-18")
async def test_a_pump_that_drains_passes_wakes_on_to_the_workers_elsewhere() -> None:
    """What a drained turn promotes, or is given back, is offered to a pump that claims no more."""
    async with serving(Bench(Store("a"), capacity=1)) as bench:
        await bench.until_running("a")
        rings = bench.rings
        draining = asyncio.create_task(bench.pump.drain(NEVER_S))
        await settle()
        bench.pump.offer(["promoted"])
        assert bench.rings == rings + 1
        bench.pump.offer()
        assert bench.rings == rings + 1, "a ring of our own that came back is not rung again"
        bench.release("a")
        await draining


@pytest.mark.behaviour("DST-18")
async def test_a_wake_that_came_too_late_to_be_followed_is_passed_on_by_the_drain() -> None:
    async with serving(Bench(Store("a"), capacity=1)) as bench:
        await bench.until_running("a")
        await settle()
        rings = bench.rings
        bench.pump.offer(["b"])
        await bench.pump.drain(0.01)
        assert bench.rings == rings + 1


@pytest.mark.behaviour("DST-32")
async def test_while_its_loop_is_overloaded_it_claims_nothing_beside_what_it_holds_and_says_so() -> None:
    overloaded = [False]
    store = Store("a")
    async with serving(Bench(store, capacity=5, is_overloaded=lambda: overloaded[0])) as bench:
        await bench.until_running("a")
        overloaded[0] = True
        store.owed.append("b")
        claims = len(store.claims)
        bench.pump.offer(["b"])
        await await_until(lambda: bench.pump.info()["overloaded"], what="it says so")
        await settle()
        assert (len(store.claims), store.owed) == (claims, ["b"])
        # Its wakes go to the workers elsewhere meanwhile.
        assert (bench.gate[-1], bench.rings) == ("shut", 1)
        assert bench.pump.info()["overloads"] == 1

        overloaded[0] = False
        await bench.until_running("a", "b")
        await await_until(lambda: bench.gate[-1] == "open", what="the gate open again")


@pytest.mark.behaviour("DST-32")
async def test_an_overloaded_process_that_holds_nothing_takes_one_work_at_a_time() -> None:
    """Others may be what slows its loop: it would never do anything."""
    store = Store("a", "b", "c")
    async with serving(Bench(store, capacity=5, is_overloaded=lambda: True)) as bench:
        await bench.until_running("a")
        await settle()
        assert store.claims == [(1, ())]
        bench.release("a")
        await bench.until_running("b")
