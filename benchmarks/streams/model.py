"""A model server that costs little: one process, a raw protocol, and one timing wheel for all its streams.

Every answer has the shape of a real one (some 245 bytes a token). The text of a token is the time it was sent at, so that
whoever reads it, however far down the line, knows how old it is: ``" %011d"``, microseconds of the machine's monotonic clock.
A user who asks to ``look 8 times`` gets that many steps with one call of the tool ``look`` before the text, and one who says
``after 400 ms`` waits that long for the first token of each answer.
``GET /log`` answers and forgets when requests came and answers ended, in order: what a benchmark of steps needs.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from dataclasses import dataclass
from typing import Final, cast

import orjson
import uvloop

#: Seconds of one slot of the wheel.
SLOT_S: Final = 0.002
SLOTS: Final = 4096
BACKLOG: Final = 4096
TOKEN_CHARS: Final = 12

_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_CHUNK: Final = (
    b'data: {"id":"chatcmpl-abcdefghijklmnopqrstuvwx","object":"chat.completion.chunk","created":1790000000,'
    b'"model":"stub-1","system_fingerprint":"fp_0","choices":[{"index":0,"delta":%s,"logprobs":null,'
    b'"finish_reason":%s}],"usage":null}\n\n'
)
_USAGE: Final = (
    b'data: {"id":"chatcmpl-abcdefghijklmnopqrstuvwx","object":"chat.completion.chunk","created":1790000000,'
    b'"model":"stub-1","system_fingerprint":"fp_0","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":50,'
    b'"total_tokens":150}}\n\ndata: [DONE]\n\n'
)
_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_USER: Final = re.compile(rb'"role": ?"user"')
_LOOKS: Final = re.compile(rb"look (\d+) times")
_AFTER: Final = re.compile(rb"after (\d+) ms")
_TOOL: Final = re.compile(rb'"role": ?"tool"')


@dataclass(frozen=True, slots=True)
class Pace:
    """What every answer is: after ``first_ms`` a call, or ``tokens``, one each ``token_ms``."""

    tokens: int = 50
    token_ms: float = 20.0
    first_ms: float = 20.0


class StreamingModel:
    """Answers every request at the pace given. Belongs to one event loop; :meth:`turn_wheel` runs for ever."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.log: list[tuple[str, float]] = []
        self._wheel: list[list[_Connection]] = [[] for _ in range(SLOTS)]
        self._now = 0
        self.late_ms = 0.0

    def schedule(self, stream: _Connection, after_ms: float) -> None:
        """Have the stream written to after so long."""
        slots = max(1, round(after_ms / 1000 / SLOT_S))
        self._wheel[(self._now + slots) % SLOTS].append(stream)

    async def turn_wheel(self) -> None:
        """Write to whatever is due, slot by slot; a late slot is made up for, not left out."""
        loop = asyncio.get_running_loop()
        began, turned = loop.time(), 0
        while True:
            turned += 1
            wait_s = began + turned * SLOT_S - loop.time()
            self.late_ms = max(self.late_ms, -1000 * wait_s)
            await asyncio.sleep(max(0.0, wait_s))  # the pace of the tokens
            self._now = (self._now + 1) % SLOTS
            due, self._wheel[self._now] = self._wheel[self._now], []
            if due:
                token = chunked(_CHUNK % (b'{"content":" %011d"}' % (time.monotonic_ns() // 1000), b"null"))
                for stream in due:
                    stream.write_next(token)

    def note(self, what: str) -> None:
        """Remember when something happened."""
        self.log.append((what, time.monotonic()))

    def take_log(self) -> bytes:
        """Return what happened since the last look, and how late the wheel ever was, as JSON."""
        log, self.log = self.log, []
        late, self.late_ms = self.late_ms, 0.0
        return orjson.dumps({"events": log, "late_ms": late})


class _Connection(asyncio.Protocol):
    """One connection; requests come one after the other."""

    def __init__(self, model: StreamingModel) -> None:
        self._model = model
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._left = 0
        self._call = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = _LENGTH.search(head)
        size = int(length.group(1)) if length else 0
        if len(body) < size:
            return
        self._received = body[size:]
        if head.startswith(b"GET /log"):
            self._answer(self._model.take_log())
        elif head.startswith(b"GET"):
            self._answer(b"{}")
        else:
            self._begin(body[:size])

    def write_next(self, token: bytes) -> None:
        """Write the next token, or what stands at the end."""
        if self._transport is None:
            return
        pace = self._model.pace
        if self._call:
            self._transport.write(_call_chunks())
            self._end(b'"tool_calls"')
            return
        self._transport.write(token)
        self._left -= 1
        if self._left > 0:
            self._model.schedule(self, pace.token_ms)
        else:
            self._end(b'"stop"')

    def _begin(self, body: bytes) -> None:
        assert self._transport is not None
        model = self._model
        model.note("request")
        *_, asked = [0, *(match.end() for match in _USER.finditer(body))]
        wanted = _LOOKS.search(body, asked)
        self._call = wanted is not None and len(_TOOL.findall(body, asked)) < int(wanted.group(1))
        self._left = model.pace.tokens
        self._transport.write(_HEAD + chunked(_CHUNK % (b'{"role":"assistant","content":""}', b"null")))
        after = _AFTER.search(body, asked)
        first_ms = float(after.group(1)) if after is not None else model.pace.first_ms
        if first_ms <= 0:
            self.write_next(
                chunked(_CHUNK % (b'{"content":" %011d"}' % (time.monotonic_ns() // 1000), b"null"))
            )
        else:
            model.schedule(self, first_ms)

    def _end(self, reason: bytes) -> None:
        assert self._transport is not None
        self._transport.write(chunked(_CHUNK % (b"{}", reason)) + chunked(_USAGE) + b"0\r\n\r\n")
        self._model.note("answered")

    def _answer(self, body: bytes) -> None:
        assert self._transport is not None
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)


def chunked(body: bytes) -> bytes:
    """Return a body as one chunk of HTTP."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def _call_chunks() -> bytes:
    call_id = b"call_%016d" % (time.monotonic_ns() // 1000)
    head = (
        b'{"tool_calls":[{"index":0,"id":"%b","type":"function","function":{"name":"look","arguments":""}}]}'
    )
    arguments = b'{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}'
    named = chunked(_CHUNK % (head % call_id, b"null"))
    return named + chunked(_CHUNK % (arguments, b"null"))


async def serve(port: int, pace: Pace) -> None:
    """Serve until cancelled."""
    model = StreamingModel(pace)
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: _Connection(model), "127.0.0.1", port, backlog=BACKLOG)
    await model.turn_wheel()


def main() -> None:
    """``python -m benchmarks.streams.model --port 8901 --tokens 50 --token-ms 20``."""
    parser = argparse.ArgumentParser(description="A model server for benchmarks.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--token-ms", type=float, default=20.0)
    parser.add_argument("--first-ms", type=float, default=20.0)
    given = parser.parse_args()
    uvloop.run(serve(given.port, Pace(given.tokens, given.token_ms, given.first_ms)))


if __name__ == "__main__":
    main()
