"""The offline model server as its users meet it: the official client over HTTP, our adapter, and the admin routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import openai
import pytest

from shared.domain.errors import ModelAuthFailed, ModelRefused, ModelStreamBroken, ModelUnavailable
from shared.models.openai_chat import OpenAIChatModel
from shared.models.types import (
    AssistantMessage,
    Finished,
    Message,
    ModelRequest,
    ModelResponse,
    TextDelta,
    ToolDeclaration,
    ToolMessage,
    UserMessage,
)
from tests.support.offline_model import OfflineModel, offline_model

CLOCK = ToolDeclaration("current_time", "Tells the time.", {"type": "object", "properties": {}})
CALCULATE = ToolDeclaration(
    "calculate",
    "Works out a sum.",
    {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
)
WIRE_CLOCK: Any = {"type": "function", "function": {"name": "current_time", "parameters": CLOCK.parameters}}


@pytest.fixture(scope="module")
def server() -> Iterator[OfflineModel]:
    with offline_model("--delay-ms", "0") as running:
        yield running


@pytest.fixture
def offline(server: OfflineModel) -> OfflineModel:
    """The server, with nothing left of earlier tests."""
    server.reset()
    return server


@pytest.fixture
async def client(offline: OfflineModel) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=offline.base_url, api_key="k", max_retries=0) as official:
        yield official


@pytest.fixture
async def model(offline: OfflineModel) -> AsyncIterator[OpenAIChatModel]:
    adapter = OpenAIChatModel(base_url=offline.base_url, api_key="k", retries=0)
    yield adapter
    await adapter.aclose()


def directed(**directive: Any) -> str:
    return f"Go on. [[offline: {json.dumps(directive)}]]"


def request(*messages: Message | str, session: str | None = None, **more: Any) -> ModelRequest:
    conversation = tuple(
        UserMessage(message) if isinstance(message, str) else message for message in messages
    )
    return ModelRequest("offline", conversation, cache_key=session, **more)


async def ask(model: OpenAIChatModel, asked: ModelRequest) -> ModelResponse:
    response: ModelResponse | None = None
    async with asyncio.timeout(20), aclosing(model.stream(asked)) as events:
        async for event in events:
            if isinstance(event, Finished):
                response = event.response
    assert response is not None
    return response


# --- the official client -------------------------------------------------------------------------------------


async def test_the_official_client_gets_an_answer_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Hello!"}]
    whole = await client.chat.completions.create(model="m", messages=messages)
    stream = await client.chat.completions.create(
        model="m", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content == "Hello! I am the offline model. Ask me what I can do."
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None and whole.usage.total_tokens == 6 + 12
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


async def test_a_stream_carries_usage_only_when_it_is_asked_for(client: openai.AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Hello!"}]
    stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
    assert all(chunk.choices and chunk.usage is None for chunk in [chunk async for chunk in stream])


async def test_models_are_listed(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["offline"]


async def test_a_token_limit_cuts_the_answer_and_says_so(client: openai.AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": directed(tokens=9)}]
    answer = await client.chat.completions.create(model="m", messages=messages, max_completion_tokens=4)
    assert answer.choices[0].message.content == "token1 token2 token3 token4"
    assert answer.choices[0].finish_reason == "length"


CALL = {"id": "c1", "type": "function", "function": {"name": "current_time", "arguments": "{}"}}
ASKED = {"role": "user", "content": "Time?"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "12:00"}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([ASKED, CALLED], "messages[2].role"),
        ([ASKED, CALLED, ASKED], "messages[2].role"),
        ([ASKED, RESULT], "messages[1].role"),
        ([ASKED, CALLED, RESULT, RESULT], "messages[3].role"),
        ([ASKED, CALLED, {**RESULT, "tool_call_id": "c2"}], "messages[2].role"),
        ([ASKED, {**CALLED, "tool_calls": [CALL, CALL]}, RESULT, RESULT], "messages[1].tool_calls"),
        ([ASKED, {**CALLED, "role": "user", "content": "x"}, RESULT], "messages[1].tool_calls"),
        ([ASKED, CALLED, {"role": "tool", "content": "12:00"}], "messages[2].tool_call_id"),
    ],
)
async def test_a_conversation_that_does_not_hold_together_is_refused(
    client: openai.AsyncOpenAI, offline: OfflineModel, messages: Any, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="m", messages=messages, tools=[WIRE_CLOCK])
    assert (caught.value.type, caught.value.param) == ("invalid_request_error", param)
    counts = await asyncio.to_thread(offline.counts)
    assert (counts["started"], counts["refused"]) == (0, 1)


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"stream_options": {"include_usage": True}},
        {"temperature": 3},
        {"max_tokens": 0},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "other"}}, "tools": [WIRE_CLOCK]},
        {"tools": [WIRE_CLOCK, WIRE_CLOCK]},
        {"tools": [{"type": "function", "function": {}}]},
    ],
)
async def test_a_parameter_out_of_its_bounds_is_refused(
    client: openai.AsyncOpenAI, more: dict[str, Any]
) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model="m", messages=messages, **more)


async def test_another_key_is_refused_when_one_is_set() -> None:
    with offline_model("--api-key", "right-key") as guarded:
        wrong = OpenAIChatModel(base_url=guarded.base_url, api_key="wrong-key")
        right = OpenAIChatModel(base_url=guarded.base_url, api_key="right-key")
        with pytest.raises(ModelAuthFailed):
            await ask(wrong, request("hi"))
        assert (await ask(right, request("hi"))).text
        await wrong.aclose()
        await right.aclose()


# --- conversations through the adapter -----------------------------------------------------------------------


async def test_the_adapter_gets_text_usage_and_the_model(model: OpenAIChatModel) -> None:
    response = await ask(model, request("Guten Tag"))
    assert "“Guten Tag”" in response.text
    assert "offline model" in response.text
    assert response.model == "offline"
    assert response.usage.input_tokens == 4 + 3
    assert response.usage.output_tokens == len(response.text.split())


async def test_a_sum_goes_through_the_tool_and_back(model: OpenAIChatModel) -> None:
    question = UserMessage("What is 12*7?")
    asking = await ask(model, request(question, tools=(CLOCK, CALCULATE)))
    (call,) = asking.calls
    assert (call.name, json.loads(call.arguments)) == ("calculate", {"expression": "12*7"})
    assert asking.finish_reason == "tool_calls"
    told = await ask(
        model,
        request(
            question,
            AssistantMessage("", (call,)),
            ToolMessage(call.id, "calculate", "84"),
            tools=(CLOCK, CALCULATE),
        ),
    )
    assert (told.text, told.calls) == ("12*7 is 84.", ())


async def test_a_directive_asks_for_steps_of_calls_and_then_a_reply(model: OpenAIChatModel) -> None:
    text = directed(tool="look", args={"at": "it"}, steps=2, calls=2, reply="Seen.")
    messages: list[Message] = [UserMessage(text)]
    for _ in range(2):
        response = await ask(model, request(*messages))
        assert [(call.name, json.loads(call.arguments)) for call in response.calls] == [
            ("look", {"at": "it"})
        ] * 2
        messages.append(AssistantMessage(response.text, response.calls))
        messages += [ToolMessage(call.id, call.name, "ok") for call in response.calls]
    assert (await ask(model, request(*messages))).text == "Seen."


async def test_characters_that_cannot_be_stored_are_sent_and_replaced(model: OpenAIChatModel) -> None:
    response = await ask(model, request('[[offline: {"reply": "a\\u0000b \\ud800c 🙂"}]]'))
    assert response.text == "a\ufffdb \ufffdc 🙂"
    assert response.replaced_characters


async def test_a_directive_that_cannot_be_read_is_refused(model: OpenAIChatModel) -> None:
    with pytest.raises(ModelRefused, match="tokken"):
        await ask(model, request(directed(tokken=1)))


# --- faults --------------------------------------------------------------------------------------------------


async def test_a_failure_lasts_as_many_calls_as_it_says(offline: OfflineModel) -> None:
    patient = OpenAIChatModel(base_url=offline.base_url, api_key="k", retries=2)
    text = directed(fail=503, fail_times=2, retry_after_s=0.01, reply="At last.")
    assert (await ask(patient, request(text))).text == "At last."
    await patient.aclose()
    calls = await asyncio.to_thread(offline.wait, 3, state="ended")
    assert [call["state"] for call in calls] == ["failed", "failed", "finished"]


async def test_a_failure_without_an_end_is_met_by_every_call(model: OpenAIChatModel) -> None:
    for _ in range(2):
        with pytest.raises(ModelUnavailable):
            await ask(model, request(directed(fail=500)))
    with pytest.raises(ModelRefused):
        await ask(model, request(directed(fail=400)))


async def test_a_fault_may_wait_for_a_later_step(model: OpenAIChatModel) -> None:
    question = UserMessage(directed(tool="look", fail=400, at_step=2))
    (call,) = (await ask(model, request(question))).calls
    with pytest.raises(ModelRefused):
        await ask(model, request(question, AssistantMessage("", (call,)), ToolMessage(call.id, "look", "ok")))


@pytest.mark.parametrize("fault", ["cut_after", "error_after", "garbage_after", "hang_after"])
async def test_a_stream_breaks_after_as_many_tokens_as_it_says(offline: OfflineModel, fault: str) -> None:
    quick = OpenAIChatModel(base_url=offline.base_url, api_key="k", retries=0, read_timeout_s=0.3)
    deltas = []
    with pytest.raises(ModelStreamBroken):
        async for event in quick.stream(request(directed(tokens=9, **{fault: 3}))):
            assert isinstance(event, TextDelta)
            deltas.append(event.text)
    await quick.aclose()
    assert deltas == ["token1", " token2", " token3"]
    (call,) = await asyncio.to_thread(offline.wait, 1, state="ended")
    assert call["state"] == ("disconnected" if fault == "hang_after" else "failed")
    assert call["tokens_sent"] == 3


async def test_a_cut_of_an_answer_sent_whole_breaks_it(client: openai.AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": directed(tokens=9, cut_after=3)}]
    with pytest.raises((openai.APIConnectionError, OSError)):
        await client.chat.completions.create(model="m", messages=messages)


async def test_a_call_that_hangs_is_seen_to_start_and_to_be_left(
    model: OpenAIChatModel, offline: OfflineModel
) -> None:
    running = asyncio.create_task(ask(model, request(directed(hang=True), session="ses_1")))
    await asyncio.to_thread(offline.wait, 1, session="ses_1")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (call,) = await asyncio.to_thread(offline.wait, 1, state="disconnected", session="ses_1")
    assert call["tokens_sent"] == 0


# --- watching and holding ------------------------------------------------------------------------------------


async def test_held_calls_go_on_when_they_are_released(model: OpenAIChatModel, offline: OfflineModel) -> None:
    await asyncio.to_thread(offline.hold)
    running = [asyncio.create_task(ask(model, request("hi", session=f"ses_{n}"))) for n in range(3)]
    await asyncio.to_thread(offline.wait, 3, state="held")
    assert await asyncio.to_thread(lambda: offline.release(count=1)) == 1
    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    assert sum(task.done() for task in running) == 1
    assert (await asyncio.to_thread(offline.counts))["held"] == 2
    assert await asyncio.to_thread(offline.release) == 2
    assert {response.text for response in await asyncio.gather(*running)} == {
        (await ask(model, request("hi"))).text
    }


async def test_a_call_is_held_in_the_middle_of_its_stream(
    model: OpenAIChatModel, offline: OfflineModel
) -> None:
    await asyncio.to_thread(lambda: offline.hold(session="ses_1", after_tokens=2))
    assert (await ask(model, request("hi", session="ses_2"))).text
    deltas: asyncio.Queue[str] = asyncio.Queue()

    async def read() -> None:
        async for event in model.stream(request(directed(tokens=4), session="ses_1")):
            if isinstance(event, TextDelta):
                deltas.put_nowait(event.text)

    running = asyncio.create_task(read())
    (call,) = await asyncio.to_thread(lambda: offline.wait(1, state="held", session="ses_1"))
    assert call["tokens_sent"] == 2
    async with asyncio.timeout(10):
        assert [await deltas.get(), await deltas.get()] == ["token1", " token2"]
    assert deltas.empty()
    await asyncio.to_thread(lambda: offline.release(session="ses_1"))
    await running
    assert deltas.qsize() == 2


async def test_waiting_for_calls_that_do_not_come_fails(offline: OfflineModel) -> None:
    with pytest.raises(AssertionError, match='"started":0'):
        await asyncio.to_thread(lambda: offline.wait(1, timeout_s=0.05))


async def test_the_ledger_tells_what_was_asked(model: OpenAIChatModel, offline: OfflineModel) -> None:
    await ask(model, request("one", AssistantMessage("ok"), "two [[offline: {}]]", session="ses_1"))
    (call,) = await asyncio.to_thread(lambda: offline.wait(1, state="finished", session="ses_1"))
    assert {name: call[name] for name in ("session", "messages", "step", "text", "streamed")} == {
        "session": "ses_1",
        "messages": 3,
        "step": 1,
        "text": "two",
        "streamed": True,
    }
    assert call["started_at"] <= call["ended_at"]
    assert await asyncio.to_thread(lambda: offline.calls("ses_2")) == []


async def test_the_server_stops_at_once_while_calls_are_held() -> None:
    with offline_model() as short:
        await asyncio.to_thread(short.hold)
        model = OpenAIChatModel(base_url=short.base_url, api_key="k", retries=0)
        running = asyncio.create_task(ask(model, request("hi")))
        await asyncio.to_thread(short.wait, 1, state="held")
    with pytest.raises((ModelUnavailable, ModelStreamBroken)):
        await running
    await model.aclose()
