"""The leases of one process: renewed together, watched, trusted no longer than they may be, and never kept by mistake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.domain.errors import StoreUnavailable
from shared.domain.ids import TurnId, WorkerId
from shared.leases.fence import Fence
from shared.leases.watchdog import margin_s, watchdog_deadline
from shared.models.scripted import ScriptedModel
from shared.turns.inproc.rows import TurnTables
from shared.turns.queue import Renewal
from tests.support.scripted_tools import Bench, calls
from tests.support.turn_world import LEASE_S, OWNER, POLL_S, RENEW_S, FaultyQueue, TurnWorld, WorkerProcess
from tests.support.virtual_time import virtual_time
from workers.turns.holdings import Holdings


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def looked_after(process: WorkerProcess) -> AsyncIterator[None]:
    """Run both loops of a process's holdings."""
    loops = [
        asyncio.create_task(process.holdings.renew_for_ever()),
        asyncio.create_task(process.holdings.watch_for_ever()),
    ]
    try:
        yield
        assert not any(loop.done() for loop in loops), "a loop gave up"
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.wait(loops)


def held(*script: str) -> ScriptedModel:
    model = ScriptedModel(script or ("never",))
    model.hold()
    return model


@given(st.floats(0.01, 100_000))
@pytest.mark.behaviour("DST-08")
def test_the_margin_before_a_leases_end_is_a_tenth_or_up_to_a_second_and_never_the_whole(
    lease_s: float,
) -> None:
    assert margin_s(lease_s) == pytest.approx(max(lease_s / 10, min(1, lease_s / 4)))
    assert 100 < watchdog_deadline(100, lease_s) < 100 + lease_s


@virtual_time
@pytest.mark.behaviour("DST-08", "SES-90")
async def test_a_turn_that_writes_nothing_for_long_is_held_by_its_renewals() -> None:
    world = TurnWorld(held("at last"))
    turn = await world.admit()
    process = world.process()
    async with looked_after(process):
        _, task = await process.start()
        await asyncio.sleep(20 * LEASE_S)
        assert not task.done()
        assert await world.process("other").claimer.claim(1, ()) == []
        world.model.release()
        await task
    assert (await world.view(turn)).outcome == "completed"
    assert process.holdings.keeper.counts.renewed == world.queue.renewals == 20 * LEASE_S // RENEW_S
    assert process.holdings.keeper.counts.watchdog_fired == 0


@virtual_time
@pytest.mark.behaviour("DST-33", "SES-98")
async def test_all_turns_of_a_process_are_renewed_in_one_statement_and_none_costs_none() -> None:
    world = TurnWorld(held())
    process = world.process()
    async with looked_after(process):
        await asyncio.sleep(3 * RENEW_S)
        assert world.queue.renewals == 0
        for _ in range(3):
            world.session = type(world.session)("")
            await world.admit()
        await process.claimer.claim(9, ())
        await asyncio.sleep(RENEW_S + 0.1)
    assert (world.queue.renewals, process.holdings.keeper.counts.renewed) == (1, 3)


@virtual_time
@pytest.mark.behaviour("DST-08")
async def test_work_is_cancelled_before_its_lease_ends_when_renewals_cannot_be_made() -> None:
    """Field case: the connection that renews is blocked past the lease; effects of two workers never overlap."""
    world = TurnWorld(held())
    await world.admit()
    old, new = world.process("old"), world.process("new")
    async with looked_after(old):
        holding, task = await old.start()
        await world.model.started()
        await asyncio.sleep(RENEW_S + 0.5)  # renewed once, at 5 s
        world.queue.away = True
        await asyncio.wait({task})
        stopped_at = now()
        world.queue.away = False
    assert stopped_at == pytest.approx(RENEW_S + LEASE_S - 1.5, abs=0.1)
    assert (task.cancelled(), holding.lost, world.model.cancelled) == (True, "watchdog", 1)
    assert old.holdings.keeper.counts.watchdog_fired == 1
    assert old.holdings.counts.lost == {"watchdog": 1}
    assert await new.claimer.claim(1, ()) == [], "the lease itself has not passed yet"
    await asyncio.sleep(1.6)
    assert len(await new.claimer.claim(1, ())) == 1


