"""A turn that continues another: what was durable before it, and that the model is sent what a plain turn's is."""

from __future__ import annotations

import asyncio
from typing import Final

import orjson
import pytest

from shared.agents import Tool
from shared.domain.errors import NotResumable
from shared.domain.ids import SessionId, TurnId
from shared.models.chat_request import chat_request
from shared.models.scripted import Script, ScriptedModel
from shared.models.types import AssistantMessage, ModelRequest, ToolMessage, UserMessage
from shared.sessions.log import NewSession
from tests.support.scripted_tools import Bench, calls
from tests.support.turn_world import OWNER, TurnWorld
from tests.support.virtual_time import virtual_time
from tests.support.waiting import await_until
from tests.unit.workers.turns.test_continued_attempts import Counted, lose_at

#: Every commit boundary of a turn of three steps after its opening: a point, and the how-manieth time that it is reached.
BOUNDARIES: Final = (
    ("turn.opened", 1),
    *(
        (point, step)
        for step in (1, 2)
        for point in (
            "turn.requested",
            "turn.response-stored",
            "turn.tool-started",
            "turn.tool-done",
            "turn.step-stored",
        )
    ),
    ("turn.requested", 3),
    ("turn.reply-ready", 1),
)


def three_steps(request: ModelRequest) -> Script:
    """Call a tool in the first two steps of a turn, then answer."""
    last = max(n for n, message in enumerate(request.messages) if isinstance(message, UserMessage))
    done = sum(isinstance(message, ToolMessage) for message in request.messages[last:])
    return "end" if done >= 2 else calls("act")


async def world_of(*tools: Tool, model: ScriptedModel | None = None) -> TurnWorld:
    """A world whose session has the same id each time, so that requests can be compared to the byte."""
    world = TurnWorld(model or ScriptedModel(three_steps), *tools, on_worker_loss="interrupt")
    world.session = (await world.log.create(NewSession(SessionId("session"), OWNER))).session_id
    return world


def sent(request: ModelRequest) -> bytes:
    """What goes over the wire for a request."""
    return orjson.dumps(chat_request(request, output_limit_field="max_completion_tokens"))


def require_results(request: ModelRequest) -> None:
    """Require that every call is followed by its results, in order, and nothing else is a result."""
    owed: list[str] = []
    for message in request.messages:
        if isinstance(message, ToolMessage):
            assert message.call_id == owed.pop(0)
            continue
        assert owed == [], "a call without its result"
        owed = [call.id for call in message.calls] if isinstance(message, AssistantMessage) else []
    assert owed == []


async def kinds_of_a_whole_turn() -> list[str]:
    """The records of the turn when nothing comes between."""
    world = await world_of(Counted().tool)
    await world.admit()
    await world.process().run()
    return world.kinds()


@pytest.mark.parametrize(("point", "hit"), BOUNDARIES, ids=[f"{point} {hit}" for point, hit in BOUNDARIES])
@virtual_time
@pytest.mark.behaviour(
    "RSM-06", "RSM-20", "RSM-21", "RSM-22", "RSM-23", "RSM-24", "RSM-25", "RSM-26", "RSM-27", "RSM-28", "RSM-29",
    "RSM-31", "RSM-32", "RSM-35",
)  # fmt: skip
async def test_killed_at_any_commit_and_resumed_the_model_is_sent_what_a_plain_turn_sends(
    point: str, hit: int
) -> None:
    whole, requests = await kinds_of_a_whole_turn(), []
    for resumes in (1, None):
        act = Counted()
        world = await world_of(act.tool)
        first = await world.admit("do it")
        await lose_at(world, point, hit)
        asked, ran = len(world.model.requests), list(act.tokens)
        if resumes is None:
            await world.queue.reap()
        # The one admission reaps the dead turn and goes on from it.
        second = await world.admit("Continue where you stopped.", resumes=resumes, on_busy="reject")
        stored = world.kinds()
        assert stored[:-1] == whole[: len(stored) - 1], "what was committed, and nothing else"
        assert stored[-1] == "turn.ended"
        assert world.data("turn.ended") == [{"v": 1, "reason": "interrupted", "code": "turn.lease"}]
        steps = world.kinds().count("step.ended")
        assert world.kinds().count("memory.tool-result") == steps, "results come with their step"
        await world.process("next").run()
        view = await world.view(second)
        assert (view.outcome, view.number, view.resumes) == ("completed", 2, first if resumes else None)
        assert [data.get("resumes") for data in world.data("turn.started")] == [None, resumes]
        requests.append(world.model.requests[asked:])
        assert len(act.tokens) == len(ran) + 2, "the resuming turn runs its own calls"
        assert set(act.tokens[len(ran) :]).isdisjoint(ran), "under tokens of its own"
        shown = [message.text for message in requests[-1][0].messages if isinstance(message, UserMessage)]
        assert shown == ["do it", "Continue where you stopped."]
        assert sum(isinstance(m, ToolMessage) for m in requests[-1][0].messages) == steps, "every whole step"
    resumed, plain = requests
    for request in resumed:
        require_results(request)
    assert [sent(request) for request in resumed] == [sent(request) for request in plain]


