"""The adapter for OpenAI-compatible Chat Completions, over the official ``openai`` client on its aiohttp transport.

The client makes requests, retries and headers; the event stream is read raw and decoded once (decision 31).
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import Any

import httpx2
from pydantic import SecretStr

from shared.domain.errors import ModelStreamBroken, ModelUnavailable
from shared.models.chat_chunks import AnswerAssembler, ChunkError, ErrorEvent
from shared.models.chat_errors import STREAM_ERRORS
from shared.models.chat_request import OutputLimitField, chat_request
from shared.models.endpoint import ModelEndpoint, ReadNext, backoff_s, open_body
from shared.models.sse import EventTooLarge, SseDecoder
from shared.models.types import Finished, ModelEvent, ModelRequest, TextDelta

#: How long a finished stream may take to end its HTTP body, so that the next call finds the connection open.
DRAIN_S = 0.25

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

    How the endpoint is reached: :class:`~shared.models.endpoint.ModelEndpoint`. Create it anywhere, use it in one
    event loop.
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
        self._timeout_s = timeout_s
        self._read_timeout_s = read_timeout_s
        self._output_limit_field = output_limit_field
        self._endpoint = ModelEndpoint(
            base_url=base_url,
            api_key=api_key,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
            retries=retries,
            connections_max=connections_max,
        )

    async def aclose(self) -> None:
        """Close the connections. Streams that are open break."""
        await self._endpoint.aclose()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Yield the answer's text as it arrives, then the whole answer; the port's contract holds."""
        now = asyncio.get_running_loop().time
        call = _Call(
            body=chat_request(request, output_limit_field=self._output_limit_field),
            deadline=now() + self._timeout_s,
            retries_left=self._endpoint.retries,
        )
        for broken in itertools.count():
            try:
                async with aclosing(self._try(call)) as events:
                    async for event in events:
                        call.shown = True
                        yield event
                return
            except (ModelUnavailable, ModelStreamBroken):
                pause_s = backoff_s(broken)
                if call.shown or call.retries_left < 1 or now() + pause_s >= call.deadline:
                    raise
            call.retries_left -= 1
            await asyncio.sleep(pause_s)

    async def _try(self, call: _Call) -> AsyncGenerator[ModelEvent, None]:
        """Send the request once more and yield its answer; raise what stands against it, translated."""
        decoder, answer = SseDecoder(), AnswerAssembler(mint_call_id=_mint_call_id)
        async with AsyncExitStack() as stack:
            read = await open_body(await self._open(call, stack), stack)
            try:
                while True:
                    chunk = await self._next_chunk(read, call.deadline)
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
                await _drain(read)
                yield Finished(response)
                return
            except _DECODE_ERRORS as error:
                failure = self._endpoint.failures.of_stream(error, shown=call.shown)
            # Raised out here, so that a cause that holds the key is no hidden context either.
            raise failure

    async def _open(self, call: _Call, stack: AsyncExitStack) -> httpx2.Response:
        """Return the open response, which ``stack`` closes; the tries that the client took are off the budget."""
        retries_left, call.retries_left = call.retries_left, 0
        response, taken = await self._endpoint.open_stream(
            "/chat/completions", call.body, stack, deadline=call.deadline, retries=retries_left
        )
        call.retries_left = retries_left - taken
        return response

    async def _next_chunk(self, read: ReadNext, deadline: float) -> bytes:
        """Return the next bytes, b"" at the end; raise ``TimeoutError`` at the deadline."""
        left_s = deadline - asyncio.get_running_loop().time()
        if left_s > self._read_timeout_s:
            # The transport's own timeout comes first; a second timer for each token would cost more than its decoding.
            return await read()
        async with asyncio.timeout(max(left_s, 0)):
            return await read()


async def _drain(read: ReadNext) -> None:
    """Read the end of the HTTP body: a connection whose body is not read whole cannot serve the next call."""
    with suppress(*STREAM_ERRORS):
        async with asyncio.timeout(DRAIN_S):
            while await read():
                pass


def _mint_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
