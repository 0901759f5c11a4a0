"""Two workers and one turn: a doubled wake, a lease that was stolen in the middle of a step, many turns out of time."""

from __future__ import annotations

import asyncio

import pytest

from shared.agents import Policy
from shared.domain.ids import new_session_id
from shared.models.scripted import ScriptedModel
from shared.sessions.log import NewSession
from tests.support.scripted_tools import Bench, calls
from tests.support.turn_world import LEASE_S, OWNER, TurnWorld
from tests.support.virtual_time import virtual_time


@virtual_time
@pytest.mark.behaviour("DST-06", "TRN-05")
async def test_of_two_workers_with_one_wake_one_begins_the_turn_and_the_other_does_nothing() -> None:
    world = TurnWorld(ScriptedModel(["once"]))
    turn = await world.admit()
    first, second = world.process("w1"), world.process("w2")
    found = await asyncio.gather(*(p.claimer.claim(1, (str(turn),)) for p in (first, second)))
    assert sorted(len(holdings) for holdings in found) == [0, 1]
    for process, holdings in zip((first, second), found, strict=True):
        for holding in holdings:
            await process.run(holding)
    assert await second.claimer.claim(1, (str(turn),)) == []
    assert (world.kinds().count("turn.started"), len(world.model.requests)) == (1, 1)


@virtual_time
@pytest.mark.behaviour("TRN-27", "DST-09")
async def test_a_lease_stolen_in_a_step_cancels_the_other_handlers_and_stores_nothing_more() -> None:
    bench = Bench()
    world = TurnWorld(ScriptedModel([calls("work", "work", "work")]), bench.tool)
    await world.admit()
    slow = world.process("slow")
    holding, running = await slow.start()
    await bench.has_begun(3)
    # Its watchdog is out of the way, as in a process that was stopped and goes on.
    slow.holdings.keeper.drop(holding.claim.turn_id, holding.claim.fence)
    await asyncio.sleep(LEASE_S + 1)
    stolen = await world.process("thief").claim()
    await world.queue.open(stolen.claim, "c1", [])
    before = world.kinds()
    bench.let_go("0")
    await asyncio.wait({running})
    assert sorted(bench.cancelled) == ["1", "2"]
    assert world.kinds() == before
    assert slow.runner.counts.stale_writes_refused == 1


@virtual_time
@pytest.mark.behaviour("DST-31")
async def test_many_turns_that_run_out_of_time_in_their_model_calls_end_once_each() -> None:
    """C12: cancel by timeout during model calls, under load."""
    model = ScriptedModel(lambda _: "never")
    model.hold()
    world = TurnWorld(model, policy=Policy(max_duration_s=10))
    turns = []
    for _ in range(50):
        session = (await world.log.create(NewSession(new_session_id(), OWNER))).session_id
        turns.append(await world.admit_to(session, OWNER))
    process = world.process()
    holdings = await process.claimer.claim(50, ())
    renewing = asyncio.create_task(process.holdings.renew_for_ever())
    await asyncio.gather(*(process.run(holding) for holding in holdings))
    renewing.cancel()
    views = [await world.view(turn) for turn in turns]
    assert {(view.status, view.code) for view in views} == {("ended", "turn.timeout")}
    ends = [w for w in world.queue.writes if w.what == "end"]
    assert (len(ends), model.cancelled) == (50, 50)