@virtual_time
@pytest.mark.behaviour("RSM-08")
async def test_a_turn_that_was_lost_before_it_opened_is_not_there_to_be_resumed() -> None:
    world = await world_of(Counted().tool)
    turn = await world.admit()
    await lose_at(world, "turn.claimed")
    with pytest.raises(NotResumable) as refused:
        await world.admit("go on", resumes=1)
    assert refused.value.fields["reason"] == "missing"
    assert (await world.view(turn)).status == "ready", "it is simply run again"
    await world.process("next").run()
    assert (await world.view(turn)).outcome == "completed"


@virtual_time
@pytest.mark.behaviour("RSM-26", "RSM-29", "RSM-30", "RSM-31", "RSM-32", "RSM-33", "RSM-21")
async def test_of_a_step_whose_calls_were_cut_the_events_stay_and_nothing_is_remembered() -> None:
    bench = Bench()

    def answer(request: ModelRequest) -> Script:
        said = [message for message in request.messages if isinstance(message, UserMessage)]
        return "end" if len(said) > 1 else calls("work", "work", "work")

    world = await world_of(bench.tool, model=ScriptedModel(answer))
    turn = await world.admit("do it")
    process = world.process()
    watching = asyncio.create_task(process.holdings.watch_for_ever())
    _, task = await process.start()
    await bench.has_begun(3)
    bench.let_go("1", "2")
    await await_until(lambda: world.kinds().count("tool.completed") == 2, what="two calls that returned")
    cancelled = await world.queue.cancel(turn, OWNER)
    assert cancelled.took_effect
    await asyncio.wait({task})
    watching.cancel()
    kinds = world.kinds()
    assert (kinds[0], kinds[-1]) == ("turn.started", "turn.ended")
    assert world.data("turn.ended") == [{"v": 1, "reason": "cancelled"}], "without a failure"
    assert {"request.prepared", "step.started", "step.response"} <= set(kinds)
    assert (kinds.count("tool.started"), kinds.count("tool.completed")) == (3, 2)
    gone = {"memory.message", "memory.tool-result", "step.ended", "turn.reply"}
    assert gone.isdisjoint(kinds), "no message, no result, no reply"
    resumed = await world.admit("go on", resumes=1)
    await world.process("next").run()
    request = world.model.requests[-1]
    assert [m.text for m in request.messages if not isinstance(m, UserMessage)][1:] == []
    assert [m.text for m in request.messages if isinstance(m, UserMessage)] == ["do it", "go on"]
    assert (await world.view(resumed)).outcome == "completed"


@virtual_time
@pytest.mark.behaviour("RSM-12")
async def test_a_worker_that_opens_a_resume_which_no_longer_holds_drops_it_and_goes_on() -> None:
    world = await world_of(model=ScriptedModel("hi"))
    first = await world.admit("do it")
    await lose_at(world, "turn.opened")
    await world.queue.reap()
    await world.admit("something else")
    resumed: TurnId = await world.admit("go on", resumes=1)
    last = await world.admit("and then")
    process = world.process("next")
    for _ in range(3):
        await process.run()
    view = await world.view(resumed)
    assert (view.status, view.code, view.failure) == ("refused", "turn.not-resumable", "superseded")
    assert ((await world.view(last)).outcome, (await world.view(first)).outcome) == (
        "completed",
        "interrupted",
    )
    assert world.kinds().count("turn.started") == 3, "nothing of it is in the log"