@virtual_time
@pytest.mark.behaviour("DST-08")
async def test_a_renewal_counts_from_when_it_was_sent_not_from_when_it_was_answered() -> None:
    class SlowAnswers(FaultyQueue):
        async def renew(self, fences: Mapping[TurnId, Fence], lease_s: float) -> Renewal:
            answer = await super().renew(fences, lease_s)
            await asyncio.sleep(6)
            return answer

    world = TurnWorld(held())
    await world.admit()
    process = world.process()
    slow = SlowAnswers(world.store)
    process.holdings = Holdings(slow, WorkerId("w1"), lease_s=LEASE_S, renew_s=RENEW_S, poll_s=POLL_S)
    process.claimer.holdings = process.runner.holdings = process.holdings
    renewing = asyncio.create_task(process.holdings.renew_for_ever())
    holding, task = await process.start()
    await asyncio.sleep(RENEW_S + 6 + 0.1)
    renewing.cancel()
    await asyncio.wait({task})
    assert now() == pytest.approx(RENEW_S + LEASE_S - 1.5, abs=0.01)
    assert holding.lost == "watchdog"


@virtual_time
async def test_a_row_that_was_locked_just_then_is_tried_again_at_once_and_no_more_than_thrice() -> None:
    class Locked(FaultyQueue):
        skips = 2

        async def renew(self, fences: Mapping[TurnId, Fence], lease_s: float) -> Renewal:
            self.renewals += 1
            self.skips -= 1
            if self.skips >= 0:
                return Renewal(frozenset(), frozenset(fences), frozenset())
            return await super().renew(fences, lease_s)

    world = TurnWorld(held())
    await world.admit()
    process = world.process()
    queue = Locked(world.store)
    process.holdings = Holdings(queue, WorkerId("w1"), lease_s=LEASE_S, renew_s=RENEW_S, poll_s=POLL_S)
    process.claimer.holdings = process.holdings
    renewing = asyncio.create_task(process.holdings.renew_for_ever())
    await process.claimer.claim(1, ())
    await asyncio.sleep(RENEW_S + 0.1)
    assert (process.holdings.keeper.counts.renewed, queue.skips) == (1, -1)
    queue.skips = 100
    await asyncio.sleep(RENEW_S)
    assert queue.skips == 97
    renewing.cancel()


@virtual_time
@pytest.mark.behaviour("DST-08", "DST-09")
async def test_a_renewal_that_is_refused_cancels_the_work() -> None:
    world = TurnWorld(held())
    turn = await world.admit()
    process = world.process()
    renewing = asyncio.create_task(process.holdings.renew_for_ever())
    holding, task = await process.start()
    await world.model.started()
    await world.queue.cancel(turn, OWNER)
    await asyncio.wait({task})
    renewing.cancel()
    assert holding.lost == "lost"
    assert now() == pytest.approx(RENEW_S, abs=0.1)
    assert process.holdings.keeper.counts.refused == 1


@virtual_time
async def test_the_first_reason_of_a_loss_stays() -> None:
    world = TurnWorld(held())
    await world.admit()
    process = world.process()
    holding, task = await process.start()
    await world.model.started()
    holding.lose("cancelled")
    holding.lose("lost")
    await asyncio.wait({task})
    assert process.holdings.counts.lost == {"cancelled": 1}


@virtual_time
@pytest.mark.behaviour("SES-127")
async def test_a_hint_makes_the_process_look_at_once() -> None:
    world = TurnWorld(held())
    turn = await world.admit()
    process = world.process()
    async with looked_after(process):
        _, task = await process.start()
        await world.model.started()
        await asyncio.sleep(0.25)
        await world.queue.cancel(turn, OWNER)
        process.holdings.look_soon()
        await asyncio.wait({task})
    assert now() < 0.5


@virtual_time
async def test_a_process_that_was_without_the_database_takes_nothing_over_for_one_lease() -> None:
    world = TurnWorld(held())
    process = world.process()
    async with looked_after(process):
        await asyncio.sleep(100)
        world.queue.faults["watch"] = ["unreached"]
        found = [process.holdings.may_take_over]
        for pause_s in (2 * POLL_S, LEASE_S - 2 * POLL_S, 2 * POLL_S):
            await asyncio.sleep(pause_s)
            found.append(process.holdings.may_take_over)
    assert found == [True, False, False, True]


# --- claims whose answer was lost ----------------------------------------------------------------------------------


