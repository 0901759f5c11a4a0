"""A link: a TCP proxy of ours between one process and one server, that can be cut, slowed down and shut."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from producer.dev.places import LOOPBACK

CHUNK_BYTES: Final = 65_536
DEFAULT_PORTS: Final = {"amqp": 5672, "redis": 6379, "postgresql": 5432}


@dataclass(slots=True, eq=False)
class _Passage:
    """One connection: both its sides, and whether it breaks instead of passing on the next answer."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    breaks_at_answer: bool = False

    def abort(self) -> None:
        for side in (self.near, self.far):
            side.transport.abort()


@dataclass(slots=True, eq=False)
class Link:
    """The way of one process to the server at ``url``. Belongs to one event loop; ``open`` before use, ``close`` after.

    ``delay_s`` is added to everything that passes, in both directions. While ``is_shut`` nobody gets through.
    """

    server_url: str
    delay_s: float = 0.0
    is_shut: bool = False
    url: str = ""
    _server: asyncio.Server | None = None
    _passages: set[_Passage] = field(default_factory=set)
    _serving: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def passages(self) -> int:
        """How many connections go through now."""
        return len(self._passages)

    async def open(self) -> None:
        """Listen on a free port of the loopback; ``url`` is the server's address through this link from now on."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = _with_port(urlsplit(self.server_url), port)

    async def close(self) -> None:
        """Break every connection and listen no more."""
        self.is_shut = True
        if self._server is not None:
            self._server.close()
        self.cut()
        for serving in list(self._serving):
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def cut(self, *, at_answer: bool = False) -> None:
        """Break every connection, now or instead of its next answer: what was asked for is done, and nobody is told."""
        for passage in list(self._passages):
            if at_answer:
                passage.breaks_at_answer = True
            else:
                passage.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._serving.add(task)
        try:
            await self._pass(reader, writer)
        except asyncio.CancelledError:
            pass  # the link closes; Python 3.11's streams log a cancelled server task as a defect
        finally:
            self._serving.discard(task)
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(self.server_url)
        if self.is_shut:
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(parts.hostname, _port(parts))
        except OSError:
            return
        passage = _Passage(writer, far_writer)
        self._passages.add(passage)
        ways = [
            asyncio.create_task(self._carry(reader, far_writer, passage, answers=False)),
            asyncio.create_task(self._carry(far_reader, writer, passage, answers=True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._passages.discard(passage)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            far_writer.close()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passage: _Passage, *, answers: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if answers and passage.breaks_at_answer:
                    passage.abort()
                    return
                writer.write(data)
                await writer.drain()


def _port(parts: SplitResult) -> int:
    return parts.port or DEFAULT_PORTS[parts.scheme]


def _with_port(parts: SplitResult, port: int) -> str:
    login, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login}{at}{LOOPBACK}:{port}"))
