"""The adapter for OpenAI-compatible Chat Completions, over the official ``openai`` client on its aiohttp transport.

The client makes requests, retries and headers; the event stream is read raw and decoded once (decision 31).
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import random
import re
import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai
from pydantic import SecretStr

from shared.domain.errors import ConfigError, ModelStreamBroken, ModelUnavailable
from shared.models.chat_chunks import AnswerAssembler, ChunkError, ErrorEvent
from shared.models.chat_errors import CALL_ERRORS, STREAM_ERRORS, FailureTranslator
from shared.models.chat_request import OutputLimitField, chat_request
from shared.models.sse import EventTooLarge, SseDecoder
from shared.models.types import Finished, ModelEvent, ModelRequest, TextDelta

#: How long a finished stream may take to end its HTTP body, so that the next call finds the connection open.
DRAIN_S = 0.25
BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 8.0

#: Sent where no key is set: servers without authentication ignore it, the others refuse it with a clear 401.
_NO_KEY = "no-key"
_HEADER_TOKEN = re.compile(r"[\x21-\x7e]+")
_DECODE_ERRORS = (ChunkError, ErrorEvent, EventTooLarge, *STREAM_ERRORS)


@dataclass(slots=True)
class _Call:
    """What the tries of one call share: the body, the loop time at which it must be over, the tries that are left."""

    body: dict[str, Any]
    deadline: float
    retries_left: int
    shown: bool = False


class OpenAIChatModel:
    """A ``ChatModel`` at ``base_url``, for example ``https://api.openai.com/v1``.

    **Bounds.** One stream sends at most ``1 + retries`` requests. The client itself repeats connection errors, 408,
    409, 429 and 5xx, after ``Retry-After`` when the server says so (up to 120 s); what is left of the same budget
    repeats a stream that broke before its first delta. ``timeout_s`` bounds all of it, waits included;
    ``connect_timeout_s`` the wait for a connection, ``read_timeout_s`` each wait for bytes. At most
    ``connections_max`` streams are open at once; more wait for ``connect_timeout_s``.

    A loopback endpoint is reached directly (MOD-15); for any other the client follows the process's proxy variables,
    and its own standard ones (``OPENAI_ORG_ID``, ``OPENAI_PROJECT_ID``). Create it anywhere, use it in one event loop.
    """

    def __init__(
        self,
        *,
        base_url: str,
        api_key: SecretStr | str,
        timeout_s: float = 120.0,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 60.0,
        retries: int = 4,
        connections_max: int = 1000,
        output_limit_field: OutputLimitField = "max_completion_tokens",
    ) -> None:
        key = _checked_key(api_key)
        self._timeout_s = timeout_s
        self._read_timeout_s = read_timeout_s
        self._retries = retries
        self._output_limit_field = output_limit_field
        self._failures = FailureTranslator(secret=key)
        timeout = httpx2.Timeout(read_timeout_s, connect=connect_timeout_s, pool=connect_timeout_s)
        self._client = openai.AsyncOpenAI(
            base_url=_checked_url(base_url),
            api_key=key or _NO_KEY,
            timeout=timeout,
            max_retries=retries,
            http_client=openai.DefaultAioHttpClient(
                timeout=timeout,
                limits=httpx2.Limits(
                    max_connections=connections_max, max_keepalive_connections=connections_max
                ),
                trust_env=not _is_loopback(base_url),
            ),
        )

    async def aclose(self) -> None:
        """Close the connections. Streams that are open break."""
        await self._client.close()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Yield the answer's text as it arrives, then the whole answer; the port's contract holds."""
        now = asyncio.get_running_loop().time
        call = _Call(
            body=chat_request(request, output_limit_field=self._output_limit_field),
            deadline=now() + self._timeout_s,
            retries_left=self._retries,
        )
        for broken in itertools.count():
            try:
                async with aclosing(self._try(call)) as events:
                    async for event in events:
                        call.shown = True
                        yield event
                return
            except (ModelUnavailable, ModelStreamBroken):
                pause_s = min(BACKOFF_FIRST_S * 2**broken, BACKOFF_MAX_S) * random.uniform(0.75, 1.0)
                if call.shown or call.retries_left < 1 or now() + pause_s >= call.deadline:
                    raise
            call.retries_left -= 1
            await asyncio.sleep(pause_s)

    async def _try(self, call: _Call) -> AsyncGenerator[ModelEvent, None]:
        """Send the request once more and yield its answer; raise what stands against it, translated."""
        async with AsyncExitStack() as stack:
            response = await self._open(call, stack)
            body = await stack.enter_async_context(aclosing(response.aiter_bytes()))
            try:
                async with aclosing(self._read(body, call.deadline)) as events:
                    async for event in events:
                        yield event
                return
            except _DECODE_ERRORS as error:
                failure = self._failures.of_stream(error, shown=call.shown)
            # Raised out here, so that a cause that holds the key is no hidden context either.
            raise failure

    async def _open(self, call: _Call, stack: AsyncExitStack) -> httpx2.Response:
        """Return the open response, which ``stack`` closes; the tries that the client took are off the budget."""
        client = self._client
        if call.retries_left != self._retries:
            client = client.with_options(max_retries=call.retries_left)
        try:
            async with asyncio.timeout_at(call.deadline):
                create = client.chat.completions.with_streaming_response.create
                opened = await stack.enter_async_context(create(**call.body))
            call.retries_left -= opened.retries_taken
            http_response: httpx2.Response = opened.http_response
            return http_response
        except CALL_ERRORS as error:
            # The client has judged and spent its tries already.
            call.retries_left = 0
            failure = self._failures.of_call(error)
        raise failure

    async def _read(
        self, body: AsyncGenerator[bytes, None], deadline: float
    ) -> AsyncGenerator[ModelEvent, None]:
        decoder = SseDecoder()
        answer = AnswerAssembler(mint_call_id=_mint_call_id)
        while True:
            chunk = await self._next_chunk(body, deadline)
            for payload in decoder.feed(chunk) if chunk else decoder.finish():
                if text := answer.take(payload):
                    yield TextDelta(text)
                if answer.done:
                    break
            if answer.done or not chunk:
                break
        if text := answer.end():
            yield TextDelta(text)
        response = answer.response()
        await _drain(body)
        yield Finished(response)

    async def _next_chunk(self, body: AsyncGenerator[bytes, None], deadline: float) -> bytes:
        """Return the next bytes, b"" at the end; raise ``TimeoutError`` at the deadline."""
        left_s = deadline - asyncio.get_running_loop().time()
        if left_s > self._read_timeout_s:
            # The transport's own timeout comes first; a second timer for each token would cost more than its decoding.
            return await anext(body, b"")
        async with asyncio.timeout(max(left_s, 0)):
            return await anext(body, b"")


async def _drain(body: AsyncGenerator[bytes, None]) -> None:
    """Read the end of the HTTP body: a connection whose body is not read whole cannot serve the next call."""
    with suppress(*STREAM_ERRORS):
        async with asyncio.timeout(DRAIN_S):
            async for _ in body:
                pass


def _mint_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _checked_key(api_key: SecretStr | str) -> str:
    key = api_key.get_secret_value() if isinstance(api_key, SecretStr) else api_key
    if key and not _HEADER_TOKEN.fullmatch(key):
        raise ConfigError(
            "the model's API key holds a character that no HTTP header can carry", field="api_key"
        )
    return key


def _checked_url(base_url: str) -> str:
    try:
        url = urlsplit(base_url)
        host, _ = url.hostname, url.port
    except ValueError:
        raise ConfigError("the model's base URL is no URL", field="base_url") from None
    if url.scheme not in ("http", "https") or not host:
        raise ConfigError(
            "the model's base URL must begin with http:// or https:// and name a host", field="base_url"
        )
    if url.username or url.password:
        raise ConfigError("the model's base URL must hold no credentials: use the API key", field="base_url")
    return base_url


def _is_loopback(base_url: str) -> bool:
    host = (urlsplit(base_url).hostname or "").lower()
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
