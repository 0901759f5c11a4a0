"""One OpenAI-compatible endpoint: its client, its address and key, and calls whose answer is one whole JSON object."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import json
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import aiohttp
import httpx2
import openai
import orjson
from pydantic import SecretStr

from shared.domain.errors import ConfigError, ModelStreamBroken, ModelUnavailable
from shared.models.chat_chunks import ChunkError, ErrorEvent
from shared.models.chat_errors import CALL_ERRORS, STREAM_ERRORS, FailureTranslator

BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 8.0

#: Sent where no key is set: servers without authentication ignore it, the others refuse it with a clear 401.
_NO_KEY = "no-key"
_HEADER_TOKEN = re.compile(r"[\x21-\x7e]+")
_BODY_ERRORS = (ChunkError, ErrorEvent, *STREAM_ERRORS)

#: Returns the next bytes of a body as they arrived, b"" at its end. Raises what ``STREAM_ERRORS`` names.
ReadNext: TypeAlias = Callable[[], Awaitable[bytes]]

#: The client says in it how many tries went before the one that was answered.
_TRIES_HEADER: Final = "x-stainless-retry-count"
#: The client wants to be told how a stream is parsed, also where it hands out the response itself.
_NOT_PARSED: Final = openai.AsyncStream[object]
_PLAIN: Final = frozenset({"", "identity"})

#: Makes the call with the client it is given: one of the client's ``with_streaming_response`` methods.
Send: TypeAlias = Callable[[openai.AsyncOpenAI], AbstractAsyncContextManager[openai.AsyncAPIResponse[Any]]]


class ModelEndpoint:
    """The endpoint at ``base_url``, for example ``https://api.openai.com/v1``; raises ``ConfigError`` for a bad one.

    One call sends at most ``1 + retries`` requests. The client itself repeats connection errors, 408, 409, 429 and
    5xx, after ``Retry-After`` when the server says so (up to 120 s). ``connect_timeout_s`` bounds the wait for a
    connection, ``read_timeout_s`` each wait for bytes. At most ``connections_max`` responses are open at once.

    A loopback endpoint is reached directly (MOD-15); for any other the client follows the process's proxy variables,
    and its own standard ones (``OPENAI_ORG_ID``, ``OPENAI_PROJECT_ID``). Create it anywhere, use it in one event loop.
    """

    def __init__(
        self,
        *,
        base_url: str,
        api_key: SecretStr | str,
        connect_timeout_s: float,
        read_timeout_s: float,
        retries: int,
        connections_max: int,
    ) -> None:
        key = _checked_key(api_key)
        self.retries = retries
        self.failures = FailureTranslator(secret=key)
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
        """Close the connections. Responses that are open break."""
        await self._client.close()

    async def open(
        self, send: Send, stack: AsyncExitStack, *, deadline: float, retries: int
    ) -> tuple[httpx2.Response, int]:
        """Return the open response, which ``stack`` closes, and how many of its ``retries`` the client spent.

        ``deadline`` is a time of the event loop. What is raised is translated; the client has judged and spent its
        tries by then.
        """
        client = self._client
        if retries != self.retries:
            client = client.with_options(max_retries=retries)
        try:
            async with asyncio.timeout_at(deadline):
                opened = await stack.enter_async_context(send(client))
            http_response: httpx2.Response = opened.http_response
            return http_response, opened.retries_taken
        except CALL_ERRORS as error:
            failure = self.failures.of_call(error)
        # Raised out here, so that a cause that holds the key is no hidden context either.
        raise failure

    async def open_stream(
        self, path: str, body: Mapping[str, Any], stack: AsyncExitStack, *, deadline: float, retries: int
    ) -> tuple[httpx2.Response, int]:
        """Post ``body`` as it is and return the open response and the tries spent; otherwise as :meth:`open`.

        The client's own methods check a body field by field and wrap the response twice, which costs as much as sending it.
        """
        client = self._client if retries == self.retries else self._client.with_options(max_retries=retries)
        try:
            async with asyncio.timeout_at(deadline):
                opened: Any = await client.post(
                    path, cast_to=httpx2.Response, body=body, stream=True, stream_cls=_NOT_PARSED
                )
        except CALL_ERRORS as error:
            failure = self.failures.of_call(error)
        else:
            response: httpx2.Response = opened
            stack.push_async_callback(response.aclose)
            return response, int(response.request.headers.get(_TRIES_HEADER, 0))
        # Raised out here, so that a cause that holds the key is no hidden context either.
        raise failure

    async def fetch(self, send: Send, *, deadline: float, body_max_bytes: int) -> dict[str, Any]:
        """Return the JSON object that a call answers; a body that breaks is asked for again within the same tries.

        Raises ``ModelUnavailable``, ``ModelStreamBroken`` (cut, no JSON object, too large), ``ModelRefused`` and
        ``ModelAuthFailed``.
        """
        retries_left = self.retries
        for broken in itertools.count():
            async with AsyncExitStack() as stack:
                response, taken = await self.open(send, stack, deadline=deadline, retries=retries_left)
                retries_left -= taken
                try:
                    return await _read_object(response, deadline, body_max_bytes)
                except _BODY_ERRORS as error:
                    failure = self.failures.of_stream(error, shown=False)
            pause_s = backoff_s(broken)
            late = asyncio.get_running_loop().time() + pause_s >= deadline
            if late or retries_left < 1 or not isinstance(failure, ModelUnavailable | ModelStreamBroken):
                raise failure
            retries_left -= 1
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")


async def open_body(response: httpx2.Response, stack: AsyncExitStack) -> ReadNext:
    """Return what reads the body; ``stack`` closes it, before it closes the response.

    The client's own way leads through five generators for each token. A body that came without encoding needs none of
    them: it is read where aiohttp put it. Anything else (a compressed body, another transport) goes the client's way.
    """
    content = buffer_of(response)
    if content is not None:
        return content.readany
    body: AsyncIterator[bytes] = await stack.enter_async_context(aclosing(response.aiter_bytes()))
    return partial(anext, body, b"")


def buffer_of(response: httpx2.Response) -> aiohttp.StreamReader | None:
    """Return aiohttp's buffer of a response that may be read from it; None when it must be read through the client."""
    if response.headers.get("content-encoding", "").strip().lower() not in _PLAIN:
        return None
    # The client names neither of these, so whoever finds another transport there reads as the client does.
    stream = getattr(response.stream, "_stream", None)
    opened = getattr(stream, "_aiohttp_response", None)
    return opened.content if isinstance(opened, aiohttp.ClientResponse) else None


