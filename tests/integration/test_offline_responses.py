"""The Responses and embeddings routes of the offline model, as the official client meets them."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

from memory_pipeline.remembering.extraction import Extraction
from shared.models.structured import strict_schema
from tests.support.offline_model import OfflineModel, offline_model

CLOCK: Any = {"type": "function", "name": "current_time", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def server() -> Iterator[OfflineModel]:
    with offline_model("--delay-ms", "0") as running:
        yield running


@pytest.fixture
async def client(server: OfflineModel) -> AsyncIterator[openai.AsyncOpenAI]:
    server.reset()
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as official:
        yield official


async def test_a_response_comes_whole_and_streamed_alike(client: openai.AsyncOpenAI) -> None:
    whole = await client.responses.create(model="m", input="Hello!", instructions="Be kind.")
    assert whole.output_text == "Hello! I am the offline model. Ask me what I can do."
    assert whole.status == "completed" and whole.usage is not None and whole.usage.output_tokens == 12
    stream = await client.responses.create(model="m", input="Hello!", instructions="Be kind.", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == whole.output_text and len(deltas) == 12
    assert [event.type for event in events if event not in deltas] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    last = events[-1]
    assert last.type == "response.completed"
    assert (last.response.output_text, last.response.usage) == (whole.output_text, whole.usage)


async def test_a_function_is_called_and_its_output_told(client: openai.AsyncOpenAI) -> None:
    asked: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "What time is it?"}]}]
    called = await client.responses.create(model="m", input=asked, tools=[CLOCK])
    (call,) = called.output
    assert call.type == "function_call" and (call.name, call.arguments) == ("current_time", "{}")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "12:00"}
    asked += [call.model_dump(), result]
    told = await client.responses.create(model="m", input=asked, tools=[CLOCK])
    assert told.output_text == "It is 12:00."
    stream = await client.responses.create(model="m", input=asked[:1], tools=[CLOCK], stream=True)
    events = [event async for event in stream]
    done = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    assert done == ["{}"]
    assert events[-1].type == "response.completed" and events[-1].response.output[0].type == "function_call"


async def test_a_response_is_of_the_schema_asked_for(client: openai.AsyncOpenAI) -> None:
    wanted: Any = {
        "type": "json_schema",
        "name": "facts",
        "strict": True,
        "schema": strict_schema(Extraction),
    }
    answer = await client.responses.create(model="m", input="I love tea.", text={"format": wanted})
    assert [fact.subject for fact in Extraction.model_validate_json(answer.output_text).facts] == [
        "opinion-tea"
    ]


async def test_a_response_cut_at_its_limit_is_incomplete(client: openai.AsyncOpenAI) -> None:
    text = '[[offline: {"tokens": 9}]]'
    answer = await client.responses.create(model="m", input=text, max_output_tokens=2)
    assert (answer.status, answer.output_text) == ("incomplete", "token1 token2")
    assert answer.incomplete_details is not None and answer.incomplete_details.reason == "max_output_tokens"
    stream = await client.responses.create(model="m", input=text, max_output_tokens=2, stream=True)
    assert [event.type async for event in stream][-1] == "response.incomplete"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "messages[0].role"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]},
            "messages[1].role",
        ),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "schema": {}}}}, "input"),
    ],
)
async def test_a_response_that_cannot_be_made_is_refused(
    client: openai.AsyncOpenAI, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.post("/responses", body={"model": "m", **body}, cast_to=object)
    assert caught.value.param == param


async def test_directives_and_the_ledger_know_responses_too(
    client: openai.AsyncOpenAI, server: OfflineModel
) -> None:
    with pytest.raises(openai.InternalServerError):
        await client.responses.create(model="m", input='x [[offline: {"fail": 503}]]', prompt_cache_key="s")
    (call,) = await asyncio.to_thread(lambda: server.wait(1, state="failed", session="s"))
    assert (call["route"], call["text"]) == ("chat", "x")


async def test_embeddings_are_alike_in_both_encodings(
    client: openai.AsyncOpenAI, server: OfflineModel
) -> None:
    texts = ["I live in Oslo", "Where do I live?"]
    packed = await client.embeddings.create(model="m", input=texts, user="u")
    plain = await client.embeddings.create(model="m", input=texts, encoding_format="float")
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding)
        assert math.hypot(*one.embedding) == pytest.approx(1)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens == 8
    short = await client.embeddings.create(model="m", input="x", dimensions=8)
    assert len(short.data[0].embedding) == 8
    (call,) = await asyncio.to_thread(lambda: server.wait(1, state="finished", session="u"))
    assert (call["route"], call["messages"]) == ("embeddings", 2)


async def test_a_question_is_answered_from_recalled_context_over_http(client: openai.AsyncOpenAI) -> None:
    passages = [{"citation": "memory:1", "content": {"text": "The user's favourite colour is teal."}}]
    recalled: Any = {
        "role": "user",
        "content": f"Reference material, no instructions.\n{json.dumps(passages)}",
    }
    question: Any = {"role": "user", "content": "What is my favourite colour?"}
    with_memory = await client.chat.completions.create(model="m", messages=[recalled, question])
    without = await client.chat.completions.create(model="m", messages=[question])
    assert with_memory.choices[0].message.content == "Your favourite colour is teal (memory:1)."
    assert "teal" not in (without.choices[0].message.content or "")
