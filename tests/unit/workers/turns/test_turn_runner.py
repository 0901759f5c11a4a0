"""How an attempt stops being ours: lost answers, cancels, fences that are gone, and the drain of the process."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from shared.agents import Tool, tool
from shared.models.scripted import ScriptedModel, ScriptedReply
from shared.models.types import ToolCall
from shared.sessions.vocabulary import TurnReply, draft_of
from shared.turns.inproc.rows import TurnTables
from tests.support.turn_world import LEASE_S, OWNER, POLL_S, Fault, TurnWorld, WorkerProcess
from tests.support.virtual_time import virtual_time
from workers.turns.holdings import Holding

CALL = ScriptedReply(calls=(ToolCall("c0", "act", "{}"),))


class Hung:
    """A tool that waits until it is cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = False

        async def act() -> None:
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled = True

        self.tool: Tool = tool(name="act", description="Act.")(act)


def quick() -> Tool:
    async def act() -> str:
        return "done"

    return tool(name="act", description="Act.")(act)


def held(*script: object) -> ScriptedModel:
    model = ScriptedModel(script or ("never",))  # type: ignore[arg-type]  # any sort of script step
    model.hold()
    return model


async def asked(world: TurnWorld, process: WorkerProcess) -> tuple[Holding, asyncio.Task[None]]:
    """Start the turn and wait until its model is asked."""
    holding, task = await process.start()
    await world.model.started(len(world.model.requests) + 1)
    return holding, task


