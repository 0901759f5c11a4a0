"""Links between a process and a server: they pass on, and they break as they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from urllib.parse import urlsplit

import pytest

from producer.dev.torture.links import Link

BOUND_S = 10.0


class Echo:
    """A server that answers every line with itself and remembers the lines."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while line := await reader.readline():
                self.lines.append(line)
                writer.write(line)


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Link, Echo]]:
    """Yield an open link to an echo."""
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    link = Link(f"redis://user:secret@127.0.0.1:{port}/3")
    await link.open()
    try:
        yield link, echo
    finally:
        await link.close()
        server.close()


@asynccontextmanager
async def connected(link: Link) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(link.url).port)
    try:
        async with asyncio.timeout(BOUND_S):
            yield reader, writer
    finally:
        writer.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: bytes = b"hello\n") -> bytes:
    writer.write(line)
    return await reader.readline()


async def test_a_link_has_the_address_of_its_server_but_its_own_port() -> None:
    async with linked() as (link, _):
        near, far = urlsplit(link.url), urlsplit(link.server_url)
        assert (near.scheme, near.username, near.password, near.path) == ("redis", "user", "secret", "/3")
        assert near.port != far.port


async def test_what_is_said_passes_in_both_directions() -> None:
    async with linked() as (link, echo), connected(link) as (reader, writer):
        assert await ask(reader, writer) == b"hello\n"
        assert (echo.lines, link.passages) == ([b"hello\n"], 1)


async def test_a_cut_breaks_what_is_connected_and_lets_the_next_one_through() -> None:
    async with linked() as (link, _):
        async with connected(link) as (reader, writer):
            await ask(reader, writer)
            link.cut()
            with pytest.raises(ConnectionError):
                if not await reader.readline():
                    raise ConnectionError
        async with connected(link) as (reader, writer):
            assert await ask(reader, writer) == b"hello\n"


async def test_a_cut_at_the_answer_lets_the_request_through() -> None:
    async with linked() as (link, echo), connected(link) as (reader, writer):
        await ask(reader, writer)
        link.cut(at_answer=True)
        with pytest.raises(ConnectionError):
            if not await ask(reader, writer, b"again\n"):
                raise ConnectionError
        assert echo.lines == [b"hello\n", b"again\n"]


async def test_a_shut_link_lets_nobody_through() -> None:
    async with linked() as (link, echo):
        link.is_shut = True
        async with connected(link) as (reader, writer):
            with pytest.raises(ConnectionError):
                if not await ask(reader, writer):
                    raise ConnectionError
        assert echo.lines == []


async def test_a_delayed_answer_still_comes() -> None:
    async with linked() as (link, _), connected(link) as (reader, writer):
        link.delay_s = 0.05
        assert await ask(reader, writer) == b"hello\n"


async def test_a_server_that_is_away_looks_like_a_broken_connection() -> None:
    link = Link("redis://127.0.0.1:1/0")
    await link.open()
    try:
        async with connected(link) as (reader, writer):
            with pytest.raises(ConnectionError):
                if not await ask(reader, writer):
                    raise ConnectionError
    finally:
        await link.close()
