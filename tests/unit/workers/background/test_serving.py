"""The runtime of the background pools: one pass an item, in its time, settled once by what became of it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.errors import (
    FenceLost,
    InvalidInput,
    MemoryConflict,
    MemoryCorrupt,
    ModelOutputInvalid,
    ModelUnavailable,
    ProcessingRefused,
    RebasesSpent,
    StoreBusy,
    StoreUnavailable,
    TurnClosed,
)
from shared.domain.ids import OwnerId, WorkerId
from shared.jobs.inproc import JobTable
from shared.jobs.queue import How, JobClaim, Settled
from shared.leases.fence import Fence
from shared.leases.watchdog import lease_trusted_for, watchdog_deadline
from tests.support.job_bench import ACTIVITY, ANN, BOB, POLICY, Bench, LinedQueue, failing
from tests.support.virtual_time import loop_clock, virtual_time
from workers.background.serving import RETRY_FIRST_S, RETRY_MAX_S, HeldJob, JobServer, PoolPolicy


async def fine(claim: JobClaim) -> None:
    """Do nothing."""


async def hang(claim: JobClaim) -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


# --- settled by its outcome ------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.behaviour("DST-13")
async def test_a_pass_that_returns_settles_its_item_as_done_and_lets_its_lease_go() -> None:
    bench = Bench(fine)
    await bench.owe()
    await bench.run()
    assert bench.queue.settled == [("done", 0.0, None)]
    assert (bench.row().status, bench.server.counts.settled, bench.server.counts.failures) == (
        "idle",
        {"done": 1},
        {},
    )
    assert len(bench.server.keeper) == 0


AWAY = [
    (StoreUnavailable("away"), "store.unavailable"),
    (StoreBusy("busy"), "store.busy"),
    (ModelUnavailable("away"), "model.unavailable"),
    (ModelOutputInvalid("cut", reason="cut"), "model.output:cut"),
    (RebasesSpent("spent"), "memory.rebases"),
]
REFUSED = [
    (InvalidInput("no", field="f", bound="b"), "input.invalid"),
    (ProcessingRefused("no", reason="facts"), "memory.processing:facts"),
    (MemoryCorrupt("corrupt"), "memory.corrupt"),
    (MemoryConflict("other"), "memory.conflict"),
    (ZeroDivisionError("of ann"), "defect"),
]


@pytest.mark.parametrize(("error", "code"), AWAY, ids=[code for _, code in AWAY])
@virtual_time
@pytest.mark.behaviour("DST-13")
async def test_what_is_away_or_full_is_waited_for_and_costs_no_try(error: Exception, code: str) -> None:
    bench = Bench(failing(error))
    await bench.owe()
    await bench.run()
    [(how, due_in_s, failure)] = bench.queue.settled
    assert (how, failure) == ("wait", code)
    assert RETRY_FIRST_S <= due_in_s <= RETRY_MAX_S
    assert (bench.row().status, bench.row().attempts, bench.row().waits) == ("ready", 0, 1)
    assert (bench.server.counts.settled, bench.server.counts.failures) == ({"wait": 1}, {code: 1})


@pytest.mark.parametrize(("error", "code"), REFUSED, ids=[code for _, code in REFUSED])
@virtual_time
@pytest.mark.behaviour("DST-13")
async def test_what_no_repetition_mends_parks_its_item_with_the_code_and_not_with_the_text(
    error: Exception, code: str
) -> None:
    bench = Bench(failing(error))
    await bench.owe()
    await bench.run()
    assert bench.queue.settled == [("park", 0.0, code)]
    assert (bench.row().status, bench.row().last_failure) == ("parked", code)
    assert bench.server.counts.failures == {code: 1}


@pytest.mark.parametrize("policy", [POLICY, ACTIVITY], ids=["renewed", "activity"])
@virtual_time
@pytest.mark.behaviour("DST-13")
async def test_a_pass_that_takes_too_long_is_stopped_at_its_deadline_and_counts_a_try(
    policy: PoolPolicy,
) -> None:
    finished = []

    async def slow(claim: JobClaim) -> None:
        try:
            await hang(claim)
        finally:
            finished.append(asyncio.get_running_loop().time())

    bench = Bench(slow, policy=policy)
    await bench.owe()
    if policy.renew_s is None:
        await bench.run()
    else:
        async with bench.renewing():
            await bench.run()
    assert finished == [pytest.approx(policy.deadline_s)]
    [(how, due_in_s, failure)] = bench.queue.settled
    assert (how, due_in_s, failure) == ("retry", RETRY_FIRST_S, "timeout")
    assert (bench.row().status, bench.row().attempts) == ("ready", 1)
    assert bench.server.keeper.counts.watchdog_fired == 0


@virtual_time
@pytest.mark.behaviour("DST-13")
async def test_an_item_that_is_always_too_slow_is_parked_in_the_end() -> None:
    bench = Bench(hang, policy=ACTIVITY)
    await bench.owe()
    while bench.row().status != "parked":
        await bench.run()
        await asyncio.sleep(RETRY_MAX_S)
    assert [how for how, _, _ in bench.queue.settled] == ["retry"] * 5
    assert bench.row().last_failure == "timeout"


@pytest.mark.parametrize(
    "error", [FenceLost("no"), TurnClosed("no", reason="removed")], ids=["lost", "closed"]
)
@virtual_time
@pytest.mark.behaviour("DST-09")
async def test_a_fence_that_is_lost_ends_the_pass_quietly_and_settles_nothing(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(failing(error))
    await bench.owe()
    with caplog.at_level(logging.INFO, "workers"):
        await bench.run()
    assert bench.queue.settled == []
    assert (bench.server.counts.settled, bench.server.counts.failures) == ({"lost": 1}, {})
    assert {r.levelname for r in caplog.records if r.name.startswith("workers")} == {"INFO"}
    assert len(bench.server.keeper) == 0


@virtual_time
@pytest.mark.behaviour("DST-09")
async def test_an_item_that_another_took_meanwhile_is_counted_as_lost_and_left_alone() -> None:
    async def overtaken(claim: JobClaim) -> None:
        row = bench.row()
        row.epoch += 1

    bench = Bench(overtaken)
    await bench.owe()
    await bench.run()
    assert bench.server.counts.settled == {"lost": 1}
    assert bench.row().status == "running"


@virtual_time
async def test_an_item_that_cannot_be_settled_is_left_to_its_lease_and_done_again() -> None:
    bench = Bench(fine)
    await bench.owe()
    bench.queue.away = {"settle"}
    await bench.run()
    assert bench.server.counts.settled == {"lost": 1}
    bench.queue.away = set()
    await asyncio.sleep(POLICY.lease_s + 1)
    await bench.run()
    assert (bench.passes, bench.row().status) == (["job", "job"], "idle")


@virtual_time
async def test_a_pools_log_says_which_item_and_code_and_nothing_of_its_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(failing(ModelUnavailable("the model is away", reason="http")))
    await bench.owe(owner=OwnerId("tenant-7"))
    with caplog.at_level(logging.DEBUG, "workers"):
        await bench.run()
    [record] = [r for r in caplog.records if r.name.startswith("workers")]
    about = {name: record.__dict__[name] for name in ("pool", "job", "epoch", "attempts", "code")}
    assert about == {
        "pool": "remember",
        "job": "job",
        "epoch": 1,
        "attempts": 0,
        "code": "model.unavailable:http",
    }
    assert "tenant-7" not in str(record.__dict__)


# --- backoff -----------------------------------------------------------------------------------------------------------


@given(attempts=st.integers(0, 10_000), waits=st.integers(0, 10_000), seed=st.integers())
@pytest.mark.behaviour("DST-13")
def test_a_pause_is_between_a_second_and_five_minutes_and_below_its_doubling(
    attempts: int, waits: int, seed: int
) -> None:
    pauses: list[float] = []

    class Noted(LinedQueue):
        async def settle(self, claim: JobClaim, how: How, *, due_in_s: float = 0.0, **given: Any) -> Settled:
            pauses.append(due_in_s)
            return "ready"

    queue = Noted(JobTable())
    server = JobServer(queue, WorkerId("w"), POLICY, failing(StoreBusy("busy")), rng=random.Random(seed))
    claim = JobClaim("remember", "job", ANN, Fence(1, uuid4()), attempts, False, waits)
    asyncio.run(server.run(HeldJob(claim)))
    tries = attempts + waits
    highest = RETRY_MAX_S if tries > 16 else min(RETRY_MAX_S, RETRY_FIRST_S * 2**tries)
    assert RETRY_FIRST_S <= pauses[0] <= highest


@virtual_time
@pytest.mark.behaviour("DST-13")
async def test_an_outage_is_waited_out_however_long_with_pauses_that_grow() -> None:
    bench = Bench(failing(*[ModelUnavailable("away")] * 12))
    await bench.owe()
    while bench.row().status != "idle":
        await bench.run()
        await asyncio.sleep(RETRY_MAX_S)
    pauses = [due for how, due, _ in bench.queue.settled if how == "wait"]
    assert len(pauses) == 12
    assert max(pauses[:3]) <= 4 < max(pauses[6:])
    assert bench.row().attempts == 0


# --- drains, losses and leases -------------------------------------------------------------------------------------------


@virtual_time
async def test_a_drain_gives_the_item_back_at_once_and_uncounted() -> None:
    bench = Bench(hang)
    await bench.owe()
    _, task = await bench.start()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert bench.queue.settled == [("release", 0.0, None)]
    assert (bench.row().status, bench.row().attempts, bench.server.counts.settled) == (
        "ready",
        0,
        {"release": 1},
    )
    assert len(bench.server.keeper) == 0
    assert (await bench.claim()).claim.attempts == 0


@virtual_time
@pytest.mark.behaviour("DST-08")
async def test_work_that_cannot_be_renewed_is_cancelled_before_its_lease_ends_and_settles_nothing() -> None:
    bench = Bench(hang)
    await bench.owe()
    held, task = await bench.start()
    async with bench.renewing():
        bench.queue.away = {"renew"}
        await asyncio.wait({task})
    assert asyncio.get_running_loop().time() == pytest.approx(
        watchdog_deadline(0.0, POLICY.lease_s), abs=0.01
    )
    assert (task.cancelled(), held.lost, bench.queue.settled) == (True, "watchdog", [])
    assert bench.server.keeper.counts.watchdog_fired == 1


@virtual_time
@pytest.mark.behaviour("DST-08")
async def test_a_long_pass_is_held_by_its_renewals() -> None:
    async def long(claim: JobClaim) -> None:
        await asyncio.sleep(3 * POLICY.lease_s)

    bench = Bench(long)
    await bench.owe()
    async with bench.renewing():
        await bench.run()
    assert bench.queue.settled == [("done", 0.0, None)]
    assert bench.row().status == "idle"


@virtual_time
@pytest.mark.behaviour("DST-08", "DST-09")
async def test_a_renewal_that_is_refused_cancels_the_pass() -> None:
    bench = Bench(hang)
    await bench.owe()
    held, task = await bench.start()
    bench.row().token = None
    async with bench.renewing():
        await asyncio.wait({task})
    assert (task.cancelled(), held.lost, bench.queue.settled) == (True, "lost", [])


@virtual_time
async def test_an_item_that_is_lost_before_it_runs_is_not_run() -> None:
    bench = Bench(fine)
    await bench.owe()
    held = await bench.claim()
    await asyncio.sleep(POLICY.lease_s)
    await bench.server.run(held)
    assert (held.lost, bench.passes, bench.queue.settled) == ("watchdog", [], [])


@pytest.mark.behaviour("DST-08")
@given(work_s=st.floats(0.01, 10_000))
def test_a_lease_that_is_not_renewed_is_trusted_for_as_long_as_its_work_may_take(work_s: float) -> None:
    lease_s = lease_trusted_for(work_s)
    assert watchdog_deadline(0.0, lease_s) >= work_s * (1 - 1e-12)
    assert lease_s <= work_s * 1.2 + 1


# --- claims --------------------------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.behaviour("DST-14")
async def test_each_claim_goes_on_after_the_owner_that_was_served_last() -> None:
    bench = Bench(fine)
    for owner in (ANN, BOB):
        for n in range(2):
            await bench.owe(f"{owner}-{n}", owner)
    for _ in range(4):
        await bench.run()
    assert await bench.server.claim(1, ()) == []
    assert bench.queue.cursors == ["", "ann", "bob", "ann", "bob"]
    assert bench.passes == ["ann-0", "bob-0", "ann-1", "bob-1"]


@virtual_time
@pytest.mark.behaviour("DST-14")
async def test_an_item_that_was_taken_over_moves_no_turn_of_the_rotation() -> None:
    bench = Bench(fine)
    await bench.owe("lost", BOB)
    await bench.claim()
    await bench.owe("due", ANN)
    await bench.run()
    await asyncio.sleep(POLICY.lease_s + 1)
    assert (await bench.claim()).claim.lost
    await bench.server.claim(1, ())
    assert bench.queue.cursors == ["", "bob", "ann", "ann"]


@virtual_time
@pytest.mark.behaviour("DST-08")
async def test_what_is_claimed_is_trusted_from_when_the_claim_was_sent() -> None:
    class SlowClaims(LinedQueue):
        async def claim(self, *given: Any, **how: Any) -> Sequence[JobClaim]:
            claims = await super().claim(*given, **how)
            await asyncio.sleep(4)
            return claims

    bench = Bench(fine, queue=SlowClaims(JobTable(loop_clock)))
    await bench.owe()
    await bench.claim()
    assert bench.server.keeper.trusted_until("job") == watchdog_deadline(0.0, POLICY.lease_s)


@virtual_time
@pytest.mark.behaviour("DST-14")
async def test_places_that_go_round_once_more_do_not_move_the_rotation_back() -> None:
    bench = Bench(fine)
    for owner in (ANN, ANN, ANN, BOB, OwnerId("cy")):
        await bench.owe(f"{owner}-{len(bench.queue.table.rows)}", owner)
    claimed = await bench.server.claim(5, ())
    assert [held.claim.owner for held in claimed] == ["ann", "ann", "bob", "cy", "ann"]
    await bench.server.claim(1, ())
    assert bench.queue.cursors == ["", "cy"]


@virtual_time
@pytest.mark.behaviour("DST-13")
async def test_a_cancellation_that_a_pass_raises_by_itself_parks_its_item_and_is_no_drain() -> None:
    async def stray(claim: JobClaim) -> None:
        raise asyncio.CancelledError

    bench = Bench(stray)
    await bench.owe()
    await bench.run()
    assert (bench.row().status, bench.queue.settled) == ("parked", [("park", 0.0, "defect")])
