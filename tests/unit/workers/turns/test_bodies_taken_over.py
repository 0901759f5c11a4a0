"""A body whose worker is lost: it is called again, and meets its runs and context entries as they were stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shared.agents import RunResult, Turn, TurnOutcome
from shared.domain.errors import ModelRefused
from shared.domain.failpoints import Failpoints
from shared.models.scripted import Script, ScriptedModel, ScriptedReply
from shared.models.types import AssistantMessage, ModelRequest, ToolMessage, Usage, UserMessage
from tests.support.scripted_tools import calls, quick
from tests.support.turn_world import LEASE_S, TurnWorld
from tests.support.virtual_time import virtual_time


def answer(request: ModelRequest) -> Script:
    """Answer by what the request shows, so that a repeated request gets the answer of the first."""
    match request.messages[-1]:
        case UserMessage("hello") | UserMessage("go on"):
            return calls("quick", usage=Usage(10, 1))
        case ToolMessage():
            said = sum(isinstance(m, AssistantMessage) for m in request.messages)
            return ScriptedReply(f"after {said}", usage=Usage(5, 1))
    raise AssertionError(request.messages)


class Body:
    """Two runs with a context entry between; keeps what each call of it was given."""

    def __init__(self) -> None:
        self.results: list[list[RunResult]] = []

    async def use(self, turn: Turn) -> TurnOutcome:
        seen: list[RunResult] = []
        self.results.append(seen)
        seen.append(await turn.run())
        await turn.context("go on")
        seen.append(await turn.run())
        return TurnOutcome("completed", seen[-1].text)


def hang_at(point: str, hit: int) -> Failpoints:
    """Stop for ever at the ``hit``-th time."""
    left = hit

    async def hang() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            await asyncio.Event().wait()

    return Failpoints({point: hang})


async def lose(world: TurnWorld, failpoints: Failpoints) -> None:
    """Run the turn in a process that stops at its point and whose lease then passes."""
    holding = await (doomed := world.process("doomed", failpoints=failpoints)).claim()
    task = asyncio.create_task(doomed.runner.run(holding))
    await asyncio.sleep(LEASE_S + 1)
    holding.lost = "test"  # a process that is gone gives nothing back
    task.cancel()
    await asyncio.wait({task})


async def whole(use: Callable[[Turn], Awaitable[TurnOutcome]]) -> TurnWorld:
    """Run the turn without trouble."""
    world = TurnWorld(ScriptedModel(answer), quick(repeatable=True), use=use)
    await world.admit()
    await world.process().run()
    return world


@pytest.mark.parametrize(
    ("point", "hit"),
    [
        ("turn.opened", 1),
        ("turn.requested", 1),
        ("turn.response-stored", 1),
        ("turn.tool-done", 1),
        ("turn.step-stored", 1),
        ("turn.reply-ready", 1),
        ("turn.run-stored", 1),
        ("turn.requested", 3),
        ("turn.response-stored", 2),
        ("turn.step-stored", 2),
        ("turn.run-stored", 2),
        ("turn.reply-ready", 3),
    ],
)
@virtual_time
@pytest.mark.behaviour("TRN-80", "RSM-37", "TRN-21")
async def test_wherever_a_worker_is_lost_the_body_meets_the_same_runs_and_no_stored_one_is_asked_again(
    point: str, hit: int
) -> None:
    whole_body, body = Body(), Body()
    expected = await whole(whole_body.use)
    world = TurnWorld(ScriptedModel(answer), quick(repeatable=True), use=body.use)
    turn = await world.admit()
    await lose(world, hang_at(point, hit))
    answered = {
        (d["run"], d["step"]) for kind in ("step.response", "memory.message") for d in world.data(kind)
    }
    asked = len(world.model.requests)
    await world.process("next").run()

    assert body.results[-1] == whole_body.results[0]
    assert body.results[0] == body.results[-1][: len(body.results[0])]
    for kind in ("memory.message", "memory.section", "run.ended", "turn.reply", "turn.ended"):
        assert [_without_ids(d) for d in world.data(kind)] == [_without_ids(d) for d in expected.data(kind)]
    assert (await world.view(turn)).usage["input_tokens"] == 30
    # A stored response is never asked for again, and every other step is asked as it would have been.
    assert len(world.model.requests) - asked == 4 - len(answered)
    as_expected = [r.messages for r in expected.model.requests]
    assert all(r.messages in as_expected for r in world.model.requests)


def _without_ids(data: object) -> object:
    match data:
        case dict():
            return {k: _without_ids(v) for k, v in data.items() if k not in ("run_id", "entry", "token")}
        case list():
            return [_without_ids(one) for one in data]
    return data


@virtual_time
@pytest.mark.behaviour("RSM-37", "TRN-24")
async def test_a_run_that_failed_fails_again_the_same_way_without_being_asked() -> None:
    caught: list[ModelRefused] = []

    async def use(turn: Turn) -> TurnOutcome:
        try:
            await turn.run()
        except ModelRefused as error:
            caught.append(error)
        return TurnOutcome("completed", (await turn.run()).text)

    world = TurnWorld(ScriptedModel([ModelRefused("no"), "fine"]), use=use)
    await world.admit()
    await lose(world, hang_at("turn.requested", 2))
    await world.process("next").run()
    assert [str(error) for error in caught] == ["no", "no"]
    assert len(world.model.requests) == 2
    assert world.data("turn.reply")[0]["text"] == "fine"


@virtual_time
@pytest.mark.behaviour("TRN-24", "TRN-21")
async def test_a_drain_after_the_body_returned_stores_what_it_returned_and_ends_the_turn_once() -> None:
    world: TurnWorld

    async def use(turn: Turn) -> TurnOutcome:
        world.queue.away = True
        return turn.reply("kept")

    world = TurnWorld(ScriptedModel([]), use=use)
    turn = await world.admit()
    process = world.process()
    _, task = await process.start()
    await asyncio.sleep(0.005)
    assert world.queue.sent[-1][0] == "end"
    task.cancel()
    await asyncio.sleep(0.1)
    world.queue.away = False
    await asyncio.wait({task})
    assert world.kinds() == ["turn.started", "turn.reply", "turn.ended"]
    assert world.data("turn.reply")[0]["text"] == "kept"
    assert (await world.view(turn)).outcome == "completed"
    assert process.runner.counts.handed_back == 0


@virtual_time
@pytest.mark.behaviour("TRN-24", "TRN-25")
async def test_a_drain_while_tasks_settle_cuts_them_and_stores_what_the_body_returned() -> None:
    cut: list[str] = []
    begun = asyncio.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut.append("task")

    async def use(turn: Turn) -> TurnOutcome:
        turn.tasks.fork("endless", endless())
        return turn.reply("kept")

    world = TurnWorld(ScriptedModel([]), use=use)
    await world.admit()
    process = world.process()
    _, task = await process.start()
    await begun.wait()
    task.cancel()
    await asyncio.wait({task})
    assert world.data("turn.reply") == [{"v": 1, "outcome": "completed", "text": "kept"}]
    assert world.data("turn.ended") == [{"v": 1, "reason": "completed"}]
    assert cut == ["task"]


@virtual_time
@pytest.mark.behaviour("TRN-63", "SHD-33")
async def test_a_drain_while_the_body_runs_hands_the_turn_back_and_another_worker_goes_on() -> None:
    body = Body()
    world = TurnWorld(ScriptedModel(answer), quick(), use=body.use)
    turn = await world.admit()
    world.model.hold()
    process = world.process()
    _, task = await process.start()
    await world.model.started()
    task.cancel()
    await asyncio.wait({task})
    assert process.runner.counts.handed_back == 1
    world.model.release()
    await world.process("next").run()
    view = await world.view(turn)
    assert (view.outcome, view.attempts, len(body.results)) == ("completed", 0, 2)