async def ended(task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(30):
        await asyncio.wait({task})
    assert task.done()


# --- lost answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [["lost"], ["unreached"], ["lost", "unreached", "lost"]], ids="-".join)
@pytest.mark.parametrize("what", ["open", "append", "end", "calls"])
@virtual_time
@pytest.mark.behaviour("SES-52", "TRN-21")
async def test_a_commit_whose_answer_was_lost_is_repeated_under_its_id_and_stored_once(
    what: str, faults: list[Fault]
) -> None:
    world = TurnWorld(ScriptedModel([CALL, "end"]), quick())
    turn = await world.admit()
    world.queue.faults[what] = list(faults)
    process = world.process()
    await process.run()
    kinds = world.kinds()
    assert [kinds.count(k) for k in ("turn.started", "step.response", "memory.message", "turn.reply")] == [
        1,
        1,
        2,
        1,
    ]
    assert kinds.count("turn.ended") == 1
    if what in ("open", "end"):
        ids = {commit for name, commit in world.queue.sent if name == what}
        assert len(ids) == 1
        assert sum(name == what for name, _ in world.queue.sent) == len(faults) + 1
    assert len({commit for _, commit in world.queue.sent if commit}) == 4
    assert (await world.view(turn)).outcome == "completed"
    assert process.runner.counts.stale_writes_refused == 0


@virtual_time
async def test_an_end_whose_answer_was_lost_still_rings_for_the_turn_that_it_let_in() -> None:
    world = TurnWorld(ScriptedModel(["one"]))
    await world.admit()
    behind = await world.admit()
    world.queue.faults["end"] = ["lost"]
    process = world.process()
    await process.run()
    assert process.rings == [behind]


@virtual_time
@pytest.mark.behaviour("DST-08")
async def test_commits_are_tried_until_the_lease_is_no_longer_to_be_trusted() -> None:
    world = TurnWorld(held("late"))
    turn = await world.admit()
    process = world.process()
    _, task = await asked(world, process)
    world.queue.away = True
    world.model.release()
    await ended(task)
    assert task.cancelled()
    assert asyncio.get_running_loop().time() == pytest.approx(LEASE_S - 1.5, abs=0.1)
    world.queue.away = False
    assert world.kinds()[-1] == "request.prepared"
    assert (await world.view(turn)).status == "running"
    assert process.runner.counts.handed_back == 0


# --- someone else was first ----------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.behaviour("SES-125", "SES-127", "TRN-27", "RSM-33")
async def test_a_cancelled_turn_stops_its_model_call_within_a_poll_and_stores_nothing_more() -> None:
    world = TurnWorld(held())
    turn = await world.admit()
    process = world.process()
    watching = asyncio.create_task(process.holdings.watch_for_ever())
    holding, task = await asked(world, process)
    answer = await world.queue.cancel(turn, OWNER)
    began = asyncio.get_running_loop().time()
    await ended(task)
    watching.cancel()
    assert (answer.took_effect, answer.holder) == (True, "w1")
    assert asyncio.get_running_loop().time() - began <= POLL_S + 0.01
    assert (task.cancelled(), holding.lost, world.model.cancelled) == (True, "cancelled", 1)
    assert world.kinds()[-1] == "turn.ended"
    assert world.data("turn.ended")[0]["reason"] == "cancelled"
    assert process.feed.told[-1] == ("close", False)
    assert process.rings == []


@virtual_time
@pytest.mark.behaviour("SES-127", "TRN-27")
async def test_a_cancel_cancels_the_handler_that_runs() -> None:
    hung = Hung()
    world = TurnWorld(ScriptedModel([CALL]), hung.tool)
    turn = await world.admit()
    process = world.process()
    watching = asyncio.create_task(process.holdings.watch_for_ever())
    _, task = await process.start()
    await hung.begun.wait()
    await world.queue.cancel(turn, OWNER)
    process.holdings.look_soon()
    await ended(task)
    watching.cancel()
    assert hung.cancelled
    assert "memory.message" not in world.kinds()


@virtual_time
@pytest.mark.behaviour("SES-127", "RSM-33")
async def test_a_write_after_a_cancel_that_nobody_heard_of_is_refused() -> None:
    world = TurnWorld(held("late"))
    turn = await world.admit()
    process = world.process()
    _, task = await asked(world, process)
    await world.queue.cancel(turn, OWNER)
    world.model.release()
    await task
    assert world.kinds()[-1] == "turn.ended"
    assert "turn.reply" not in world.kinds()
    assert (process.runner.counts.stale_writes_refused, len(process.holdings)) == (1, 0)


@virtual_time
async def test_a_turn_cancelled_between_its_claim_and_its_opening_leaves_nothing_in_the_log() -> None:
    world = TurnWorld(ScriptedModel([]))
    turn = await world.admit()
    process = world.process()
    holding = await process.claim()
    await world.queue.cancel(turn, OWNER)
    await process.run(holding)
    assert world.kinds() == []
    assert (await world.view(turn)).status == "cancelled"


@virtual_time
@pytest.mark.behaviour("DST-09", "SES-101")
async def test_a_worker_whose_turn_was_taken_over_writes_nothing() -> None:
    world = TurnWorld(held("stale", "fresh"))
    turn = await world.admit()
    old, new = world.process("old"), world.process("new")
    holding, task = await asked(world, old)
    # The old one's watchdog is out of the way, as in a process that was stopped and goes on.
    old.holdings.keeper.drop(holding.claim.turn_id, holding.claim.fence)
    await asyncio.sleep(LEASE_S + 1)
    _, task_of_new = await asked(world, new)
    before = len(world.records())
    world.model.release()
    await asyncio.gather(task, task_of_new)
    assert old.runner.counts.stale_writes_refused == 1
    assert [r.kind for r in world.records()[before:]].count("turn.reply") == 1
    assert world.data("turn.reply")[0]["text"] == "fresh"
    assert old.runner.counts.ended == {}
    assert (await world.view(turn)).epoch == 2


@virtual_time
async def test_a_turn_lost_before_it_ran_is_not_begun() -> None:
    world = TurnWorld(ScriptedModel([]))
    await world.admit()
    process = world.process()
    holding = await process.claim()
    holding.lose("lost")
    await process.run(holding)
    assert [w.what for w in world.queue.writes] == []
    assert process.holdings.counts.lost == {"lost": 1}


# --- the process drains ----------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.behaviour("DST-18", "SHD-42")
async def test_a_drain_gives_a_turn_that_may_go_on_back_uncounted_and_rings() -> None:
    hung = Hung()
    world = TurnWorld(ScriptedModel([CALL, "end"]), hung.tool)
    turn = await world.admit()
    process = world.process()
    _, task = await process.start()
    await hung.begun.wait()
    task.cancel()
    await ended(task)
    view = await world.view(turn)
    assert (view.status, view.is_open, view.recovering, view.attempts) == ("ready", True, True, 0)
    assert (task.cancelled(), hung.cancelled, process.rings) == (True, True, [turn])
    assert process.runner.counts.handed_back == 1
    await world.process("next").run()
    assert (await world.view(turn)).outcome == "completed"
    assert world.kinds().count("turn.ended") == 1


@virtual_time
@pytest.mark.behaviour("DST-18", "TRN-57", "TRN-63", "SHD-33")
async def test_a_drain_ends_an_open_turn_that_may_not_go_on_as_interrupted_and_lets_the_next_in() -> None:
    world = TurnWorld(held(), on_worker_loss="interrupt")
    turn = await world.admit()
    behind = await world.admit()
    process = world.process()
    _, task = await asked(world, process)
    task.cancel()
    await ended(task)
    view = await world.view(turn)
    assert (view.status, view.outcome, view.code) == ("ended", "interrupted", "turn.interrupted")
    assert world.data("turn.ended") == [{"v": 1, "reason": "interrupted", "code": "turn.interrupted"}]
    assert (process.rings, process.runner.counts.ended) == ([behind], {"interrupted": 1})


@pytest.mark.parametrize("policy", ["continue", "interrupt"])
@virtual_time
@pytest.mark.behaviour("DST-18")
async def test_a_drain_gives_back_a_turn_that_was_not_open_yet(
    policy: Literal["continue", "interrupt"],
) -> None:
    world = TurnWorld(ScriptedModel([]), on_worker_loss=policy)
    turn = await world.admit()
    process = world.process()
    world.queue.faults["open"] = ["unreached"] * 100
    _, task = await process.start()
    await asyncio.sleep(0.5)
    task.cancel()
    await ended(task)
    assert (await world.view(turn)).status == "ready"
    assert world.kinds() == []
    assert process.rings == [turn]


@virtual_time
async def test_a_turn_that_cannot_be_handed_back_is_left_to_its_lease() -> None:
    world = TurnWorld(held())
    turn = await world.admit()
    process = world.process()
    _, task = await asked(world, process)
    world.queue.away = True
    task.cancel()
    await ended(task)
    world.queue.away = False
    assert task.cancelled()
    assert (process.rings, len(process.holdings)) == ([], 0)
    assert (await world.view(turn)).status == "running"


@virtual_time
@pytest.mark.behaviour("DST-08")
async def test_a_turn_that_was_lost_is_not_handed_back() -> None:
    world = TurnWorld(held())
    await world.admit()
    process = world.process()
    holding, task = await asked(world, process)
    holding.lose("lost")
    await ended(task)
    assert task.cancelled()
    assert ("release", "") not in world.queue.sent
    assert process.rings == []


@virtual_time
async def test_a_row_that_is_busy_at_opening_goes_back_and_nothing_is_raised() -> None:
    world = TurnWorld(ScriptedModel([]))
    first = await world.admit()
    second = await world.admit()
    claim = (await world.process("other").claim()).claim
    await world.queue.open(claim, "c1", [draft_of(TurnReply(outcome="failed"))])
    # It cannot happen while the store keeps its invariants: the row behind is made ready by hand.
    rows = world.store.part(TurnTables).turns
    rows[first].status, rows[second].status = "waiting", "ready"
    process = world.process()
    await process.run()
    assert (await world.view(second)).status == "ready"
    assert len(process.holdings) == 0
