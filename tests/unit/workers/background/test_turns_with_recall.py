"""A turn with memory: the model sees what is recalled beside the message, the log never does, and trouble costs nothing."""

from __future__ import annotations

import asyncio
import logging

import pytest

from shared.agents import Policy, Tool, tool
from shared.domain.canonical import canonical_json
from shared.domain.errors import MemoryCorrupt, ProcessingRefused, RecallFailed, StoreUnavailable
from shared.domain.ids import OwnerId
from shared.models.scripted import ScriptedModel, ScriptedReply
from shared.models.types import ModelRequest, SystemMessage, ToolCall, UserMessage
from tests.support.turn_world import LEASE_S, OWNER, TurnWorld, WorkerProcess
from tests.support.virtual_time import virtual_time

RECALLED = "What is recalled: the user likes xylophones."
SECRET = "xylophones"
CALLS = [ScriptedReply(calls=(ToolCall(f"c{n}", "act", "{}"),)) for n in range(2)]


def act() -> Tool:
    async def run() -> str:
        return "done"

    return tool(name="act", description="Act.")(run)


class Memory:
    """What is asked of a memory that answers ``text``, or fails with ``error``."""

    def __init__(self, text: str = RECALLED, *, error: Exception | None = None) -> None:
        self.text = text
        self.error = error
        self.asked: list[tuple[OwnerId, str]] = []

    async def __call__(self, owner: OwnerId, query: str) -> str:
        self.asked.append((owner, query))
        if self.error is not None:
            raise self.error
        return self.text


def process_with(world: TurnWorld, memory: Memory, name: str = "w1") -> WorkerProcess:
    """A process whose turns recall."""
    process = world.process(name)
    process.runner.recall = memory
    return process


def user_texts(request: ModelRequest) -> list[str]:
    return [m.text for m in request.messages if isinstance(m, UserMessage)]


def stored(world: TurnWorld) -> str:
    """Everything that the log holds, as text."""
    return "\n".join(f"{r.kind} {canonical_json(r.data)}" for r in world.records())


@virtual_time
@pytest.mark.behaviour("RCL-49", "RCL-52", "RCL-T08")
async def test_every_step_has_the_recalled_text_right_before_the_turns_message_and_no_record_has_it() -> None:
    world = TurnWorld(ScriptedModel([*CALLS, "end"]), act())
    await world.admit("what do I like?")
    memory = Memory()
    await process_with(world, memory).run()
    assert memory.asked == [(OWNER, "what do I like?")]
    assert len(world.model.requests) == 3
    for request in world.model.requests:
        assert request.messages[:3] == (
            SystemMessage("Be brief."),
            UserMessage(RECALLED),
            UserMessage("what do I like?"),
        )
        assert user_texts(request) == [RECALLED, "what do I like?"]
    assert len(world.data("request.prepared")) == 3
    assert SECRET not in stored(world)
    assert world.data("turn.started")[0]["user_message"]["text"] == "what do I like?"
    assert world.kinds()[-1] == "turn.ended"


@virtual_time
@pytest.mark.behaviour("RCL-52", "RCL-02")
async def test_a_later_turn_sees_the_history_without_what_an_earlier_one_recalled() -> None:
    world = TurnWorld(ScriptedModel(["one", "two"]))
    await world.admit("first")
    await process_with(world, Memory("recalled for the first")).run()
    await world.admit("second")
    await process_with(world, Memory("recalled for the second"), "w2").run()
    assert user_texts(world.model.requests[0]) == ["recalled for the first", "first"]
    assert user_texts(world.model.requests[1]) == ["first", "recalled for the second", "second"]


@virtual_time
@pytest.mark.behaviour("RCL-03", "RCL-52")
@pytest.mark.parametrize("memory", [None, Memory("")], ids=["no-memory", "nothing-found"])
async def test_without_recalled_text_the_prompt_is_the_transcript_alone(memory: Memory | None) -> None:
    world = TurnWorld(ScriptedModel(["end"]))
    await world.admit("hello")
    process = world.process()
    process.runner.recall = memory
    await process.run()
    assert world.model.requests[0].messages == (SystemMessage("Be brief."), UserMessage("hello"))


ERRORS = [
    StoreUnavailable("of owner SECRET"),
    RecallFailed("of owner SECRET", reason="budget"),
    ProcessingRefused("of owner SECRET", reason="profiles-spent"),
    MemoryCorrupt("of owner SECRET"),
    TimeoutError("of owner SECRET"),
    ValueError("of owner SECRET"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@virtual_time
@pytest.mark.behaviour("RCL-T08")
async def test_a_recall_that_fails_in_any_way_leaves_the_turn_unharmed_and_its_reason_unsaid(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    world = TurnWorld(ScriptedModel(["end"]))
    turn = await world.admit("hello")
    with caplog.at_level(logging.DEBUG):
        await process_with(world, Memory(error=error)).run()
    assert (await world.view(turn)).outcome == "completed"
    assert user_texts(world.model.requests[0]) == ["hello"]
    [record] = [r for r in caplog.records if "without recall" in r.getMessage()]
    assert record.__dict__["code"]
    assert "SECRET" not in f"{record.__dict__}{caplog.text}{stored(world)}"


@virtual_time
async def test_a_turn_whose_time_runs_out_while_it_recalls_ends_by_that() -> None:
    world = TurnWorld(ScriptedModel(["never"]), policy=Policy(max_duration_s=5))
    turn = await world.admit()

    async def hanging(owner: OwnerId, query: str) -> str:
        await asyncio.Event().wait()
        return ""

    process = world.process()
    process.runner.recall = hanging
    await process.run()
    view = await world.view(turn)
    assert (view.outcome, view.code) == ("failed", "turn.timeout")


@virtual_time
@pytest.mark.behaviour("RCL-52")
async def test_an_attempt_that_takes_over_recalls_for_itself_and_stores_none_of_it_either() -> None:
    model = ScriptedModel([CALLS[0], "never"])
    world = TurnWorld(model, act())
    await world.admit("what do I like?")
    first = process_with(world, Memory("old xylophones"))
    _, task = await first.start()
    await model.started(1)
    model.hold()
    await model.started(2)
    world.queue.away = True
    await asyncio.wait({task})
    world.queue.away = False
    await asyncio.sleep(LEASE_S)
    world.model = ScriptedModel(["end"])
    memory = Memory()
    await process_with(world, memory, "w2").run()
    assert memory.asked == [(OWNER, "what do I like?")]
    assert user_texts(world.model.requests[0]) == [RECALLED, "what do I like?"]
    assert SECRET not in stored(world)
    assert world.data("turn.ended")[0]["reason"] == "completed"


@virtual_time
@pytest.mark.behaviour("RCL-52")
async def test_an_attempt_that_takes_over_amid_tool_calls_recalls_for_the_steps_that_follow() -> None:
    begun = asyncio.Event()

    async def hang_once() -> str:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return "done"

    world = TurnWorld(ScriptedModel([CALLS[0], "end"]), tool(name="act", description="Act.")(hang_once))
    await world.admit("what do I like?")
    _, task = await process_with(world, Memory("old xylophones")).start()
    await begun.wait()
    await asyncio.wait({task})
    await asyncio.sleep(LEASE_S)
    await process_with(world, Memory(), "w2").run()
    assert user_texts(world.model.requests[1]) == [RECALLED, "what do I like?"]
    assert SECRET not in stored(world)
    assert world.data("turn.ended")[0]["reason"] == "completed"
