"""The scripted model keeps the port's contract and lets a test hold it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from shared.domain.errors import ModelUnavailable
from shared.models.port import ChatModel
from shared.models.scripted import ScriptedModel, ScriptedReply, ScriptEnded
from shared.models.types import Finished, ModelEvent, ModelRequest, TextDelta, ToolCall, UserMessage

REQUEST = ModelRequest("m", (UserMessage("hi"),))


async def collect(model: ChatModel, request: ModelRequest = REQUEST) -> list[ModelEvent]:
    async with aclosing(model.stream(request)) as events:
        return [event async for event in events]


async def test_steps_are_answered_in_order_and_end_whole() -> None:
    call = ToolCall("c1", "clock", "{}")
    model = ScriptedModel(["good  morning ", call, lambda request: f"{len(request.messages)} message"])
    *deltas, last = await collect(model)
    assert deltas == [TextDelta("good  "), TextDelta("morning ")]
    assert isinstance(last, Finished) and last.response.text == "good  morning "
    (only,) = await collect(model)
    assert isinstance(only, Finished) and only.response.calls == (call,)
    assert only.response.finish_reason == "tool_calls"
    assert len(await collect(model)) == 3
    assert model.requests == [REQUEST] * 3
    with pytest.raises(ScriptEnded):
        await collect(model)


async def test_a_lone_callable_answers_every_call() -> None:
    model = ScriptedModel(lambda request: request.model)
    for _ in range(3):
        assert (await collect(model))[0] == TextDelta("m")


async def test_a_reply_fails_after_as_many_deltas_as_it_says() -> None:
    broken = ModelUnavailable("away")
    model = ScriptedModel([broken, ScriptedReply("a b c", fail_with=broken, fail_after=2)])
    with pytest.raises(ModelUnavailable):
        await collect(model)
    seen = []
    with pytest.raises(ModelUnavailable):
        async for event in model.stream(REQUEST):
            seen.append(event)
    assert seen == [TextDelta("a "), TextDelta("b ")]


async def test_a_held_call_has_started_and_ends_when_it_is_released() -> None:
    model = ScriptedModel(["a b"])
    model.hold()
    running = asyncio.create_task(collect(model))
    await model.started()
    assert not running.done()
    model.release()
    assert len(await running) == 3
    assert model.cancelled == 0


async def test_a_cancelled_call_is_counted() -> None:
    model = ScriptedModel(["a b"])
    model.hold()
    running = asyncio.create_task(collect(model))
    await model.started()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert model.cancelled == 1
