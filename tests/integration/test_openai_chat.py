"""The adapter against providers that misbehave on real connections: what is tried again, what is raised, what is closed."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import subprocess
import sys
import textwrap
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import pytest
from pydantic import SecretStr

from shared.domain.errors import (
    ConfigError,
    ModelAuthFailed,
    ModelRefused,
    ModelStreamBroken,
    ModelUnavailable,
    TurnkeeperError,
)
from shared.models.openai_chat import OpenAIChatModel
from shared.models.sse import EVENT_MAX_BYTES
from shared.models.types import (
    Finished,
    ModelEvent,
    ModelRequest,
    ModelResponse,
    TextDelta,
    Usage,
    UserMessage,
)
from tests.support.hostile_server import STREAM_HEAD, Answering, Exchange, HostileServer, hostile_server

KEY = "sk-secret-0123456789"
REQUEST = ModelRequest("m", (UserMessage("hi"),))
QUICKLY = "retry-after-ms: 5"


def event(content: str | None = None, *, finish: str | None = None, **more: Any) -> bytes:
    delta = {} if content is None else {"content": content}
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"model": "m-1", "choices": choices, **more}).encode() + b"\n\n"


HELLO = event("Hé") + event("llo 🙂")
END = event(finish="stop") + b"data: [DONE]\n\n"
ERROR = json.dumps({"error": {"message": f"no good, {KEY}", "type": "t", "code": "c"}}).encode()


async def answer_well(exchange: Exchange) -> None:
    await exchange.send(STREAM_HEAD)
    await exchange.send_chunk(HELLO + END)
    await exchange.send_chunk(b"")


def in_turn(*answers: Answering) -> Answering:
    """Answer request n with answer n, and any further one with the last."""

    async def answer(exchange: Exchange) -> None:
        await answers[min(exchange.number, len(answers)) - 1](exchange)

    return answer


def refuse(status: str, *headers: str, body: bytes = ERROR) -> Answering:
    async def answer(exchange: Exchange) -> None:
        await exchange.send_whole(status, body, *headers)

    return answer


def stream_then(*chunks: bytes, then: Callable[[Exchange], Any] | None = None) -> Answering:
    """Stream these chunks, then end the body, or do what ``then`` says instead."""

    async def answer(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD)
        for chunk in chunks:
            await exchange.send_chunk(chunk)
        if then is None:
            await exchange.send_chunk(b"")
        elif (waiting := then(exchange)) is not None:
            await waiting

    return answer


@asynccontextmanager
async def served(
    answering: Answering, **options: Any
) -> AsyncIterator[tuple[OpenAIChatModel, HostileServer]]:
    async with hostile_server(answering) as server, asyncio.timeout(30):
        model = OpenAIChatModel(base_url=server.base_url, api_key=SecretStr(KEY), **options)
        try:
            yield model, server
        finally:
            await model.aclose()


async def collect(model: OpenAIChatModel) -> tuple[list[str], ModelResponse]:
    deltas: list[str] = []
    async with aclosing(model.stream(REQUEST)) as events:
        async for item in events:
            if isinstance(item, Finished):
                return deltas, item.response
            deltas.append(item.text)
    raise AssertionError("the stream ended without its end")


async def fail(model: OpenAIChatModel, error: type[TurnkeeperError]) -> tuple[list[str], TurnkeeperError]:
    """Return the deltas before the failure, and the failure."""
    deltas: list[str] = []
    with pytest.raises(error) as caught:
        async for item in model.stream(REQUEST):
            assert isinstance(item, TextDelta)
            deltas.append(item.text)
    return deltas, caught.value


# --- answers -------------------------------------------------------------------------------------------------


async def test_an_answer_cut_at_every_byte_reads_the_same() -> None:
    whole = (
        HELLO + event(finish="stop", usage={"prompt_tokens": 3, "completion_tokens": 2}) + b"data: [DONE]\n\n"
    )
    pieces = [whole[n : n + 1] for n in range(len(whole))]
    async with served(stream_then(*pieces)) as (model, server):
        deltas, response = await collect(model)
    assert deltas == ["Hé", "llo 🙂"]
    assert response == ModelResponse("Héllo 🙂", usage=Usage(3, 2), model="m-1")
    assert json.loads(server.exchanges[0].body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert f"authorization: bearer {KEY}".encode() in server.exchanges[0].head.lower()


async def test_a_compressed_stream_is_read() -> None:
    async def answer(exchange: Exchange) -> None:
        packed = gzip.compress(HELLO + END)
        await exchange.send(STREAM_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n"))
        for start in range(0, len(packed), 7):
            await exchange.send_chunk(packed[start : start + 7])
        await exchange.send_chunk(b"")

    async with served(answer) as (model, _):
        assert (await collect(model))[1].text == "Héllo 🙂"


async def test_calls_one_after_the_other_share_a_connection_even_when_nobody_reads_on_after_the_end() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD)
        await exchange.send_chunk(HELLO + END)
        # The end of the body comes in a packet of its own, unless the client leaves before.
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await exchange.left.wait()
        await exchange.send_chunk(b"")

    async with served(answer) as (model, server):
        for _ in range(3):
            await collect(model)
    assert (len(server.exchanges), server.connections) == (3, 1)


async def test_a_server_that_never_ends_its_body_holds_no_answer_back() -> None:
    async with served(stream_then(HELLO + END, then=Exchange.wait_left)) as (model, server):
        assert (await collect(model))[1].text == "Héllo 🙂"
        await server.exchanges[0].wait_left()


# --- tried again ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["408 Timeout", "429 Slow down", "500 Oops", "503 Away"])
async def test_a_passing_failure_is_tried_again_when_the_server_says(status: str) -> None:
    async with served(in_turn(refuse(status, "retry-after: 0.01"), answer_well)) as (model, server):
        assert (await collect(model))[1].text == "Héllo 🙂"
    assert len(server.exchanges) == 2


@pytest.mark.parametrize(
    "broken",
    [
        stream_then(event()),
        stream_then(b"data: garbage\n\n"),
        stream_then(b"data: " + ERROR + b"\n\n"),
        stream_then(event(), then=Exchange.close),
    ],
)
async def test_a_stream_that_breaks_before_its_first_delta_is_tried_again(broken: Answering) -> None:
    async with served(in_turn(broken, answer_well)) as (model, server):
        assert await collect(model) == (["Hé", "llo 🙂"], ModelResponse("Héllo 🙂", model="m-1"))
    assert len(server.exchanges) == 2


async def test_a_server_that_always_fails_is_asked_once_and_once_for_each_retry() -> None:
    async with served(refuse("500 Oops", QUICKLY), retries=3) as (model, server):
        _, error = await fail(model, ModelUnavailable)
    assert len(server.exchanges) == 4
    assert (error.code, error.fields["status"]) == ("model.unavailable", 500)


async def test_refused_requests_and_broken_streams_spend_one_budget() -> None:
    answers = in_turn(refuse("500 Oops", QUICKLY), stream_then(event()), refuse("500 Oops", QUICKLY))
    async with served(answers, retries=2) as (model, server):
        await fail(model, ModelUnavailable)
    assert len(server.exchanges) == 3


async def test_a_stream_that_always_breaks_is_bounded_too() -> None:
    async with served(stream_then(event()), retries=1) as (model, server):
        _, error = await fail(model, ModelStreamBroken)
    assert (len(server.exchanges), error.fields["reason"]) == (2, "ended-early")


async def test_a_connection_that_closes_without_an_answer_is_tried_again() -> None:
    async def hang_up(exchange: Exchange) -> None:
        exchange.close()

    async with served(in_turn(hang_up, answer_well)) as (model, server):
        assert (await collect(model))[1].text == "Héllo 🙂"
    assert len(server.exchanges) == 2


async def test_the_hint_of_the_last_refusal_reaches_the_caller() -> None:
    async with served(refuse("429 Slow down", "retry-after: 30"), retries=0) as (model, _):
        _, error = await fail(model, ModelUnavailable)
    assert isinstance(error, ModelUnavailable) and error.retry_after_s == 30.0


# --- not tried again -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [("400 Bad", ModelRefused), ("404 None", ModelRefused), ("422 Odd", ModelRefused),
     ("401 Who", ModelAuthFailed), ("403 No", ModelAuthFailed)],
)  # fmt: skip
async def test_a_refusal_is_final(status: str, kind: type[TurnkeeperError]) -> None:
    async with served(refuse(status)) as (model, server):
        _, error = await fail(model, kind)
    assert len(server.exchanges) == 1
    assert error.fields["status"] == int(status[:3])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "invalid_request_error", "message": "too long"}, ModelRefused),
        ({"code": 401}, ModelAuthFailed),
    ],
)
async def test_an_error_object_that_refuses_the_request_is_final(
    error: dict[str, Any], kind: type[TurnkeeperError]
) -> None:
    async with served(stream_then(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")) as (
        model,
        server,
    ):
        await fail(model, kind)
    assert len(server.exchanges) == 1


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (stream_then(HELLO), "ended-early"),
        (stream_then(HELLO, b"data: {\n\n"), "protocol"),
        (stream_then(HELLO, b"data: " + ERROR + b"\n\n"), "error-event"),
        (stream_then(HELLO, then=Exchange.close), "connection"),
    ],
)
async def test_after_the_first_delta_a_break_is_the_callers_to_judge(broken: Answering, reason: str) -> None:
    async with served(broken) as (model, server):
        deltas, error = await fail(model, ModelStreamBroken)
    assert deltas == ["Hé", "llo 🙂"]
    assert len(server.exchanges) == 1
    assert (error.code, error.fields["reason"]) == ("model.stream", reason)


@pytest.mark.parametrize("line", [b"data: ", b": "])
async def test_a_line_without_end_is_bounded_and_the_connection_closed(line: bytes) -> None:
    async def flood(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD)
        await exchange.send_chunk(HELLO + line)
        for _ in range(4 * EVENT_MAX_BYTES // 65_536):
            await exchange.send_chunk(b"x" * 65_536)
        await exchange.wait_left()

    async with served(flood) as (model, server):
        _, error = await fail(model, ModelStreamBroken)
        await server.exchanges[0].wait_left()
    assert error.fields["reason"] == "too-large"


async def test_an_endpoint_that_is_not_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    model = OpenAIChatModel(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, retries=0)
    _, error = await fail(model, ModelUnavailable)
    await model.aclose()
    assert error.fields["reason"] == "connection"


async def test_a_server_that_speaks_no_http_is_unavailable() -> None:
    async def babble(exchange: Exchange) -> None:
        await exchange.send(b"220 mail.example.org ESMTP\r\n\r\n")

    async with served(babble, retries=0) as (model, _):
        await fail(model, ModelUnavailable)


# --- time ----------------------------------------------------------------------------------------------------


async def test_silence_before_the_headers_is_bounded() -> None:
    async with served(Exchange.wait_left, read_timeout_s=0.1, retries=1) as (model, server):
        _, error = await fail(model, ModelUnavailable)
        assert (len(server.exchanges), error.fields["reason"]) == (2, "timeout")
        await server.exchanges[1].wait_left()


async def test_silence_inside_the_stream_is_bounded() -> None:
    async with served(stream_then(HELLO, then=Exchange.wait_left), read_timeout_s=0.1) as (model, server):
        deltas, error = await fail(model, ModelStreamBroken)
        assert (deltas, error.fields["reason"]) == (["Hé", "llo 🙂"], "timeout")
        await server.exchanges[0].wait_left()


async def test_the_whole_call_is_bounded_while_waiting_to_try_again() -> None:
    async with served(refuse("503 Away", "retry-after: 100"), timeout_s=0.3) as (model, server):
        _, error = await fail(model, ModelUnavailable)
    assert (len(server.exchanges), error.fields["reason"]) == (1, "timeout")


async def test_a_stream_that_only_keeps_alive_is_bounded_as_a_whole() -> None:
    async def keep_alive(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD)
        while not exchange.left.is_set():
            await exchange.send_chunk(b": ping\n\n")
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await exchange.left.wait()

    async with served(keep_alive, timeout_s=0.3, read_timeout_s=10.0) as (model, server):
        _, error = await fail(model, ModelStreamBroken)
        await server.exchanges[0].wait_left()
    assert error.fields["reason"] == "timeout"


# --- leaving -------------------------------------------------------------------------------------------------


async def test_cancelling_before_the_headers_closes_the_connection() -> None:
    async with served(Exchange.wait_left) as (model, server):
        running = asyncio.create_task(collect(model))
        await server.begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await server.exchanges[0].wait_left()


async def test_cancelling_inside_the_stream_closes_the_connection() -> None:
    shown = asyncio.Event()

    async def read(model: OpenAIChatModel) -> None:
        async for _ in model.stream(REQUEST):
            shown.set()

    async with served(stream_then(HELLO, then=Exchange.wait_left)) as (model, server):
        running = asyncio.create_task(read(model))
        await shown.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await server.exchanges[0].wait_left()
    assert len(server.exchanges) == 1


async def test_closing_the_stream_closes_the_connection() -> None:
    async with served(stream_then(HELLO, then=Exchange.wait_left)) as (model, server):
        async with aclosing(model.stream(REQUEST)) as events:
            first: ModelEvent = await anext(events)
        assert first == TextDelta("Hé")
        await server.exchanges[0].wait_left()


# --- secrets and settings ------------------------------------------------------------------------------------


@pytest.mark.behaviour("MOD-10")
@pytest.mark.parametrize(
    ("answering", "kind"),
    [
        (refuse("401 Who"), ModelAuthFailed),
        (refuse("400 Bad"), ModelRefused),
        (refuse("500 Oops", body=KEY.encode()), ModelUnavailable),
        (stream_then(b"data: " + ERROR + b"\n\n"), ModelUnavailable),
        (stream_then(HELLO, b"data: " + ERROR + b"\n\n"), ModelStreamBroken),
    ],
)
async def test_a_key_that_the_server_echoes_is_in_no_error(
    answering: Answering, kind: type[TurnkeeperError]
) -> None:
    async with served(answering, retries=0) as (model, _):
        _, error = await fail(model, kind)
        assert KEY not in repr(model)
    assert KEY not in "".join(traceback.format_exception(error))
    assert KEY not in repr(error.fields)
    assert error.__context__ is None or KEY not in str(error.__context__)


async def test_what_a_server_says_against_a_request_is_passed_on_short_and_storable() -> None:
    body = b'{"error": {"message": "odd\\u0000 \\ud800 thing ' + b"x" * 5000 + b'"}}'
    async with served(refuse("400 Bad", body=body)) as (model, _):
        _, error = await fail(model, ModelRefused)
    assert error.message.startswith("the model endpoint answered 400: odd\ufffd \ufffd thing xxx")
    assert len(error.message) < 400


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "api.example.org/v1",
        "ftp://example.org",
        "http://",
        "http://x:99999/v1",
        f"http://user:{KEY}@example.org",
    ],
)
def test_a_base_url_that_cannot_be_used_is_refused(base_url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OpenAIChatModel(base_url=base_url, api_key=KEY)
    assert KEY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY} x", f"{KEY}é"])
def test_a_key_that_no_header_can_carry_is_refused_without_saying_it(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OpenAIChatModel(base_url="http://example.org/v1", api_key=key)
    assert KEY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.behaviour("MOD-15")
async def test_a_loopback_endpoint_is_reached_past_a_proxy() -> None:
    script = textwrap.dedent("""
        import asyncio, sys
        from shared.models.openai_chat import OpenAIChatModel
        from shared.models.types import ModelRequest, UserMessage

        async def main() -> None:
            model = OpenAIChatModel(base_url=sys.argv[1], api_key="k", retries=0, timeout_s=20)
            async for event in model.stream(ModelRequest("m", (UserMessage("hi"),))):
                last = event
            print(len(last.response.text))
            await model.aclose()

        asyncio.run(main())
    """)
    with socket.create_server(("127.0.0.1", 0)) as nothing:
        proxy = f"http://127.0.0.1:{nothing.getsockname()[1]}"
    async with hostile_server(answer_well) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, server.base_url, stdout=subprocess.PIPE,
            env={"HTTP_PROXY": proxy, "http_proxy": proxy, "ALL_PROXY": proxy},
        )  # fmt: skip
        out, _ = await process.communicate()
    assert out.split() == [b"7"]
