"""Clients of a producer: each admits a turn in its session, reads its events to the end, and admits the next.

A process of its own, so that what it costs is told apart. Raw protocols: a reader is to be cheaper than what it reads. What a
token's text says is when the model sent it (see :mod:`benchmarks.streams.model`), so its age is known on arrival.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Final, TypeAlias, cast

import orjson
import uvloop

from benchmarks.streams.model import TOKEN_CHARS

#: Clients begin one after the other: a crowd that comes at once measures its own jam.
CLIENTS_PER_S: Final = 200
#: A client whose turn was refused comes back after so many seconds.
AGAIN_S: Final = 1.0

#: Said when measuring begins and ends; the last line is the result.
BEGIN: Final = "begin"
END: Final = "end"

_DELTA: Final = b"event: delta\n"
_SNAPSHOT: Final = b"event: snapshot\n"
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
_REFUSALS: Final = (b"HTTP/1.1 4", b"HTTP/1.1 5")
_TEXT: Final = b'"text":"'
_MESSAGE: Final = b'{"message":"Tell me something."}'


#: A session and a key of its owner.
Place: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class Seen:
    """What the readers saw while ``is_open``: times in seconds, lags in microseconds."""

    is_open: bool = False
    tokens: int = 0
    frames: int = 0
    lags_us: list[int] = field(default_factory=list)
    #: From the first token's sending to the last one's arrival, of turns that ended.
    spans_s: list[float] = field(default_factory=list)
    #: From the request to the first token's arrival.
    waits_s: list[float] = field(default_factory=list)
    #: From the last token's arrival to the turn's end.
    ends_s: list[float] = field(default_factory=list)
    failures: int = 0
    #: Highest number of turns whose text was streaming at once.
    streaming: int = 0
    streaming_max: int = 0


class Reader(asyncio.Protocol):
    """One client on one connection; ``run`` admits turns until told to stop."""

    def __init__(self, seen: Seen, host: str) -> None:
        self._seen = seen
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._ended: asyncio.Future[None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._asked_at = self._first_us = self._last_at = 0.0
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(ConnectionResetError("the producer closed the connection"))

    async def run(self, places: Iterator[Place], keep_on: asyncio.Event) -> None:
        """Admit turns, each in the next session, and read them until ``keep_on`` is cleared."""
        while keep_on.is_set():
            session, key = next(places)
            self._reset()
            self._asked_at = time.monotonic()
            self._ended = asyncio.get_running_loop().create_future()
            self._send(f"/v1/sessions/{session}/turns", key)
            await self._ended
            if not self._first_us:
                await asyncio.sleep(AGAIN_S)  # as a client does that is told to come back

    def _send(self, path: str, key: str) -> None:
        assert self._transport is not None
        self._transport.write(
            b"POST %b HTTP/1.1\r\nhost: %b\r\nauthorization: Bearer %b\r\naccept: text/event-stream\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (path.encode(), self._host.encode(), key.encode(), len(_MESSAGE), _MESSAGE)
        )

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        if data.startswith(_REFUSALS):
            self._see_failure(data)
            self._end()
            return
        is_last = data.endswith(_LAST_CHUNK)
        cut = len(data) if is_last else data.rfind(b"\n\n") + 2
        if cut < 2:
            self._rest = data
            return
        self._rest = data[cut:]
        self._take(data[:cut])
        if is_last:
            self._end()

    def _take(self, data: bytes) -> None:
        if b"event: problem" in data:
            self._see_failure(data)
        now = time.monotonic()
        now_us = round(now * 1e6)
        for frame in data.split(b"\n\n"):
            if _DELTA in frame or _SNAPSHOT in frame:
                self._take_text(frame, now, now_us)

    def _take_text(self, frame: bytes, now: float, now_us: int) -> None:
        seen = self._seen
        begin = frame.index(_TEXT) + len(_TEXT)
        text = frame[begin : frame.index(b'"', begin)]
        if not self._first_us:
            self._first_us = int(text[:TOKEN_CHARS])
            seen.streaming += 1
            seen.streaming_max = max(seen.streaming_max, seen.streaming)
            if seen.is_open:
                seen.waits_s.append(now - self._asked_at)
        self._last_at = now
        if seen.is_open:
            seen.frames += 1
            seen.tokens += len(text) // TOKEN_CHARS
            seen.lags_us += [
                now_us - int(text[at : at + TOKEN_CHARS]) for at in range(0, len(text), TOKEN_CHARS)
            ]

    def _see_failure(self, data: bytes) -> None:
        self._seen.failures += 1
        sys.stderr.write(data[:600].decode(errors="replace"))

    def _end(self) -> None:
        seen = self._seen
        if self._first_us:
            seen.streaming -= 1
            if seen.is_open:
                seen.spans_s.append(self._last_at - self._first_us / 1e6)
                seen.ends_s.append(time.monotonic() - self._last_at)
        elif self._ended is not None and not self._ended.done():
            seen.failures += 1
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


async def read_streams(
    port: int, places: Sequence[Place], clients: int, *, warm_s: float, seconds: float, let_end_s: float
) -> dict[str, object]:
    """Run so many clients and return what they saw in ``seconds`` after ``warm_s``; what runs then may end."""
    in_turn = cycle(places)
    seen, keep_on = Seen(), asyncio.Event()
    keep_on.set()
    loop = asyncio.get_running_loop()
    readers: list[Reader] = []
    for _ in range(clients):
        _, reader = await loop.create_connection(lambda: Reader(seen, f"127.0.0.1:{port}"), "127.0.0.1", port)
        readers.append(reader)

    async def begin(n: int, reader: Reader) -> None:
        await asyncio.sleep(n / CLIENTS_PER_S)  # one after the other
        await reader.run(in_turn, keep_on)

    tasks = [asyncio.create_task(begin(n, one)) for n, one in enumerate(readers)]
    await asyncio.sleep(warm_s)  # until the first turns of all have begun
    tell(BEGIN)
    seen.is_open, began, used_s = True, time.monotonic(), cpu_s()
    await asyncio.sleep(seconds)  # what is measured
    took_s, used_s = time.monotonic() - began, cpu_s() - used_s
    seen.is_open = False
    keep_on.clear()
    tell(END)
    await asyncio.wait(tasks, timeout=let_end_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "seconds": took_s,
        "cpu_s": used_s,
        "tokens": seen.tokens,
        "frames": seen.frames,
        "turns": len(seen.spans_s),
        "failures": seen.failures,
        "streaming_max": seen.streaming_max,
        "lags_ms": percentiles([lag / 1000 for lag in seen.lags_us]),
        "spans_s": percentiles(seen.spans_s),
        "waits_s": percentiles(seen.waits_s),
        "ends_ms": percentiles([1000 * one for one in seen.ends_s]),
    }


def percentiles(values: list[float]) -> dict[str, float]:
    """Return p50, p90, p99 and the highest; all zero of nothing."""
    ordered = sorted(values) or [0.0]
    at = {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 90, 99)}
    return {**at, "max": ordered[-1]}


def tell(line: str) -> None:
    """Say a line to whoever started this process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def cpu_s() -> float:
    """Return the CPU seconds that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """``python -m benchmarks.streams.readers --port 8000 --clients 100``; the last line is a JSON object."""
    parser = argparse.ArgumentParser(description="Readers of event streams.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--places", type=Path, required=True, help="JSON: sessions and their owners' keys")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--warm", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--let-end", type=float, default=8.0)
    given = parser.parse_args()
    places = [(str(session), str(key)) for session, key in orjson.loads(given.places.read_bytes())]
    result = uvloop.run(
        read_streams(
            given.port,
            places,
            given.clients,
            warm_s=given.warm,
            seconds=given.seconds,
            let_end_s=given.let_end,
        )
    )
    tell(orjson.dumps(result).decode())


if __name__ == "__main__":
    main()
