"""Structured answers over HTTP: what is asked, what is asked again, what every failure becomes."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, SecretStr

from memory_pipeline.remembering.extraction import Extraction
from shared.domain.errors import (
    ModelAuthFailed,
    ModelOutputInvalid,
    ModelRefused,
    ModelStreamBroken,
    ModelUnavailable,
    TurnkeeperError,
)
from shared.models.openai_structured import BODY_MAX_BYTES, OpenAIStructuredModel
from shared.models.types import ModelRequest, SystemMessage, Usage, UserMessage
from tests.support.hostile_server import Answering, Exchange, HostileServer, hostile_server
from tests.support.offline_model import OfflineModel, offline_model

KEY = "sk-secret-0123456789"
QUICKLY = "retry-after-ms: 5"
REQUEST = ModelRequest("m", (SystemMessage("Extract."), UserMessage("hi")), max_output_tokens=50)


class Word(BaseModel):
    model_config = ConfigDict(extra="forbid")

    word: str


def completion(
    content: str | None = '{"word": "yes"}', *, finish: str = "stop", usage: Any = None, **message: Any
) -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, **message},
        "finish_reason": finish,
    }
    usage = usage or {"prompt_tokens": 5, "completion_tokens": 2}
    return json.dumps({"model": "m-1", "choices": [choice], "usage": usage}).encode()


def sends(body: bytes, status: str = "200 OK", *headers: str) -> Answering:
    async def answer(exchange: Exchange) -> None:
        await exchange.send_whole(status, body, *headers)

    return answer


async def cut(exchange: Exchange) -> None:
    await exchange.send(
        b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"model"'
    )
    exchange.close()


async def hang(exchange: Exchange) -> None:
    await exchange.wait_left()


async def drip(exchange: Exchange) -> None:
    """Send a body that never ends, slowly enough for each wait and too slowly for the whole."""
    await exchange.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{")
    while not exchange.left.is_set():
        await exchange.send(b" ")
        await asyncio.sleep(0.02)


def in_turn(*answers: Answering) -> Answering:
    async def answer(exchange: Exchange) -> None:
        await answers[min(exchange.number, len(answers)) - 1](exchange)

    return answer


@asynccontextmanager
async def served(
    answering: Answering, **options: Any
) -> AsyncIterator[tuple[OpenAIStructuredModel, HostileServer]]:
    async with hostile_server(answering) as server, asyncio.timeout(30):
        model = OpenAIStructuredModel(base_url=server.base_url, api_key=SecretStr(KEY), **options)
        try:
            yield model, server
        finally:
            await model.aclose()


async def test_a_value_is_asked_for_by_its_schema_and_returned_with_what_it_cost() -> None:
    async with served(sends(completion())) as (model, server):
        answer = await model.complete(REQUEST, Word)
    assert (answer.value, answer.usage, answer.model) == (Word(word="yes"), Usage(5, 2), "m-1")
    word = {"type": "string"}
    assert json.loads(server.exchanges[0].body) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Extract."}, {"role": "user", "content": "hi"}],
        "max_completion_tokens": 50,
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "Word",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {"word": word},
                    "required": ["word"],
                    "additionalProperties": False,
                },
            },
        },
    }


async def test_characters_that_cannot_be_stored_are_replaced() -> None:
    body = completion('{"word": "a\\u0000b\\ud800"}').replace(b"m-1", b"m-\\ud800")
    async with served(sends(body)) as (model, _):
        answer = await model.complete(REQUEST, Word)
    assert (answer.value.word, answer.model) == ("a\ufffdb\ufffd", "m-\ufffd")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (completion("no JSON, " + KEY), "not-json"),
        (completion('{"word": 7}'), "schema"),
        (completion('{"word": "yes"', finish="length"), "cut"),
        (completion(""), "empty"),
        (completion(None), "empty"),
        (b'{"choices": []}', "empty"),
        (b'{"choices": [{"message": null}]}', "empty"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_asked_again_and_then_raised(body: bytes, reason: str) -> None:
    async with served(sends(body), output_retries=2) as (model, server):
        with pytest.raises(ModelOutputInvalid) as caught:
            await model.complete(REQUEST, Word)
    assert caught.value.fields["reason"] == reason
    assert len(server.exchanges) == 3
    assert KEY not in "".join(traceback.format_exception(caught.value))


async def test_a_later_try_that_holds_counts_and_every_try_is_paid() -> None:
    answering = in_turn(sends(completion("oops")), sends(completion()))
    async with served(answering, output_retries=1) as (model, server):
        answer = await model.complete(REQUEST, Word)
    assert (answer.value.word, answer.usage, len(server.exchanges)) == ("yes", Usage(10, 4), 2)


ERROR = json.dumps({"error": {"message": f"no good, {KEY}", "type": "t", "code": "c"}}).encode()


@pytest.mark.parametrize(
    ("answering", "error", "reason", "requests"),
    [
        (sends(completion(None, refusal="I will not.")), ModelRefused, "refusal", 1),
        (sends(completion("", finish="content_filter")), ModelRefused, "content-filter", 1),
        (sends(ERROR, "400 Bad Request"), ModelRefused, None, 1),
        (sends(ERROR, "404 Not Found"), ModelRefused, None, 1),
        (sends(ERROR, "401 Unauthorized"), ModelAuthFailed, None, 1),
        (sends(ERROR, "403 Forbidden"), ModelAuthFailed, None, 1),
        (sends(ERROR, "429 Too Many Requests", QUICKLY), ModelUnavailable, None, 2),
        (sends(ERROR, "503 Service Unavailable", QUICKLY), ModelUnavailable, None, 2),
        (sends(ERROR), ModelUnavailable, "error-event", 2),
        (sends(b"<html>"), ModelStreamBroken, "protocol", 2),
        (sends(b"[]"), ModelStreamBroken, "protocol", 2),
        (sends(b" " * (BODY_MAX_BYTES + 1)), ModelStreamBroken, "too-large", 2),
        (cut, ModelStreamBroken, "connection", 2),
    ],
)
async def test_every_failure_has_its_error_and_its_number_of_tries(
    answering: Answering, error: type[TurnkeeperError], reason: str | None, requests: int
) -> None:
    async with served(answering, retries=1) as (model, server):
        with pytest.raises(error) as caught:
            await model.complete(REQUEST, Word)
    assert type(caught.value) is error
    assert caught.value.fields.get("reason") == reason
    assert len(server.exchanges) == requests
    assert KEY not in "".join(traceback.format_exception(caught.value))


async def test_a_broken_answer_is_fetched_again() -> None:
    async with served(in_turn(cut, sends(completion())), retries=1) as (model, _):
        assert (await model.complete(REQUEST, Word)).value.word == "yes"


@pytest.mark.parametrize(("answering", "error"), [(hang, ModelUnavailable), (drip, ModelStreamBroken)])
async def test_a_call_ends_at_its_deadline(answering: Answering, error: type[TurnkeeperError]) -> None:
    async with served(answering, timeout_s=0.3, retries=5) as (model, server):
        with pytest.raises(error) as caught:
            await model.complete(REQUEST, Word)
        await server.exchanges[0].wait_left()
    assert caught.value.fields["reason"] == "timeout"
    assert len(server.exchanges) == 1


async def test_an_endpoint_that_is_away_is_unavailable() -> None:
    async with hostile_server(hang) as server:
        base_url = server.base_url
    model = OpenAIStructuredModel(base_url=base_url, api_key="", retries=0)
    with pytest.raises(ModelUnavailable):
        await model.complete(REQUEST, Word)
    await model.aclose()


async def test_a_cancelled_call_closes_its_connection() -> None:
    async with served(hang) as (model, server):
        call = asyncio.create_task(model.complete(REQUEST, Word))
        await server.begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await server.exchanges[0].wait_left()


# --- with the offline model ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def offline() -> Iterator[OfflineModel]:
    with offline_model("--delay-ms", "0") as running:
        yield running


@pytest.fixture
async def model(offline: OfflineModel) -> AsyncIterator[OpenAIStructuredModel]:
    adapter = OpenAIStructuredModel(base_url=offline.base_url, api_key="k", retries=1)
    yield adapter
    await adapter.aclose()


def saying(text: str, **more: Any) -> ModelRequest:
    return ModelRequest("offline", (SystemMessage("Extract."), UserMessage(text)), **more)


async def test_facts_are_extracted_from_what_the_user_says(
    model: OpenAIStructuredModel, offline: OfflineModel
) -> None:
    offline.reset()
    text = "Hello! My favourite colour is teal and I live in Oslo."
    answer = await model.complete(saying(text, cache_key="ses_1"), Extraction)
    assert [(fact.subject, fact.quote) for fact in answer.value.facts] == [
        ("favourite-colour", "My favourite colour is teal"),
        ("home", "I live in Oslo"),
    ]
    assert answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0
    (call,) = offline.wait(1, state="finished", session="ses_1")
    assert (call["route"], call["text"]) == ("structured", text)


async def test_what_directs_a_chat_leaves_its_extraction_alone(model: OpenAIStructuredModel) -> None:
    answer = await model.complete(saying('I love tea. [[offline: {"hang": true}]]'), Extraction)
    assert [fact.statement for fact in answer.value.facts] == ["The user loves tea."]


@pytest.mark.parametrize(
    ("directive", "error"),
    [
        ({"reply": "no JSON"}, ModelOutputInvalid),
        ({"reply": '{"facts": 7}'}, ModelOutputInvalid),
        ({"fail": 400}, ModelRefused),
        ({"fail": 500}, ModelUnavailable),
        ({"cut_after": 0}, ModelStreamBroken),
    ],
)
async def test_an_extraction_fails_as_a_directive_says(
    model: OpenAIStructuredModel, directive: dict[str, Any], error: type[TurnkeeperError]
) -> None:
    directed = json.dumps({"on": "structured", **directive})
    with pytest.raises(error):
        await model.complete(saying(f"I love tea. [[offline: {directed}]]"), Extraction)


async def test_a_length_limit_cuts_a_structured_answer(model: OpenAIStructuredModel) -> None:
    with pytest.raises(ModelOutputInvalid) as caught:
        await model.complete(saying("I love tea.", max_output_tokens=2), Extraction)
    assert caught.value.fields["reason"] == "cut"