def backoff_s(broken: int) -> float:
    """Return the pause in seconds after the try that broke as the ``broken``-th, from 0: doubling, with jitter."""
    pause_s: float = min(BACKOFF_FIRST_S * 2**broken, BACKOFF_MAX_S) * random.uniform(0.75, 1.0)
    return pause_s


async def _read_object(response: httpx2.Response, deadline: float, body_max_bytes: int) -> dict[str, Any]:
    """Return the whole body as an object; raise what ``FailureTranslator.of_stream`` translates."""
    chunks: list[bytes] = []
    size = 0
    async with asyncio.timeout_at(deadline), aclosing(response.aiter_bytes()) as body:
        async for chunk in body:
            size += len(chunk)
            if size > body_max_bytes:
                raise ChunkError(f"the answer is larger than {body_max_bytes} bytes", reason="too-large")
            chunks.append(chunk)
    answer = _decode(b"".join(chunks))
    if not isinstance(answer, dict):
        raise ChunkError("the answer is no JSON object")
    if error := answer.get("error"):
        raise ErrorEvent(error)
    return answer


def _decode(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    # The fast codec refuses escaped lone surrogates and invalid UTF-8, which providers do send.
    try:
        return json.loads(body.decode(errors="replace"))
    except (ValueError, RecursionError) as error:
        raise ChunkError("the answer is no JSON") from error


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