@virtual_time
@pytest.mark.behaviour("DST-06")
async def test_a_turn_whose_claim_was_not_answered_is_given_back_uncounted_within_a_poll() -> None:
    world = TurnWorld(held())
    turn = await world.admit()
    process = world.process()
    world.queue.faults["claim"] = ["lost"]
    async with looked_after(process):
        with pytest.raises(StoreUnavailable):
            await process.claimer.claim(1, ())
        assert (await world.view(turn)).status == "running"
        await asyncio.sleep(POLL_S + 0.1)
        view = await world.view(turn)
    assert (view.status, view.attempts) == ("ready", 0)
    assert process.holdings.counts.orphans_released == 1


@virtual_time
async def test_a_turn_of_a_claim_under_way_is_never_given_back() -> None:
    world = TurnWorld(held())
    turn = await world.admit()
    process = world.process()
    async with looked_after(process):
        world.queue.claims_answered.clear()
        claiming = asyncio.create_task(process.claimer.claim(1, ()))
        await asyncio.sleep(5 * POLL_S)
        assert (await world.view(turn)).status == "running"
        world.queue.claims_answered.set()
        (holding,) = await claiming
        await asyncio.sleep(5 * POLL_S)
        assert (await world.view(turn)).status == "running"
    assert holding.lost is None
    assert process.holdings.counts.orphans_released == 0


@virtual_time
async def test_a_lost_claim_is_given_back_although_later_claims_are_under_way() -> None:
    world = TurnWorld(held())
    turn = await world.admit()
    process = world.process()
    async with looked_after(process):
        world.queue.faults["claim"] = ["lost"]
        with pytest.raises(StoreUnavailable):
            await process.claimer.claim(1, ())
        world.queue.claims_answered.clear()
        claiming = asyncio.create_task(process.claimer.claim(1, ()))
        await asyncio.sleep(3 * POLL_S)
        assert (await world.view(turn)).status == "running", "it may be of the claim that is under way"
        world.queue.claims_answered.set()
        assert await claiming == []
        await asyncio.sleep(POLL_S + 0.1)
        assert (await world.view(turn)).status == "ready"


@virtual_time
async def test_another_claim_of_a_held_turn_is_given_back_and_the_older_holding_is_lost() -> None:
    """A row claimed again by this very process, whose answer was lost: the fence held here is not the row's."""
    world = TurnWorld(held())
    turn = await world.admit()
    process = world.process()
    holding = await process.claim()
    row = world.store.part(TurnTables).turns[turn]
    row.epoch, row.token = row.epoch + 1, Fence(0, row.id).token
    async with looked_after(process):
        await asyncio.sleep(2 * POLL_S + 0.1)
    assert holding.lost == "lost"
    assert (await world.view(turn)).status == "ready"
    again = await process.claim()
    process.holdings.drop(holding)
    assert len(process.holdings) == 1, "the older holding takes the newer one not with it"
    assert again.lost is None


@virtual_time
async def test_suspects_that_are_held_now_are_counted() -> None:
    world = TurnWorld(held())
    turn = await world.admit()
    process = world.process()
    world.store.part(TurnTables).turns[turn].suspect = True
    holding = await process.claim()
    assert (process.holdings.suspects, len(process.holdings)) == (1, 1)
    process.holdings.drop(holding)
    assert (process.holdings.suspects, len(process.holdings)) == (0, 0)


@virtual_time
@pytest.mark.behaviour("DST-20")
async def test_a_suspect_that_stores_a_whole_step_is_no_suspect_any_more() -> None:
    bench = Bench()
    world = TurnWorld(ScriptedModel([calls("work"), calls("work"), "end"]), bench.tool)
    turn = await world.admit()
    process = world.process()
    world.store.part(TurnTables).turns[turn].suspect = True
    _, task = await process.start()
    await bench.has_begun(1)
    assert process.holdings.suspects == 1, "nothing whole is stored yet"
    bench.let_go("0")
    await bench.has_begun(2)
    assert (process.holdings.suspects, len(process.holdings)) == (0, 1)
    await task


@virtual_time
@pytest.mark.behaviour("DST-20")
async def test_a_turn_whose_very_failure_cannot_be_stored_is_left_to_its_lease_and_its_losses_are_counted() -> (
    None
):
    """Given back it would be claimed again at once, uncounted, for ever."""
    world = TurnWorld(held())
    turn = await world.admit(message={"text": 1})
    process = world.process()
    async with looked_after(process):
        with pytest.raises(ValidationError):
            await process.run()
        await asyncio.sleep(LEASE_S - 1)
        assert (await world.view(turn)).status == "running"
        await asyncio.sleep(2)
        again = await process.claim()
        assert (again.claim.lost, again.claim.suspect) == (True, True)
        assert process.holdings.counts.orphans_released == 0
