"""Sends an answer: its pace, its gates, what goes wrong on purpose, and noticing that the client left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from producer.dev.offline.directive import Directive
from producer.dev.offline.ledger import Call, CallLedger, EndState
from producer.dev.offline.wire import GARBAGE, encode_json, error_body

JSON_TYPE = b"application/json"
STREAM_TYPE = b"text/event-stream; charset=utf-8"


class ConnectionCut(Exception):
    """The answer ends here, without an end."""


class Sendable(Protocol):
    """An answer in the form of its API: as one object, and as events, those of each token together."""

    def whole(self) -> dict[str, Any]: ...
    def opening(self) -> bytes: ...
    def tokens(self) -> Iterator[bytes]: ...
    def closing(self) -> bytes: ...


class PacedAnswer(Response):
    """The response to one call. Directives and gates decide when it goes on; a client that leaves ends it at once."""

    def __init__(
        self,
        answer: Sendable,
        directive: Directive,
        call: Call,
        ledger: CallLedger,
        *,
        streamed: bool,
        delay_s: float,
    ) -> None:
        super().__init__()
        self._content = answer
        self._directive = directive
        self._call = call
        self._ledger = ledger
        self._streamed = streamed
        # Set the moment it is true, without an await: the server says "disconnected" after a whole response too.
        self._end: EndState = "disconnected"
        self._delay_s = delay_s if directive.delay_ms is None else directive.delay_ms / 1000

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.create_task(self._answer(send))
        leaving = asyncio.create_task(_wait_until_left(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        except ConnectionCut:
            # An application that returns without a last body makes the server close the connection.
            pass
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
            await self._ledger.end(self._call, self._end)

    async def _answer(self, send: Send) -> None:
        directive = self._directive
        await self._ledger.pass_gates(self._call)
        if directive.hang:
            await _hang()
        await asyncio.sleep(directive.first_token_ms / 1000)
        if directive.fail is not None:
            self._end = "failed"
            await self._send_failure(send, directive.fail)
        elif self._streamed:
            await self._send_stream(send)
        else:
            await self._send_whole(send)

    async def _send_failure(self, send: Send, status: int) -> None:
        body = error_body(
            "The offline model fails as its directive says.", kind=_error_kind(status), code="offline_fault"
        )
        headers = [(b"content-type", JSON_TYPE), (b"content-length", str(len(body)).encode())]
        if self._directive.retry_after_s is not None:
            headers.append((b"retry-after", f"{self._directive.retry_after_s:g}".encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _send_whole(self, send: Send) -> None:
        body = encode_json(self._content.whole())
        headers = [(b"content-type", JSON_TYPE), (b"content-length", str(len(body)).encode())]
        tokens = sum(1 for _ in self._content.tokens())
        for count in range(tokens + 1):
            if self._directive.cut_after == count:
                # A body that is shorter than its length, so that the client sees the cut.
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._meet_fault(count, None)
            if count < tokens:
                await asyncio.sleep(self._delay_s)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self._call.tokens_sent = tokens
        self._end = "finished"

    async def _send_stream(self, send: Send) -> None:
        headers = [(b"content-type", STREAM_TYPE), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _send_more(send, self._content.opening())
        for token in self._content.tokens():
            await self._meet_fault(self._call.tokens_sent, send)
            if self._call.tokens_sent:
                await asyncio.sleep(self._delay_s)
            await _send_more(send, token)
            self._call.tokens_sent += 1
            await self._ledger.pass_gates(self._call)
        await self._meet_fault(self._call.tokens_sent, send)
        await send({"type": "http.response.body", "body": self._content.closing()})
        self._end = "finished"

    async def _meet_fault(self, tokens: int, send: Send | None) -> None:
        """Do what the directive wants to go wrong after ``tokens`` tokens; without ``send`` only what needs no stream."""
        directive = self._directive
        if directive.hang_after == tokens:
            await _hang()
        if directive.cut_after == tokens:
            self._cut()
        if send is None:
            return
        if directive.error_after == tokens:
            body = error_body(
                "The offline model breaks off as its directive says.",
                kind="server_error",
                code="offline_fault",
            )
            await _send_more(send, b"data: " + body + b"\n\n")
            self._cut()
        if directive.garbage_after == tokens:
            await _send_more(send, GARBAGE)
            self._cut()

    def _cut(self) -> NoReturn:
        self._end = "failed"
        raise ConnectionCut


async def _wait_until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _hang() -> None:
    await asyncio.Event().wait()


async def _send_more(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _error_kind(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 429:
            return "rate_limit_error"
        case _:
            return "server_error" if status >= 500 else "invalid_request_error"
