"""Turns that fail: every failure is stored as the turn's end, once, with a stable code and what was spent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from shared.agents import Policy, tool
from shared.domain.errors import (
    ModelAuthFailed,
    ModelRefused,
    ModelStreamBroken,
    ModelUnavailable,
)
from shared.models.scripted import Script, ScriptedModel, ScriptedReply
from shared.models.types import (
    AssistantMessage,
    ModelEvent,
    ModelRequest,
    SystemMessage,
    TextDelta,
    ToolMessage,
    Usage,
    UserMessage,
)
from tests.support.scripted_tools import Bench, calls, quick
from tests.support.turn_world import TurnWorld
from tests.support.virtual_time import virtual_time


def always(error: Exception) -> Callable[[ModelRequest], Script]:
    return lambda _: error


@pytest.mark.parametrize(
    ("error", "code", "tries"),
    [
        (ModelUnavailable("busy"), "model.unavailable", 1),
        (ModelRefused("no"), "model.refused", 1),
        (ModelAuthFailed("who"), "model.auth", 1),
        (ModelStreamBroken("cut"), "model.stream", 3),
        (ValueError("a\x00b"), "turn.defect", 1),
    ],
)
@virtual_time
@pytest.mark.behaviour("TRN-22", "TRN-49", "TRN-54", "SES-147")
async def test_a_turn_whose_model_fails_ends_failed_with_the_errors_code(
    error: Exception, code: str, tries: int
) -> None:
    world = TurnWorld(ScriptedModel(always(error)))
    turn = await world.admit()
    process = world.process()
    await process.run()
    assert len(world.model.requests) == tries
    assert world.queue.writes[-1].kinds == ("step.ended", "turn.reply", "turn.ended")
    assert world.data("turn.reply") == [{"v": 1, "outcome": "failed"}]
    (ended,) = world.data("turn.ended")
    assert (ended["reason"], ended["code"]) == ("failed", code)
    assert "\x00" not in ended["failure"]
    view = await world.view(turn)
    assert (view.outcome, view.code, view.failure) == ("failed", code, ended["failure"])
    assert process.runner.counts.ended == {"failed": 1}


@virtual_time
@pytest.mark.behaviour("RSM-34", "RSM-21")
async def test_the_turn_after_a_failed_one_sees_its_message_and_whole_steps_only() -> None:
    world = TurnWorld(ScriptedModel([calls("quick"), ModelRefused("no"), "fine"]), quick())
    await world.admit("first")
    await world.admit("second")
    process = world.process()
    await process.run()
    await process.run()
    assert [type(m) for m in world.model.requests[-1].messages] == [
        SystemMessage,
        UserMessage,
        AssistantMessage,
        ToolMessage,
        UserMessage,
    ]


@virtual_time
@pytest.mark.behaviour("USE-27")
async def test_a_failure_in_a_later_step_ends_that_step_and_keeps_what_was_spent() -> None:
    world = TurnWorld(ScriptedModel([calls("quick", usage=Usage(10, 1)), ModelRefused("no")]), quick())
    turn = await world.admit()
    await world.process().run()
    assert [(e["step"], e["status"]) for e in world.data("step.ended")] == [(0, "completed"), (1, "failed")]
    assert (await world.view(turn)).usage["input_tokens"] == 10


@virtual_time
@pytest.mark.behaviour("DST-31", "SES-147")
async def test_a_turn_past_its_time_is_ended_and_its_model_call_cancelled() -> None:
    model = ScriptedModel(["never"])
    model.hold()
    world = TurnWorld(model, policy=Policy(max_duration_s=10))
    turn = await world.admit()
    await world.process().run()
    assert asyncio.get_running_loop().time() == pytest.approx(10, abs=0.1)
    assert (model.cancelled, (await world.view(turn)).code) == (1, "turn.timeout")


@virtual_time
@pytest.mark.behaviour("DST-31", "BEY-01")
async def test_a_turn_past_its_time_cancels_its_handlers_and_leaves_their_outcome_unknown() -> None:
    bench = Bench()
    world = TurnWorld(
        ScriptedModel([calls("work", "work", usage=Usage(5, 5))]),
        bench.tool,
        policy=Policy(max_duration_s=10, tool_concurrency=1),
    )
    turn = await world.admit()
    await world.process().run()
    assert bench.cancelled == ["0"]
    assert [c.state for c in await world.queue.calls(world.session, turn)] == ["unknown", "unknown"]
    view = await world.view(turn)
    assert (view.code, view.usage["input_tokens"]) == ("turn.timeout", 5)
    assert world.data("memory.message") == []


@virtual_time
async def test_a_timeout_inside_the_turn_that_is_not_its_own_is_a_defect() -> None:
    world = TurnWorld(ScriptedModel(always(TimeoutError("inner"))))
    turn = await world.admit()
    await world.process().run()
    assert (await world.view(turn)).code == "turn.defect"


@virtual_time
async def test_what_a_tool_or_a_model_wrote_that_cannot_be_stored_is_replaced_and_said() -> None:
    async def act() -> str:
        return "a\x00b"

    reply = ScriptedReply(text="x\ufffd", replaced_characters=True)
    world = TurnWorld(ScriptedModel([calls("act"), reply]), tool(name="act", description="Act.")(act))
    await world.admit()
    await world.process().run()
    (result,) = world.data("memory.tool-result")
    assert (result["text"], result["replaced_characters"]) == ("a\ufffdb", True)
    assert [m.get("replaced_characters") for m in world.data("memory.message")] == [None, True]


@virtual_time
async def test_an_answer_too_large_to_store_fails_the_turn_instead_of_asking_again() -> None:
    world = TurnWorld(ScriptedModel([ScriptedReply(text='"' * 2_500_000)]))
    turn = await world.admit()
    await world.process().run()
    assert (await world.view(turn)).code == "input.too-large"


@virtual_time
@pytest.mark.behaviour("TLS-54")
async def test_a_tool_that_raises_a_cancellation_of_its_own_does_not_end_or_hand_back_the_turn() -> None:
    async def act() -> None:
        other = asyncio.create_task(asyncio.Event().wait())
        other.cancel()
        await other

    world = TurnWorld(ScriptedModel([calls("act"), "end"]), tool(name="act", description="Act.")(act))
    turn = await world.admit()
    await world.process().run()
    assert world.data("memory.tool-result")[0]["text"] == "CancelledError"
    assert (await world.view(turn)).outcome == "completed"


class StrayModel(ScriptedModel):
    """A model whose client cancels a task of its own and lets that out."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.requests.append(request)
        yield TextDelta("so ")
        raise asyncio.CancelledError


@virtual_time
@pytest.mark.behaviour("SES-147")
async def test_a_cancellation_that_the_model_raises_by_itself_fails_the_turn_and_hands_nothing_back() -> None:
    world = TurnWorld(StrayModel([]))
    turn = await world.admit()
    process = world.process()
    await process.run()
    view = await world.view(turn)
    assert (view.outcome, view.code, view.failure) == ("failed", "turn.defect", "CancelledError")
    assert (len(world.model.requests), process.runner.counts.handed_back) == (1, 0)


@virtual_time
async def test_a_tool_that_goes_on_although_it_was_cancelled_is_told_of_and_holds_nothing_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    over = asyncio.Event()

    async def deaf() -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    world = TurnWorld(
        ScriptedModel([calls("deaf")]),
        tool(name="deaf", description="Hear nothing.", timeout_s=100)(deaf),
        policy=Policy(max_duration_s=5),
    )
    turn = await world.admit()
    try:
        await world.process().run()
    finally:
        over.set()
    assert (await world.view(turn)).code == "turn.timeout"
    assert "a tool goes on although it was cancelled" in [r.message for r in caplog.records]
