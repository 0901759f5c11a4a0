"""The cheap client reads whole answers and streams on one kept connection."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from benchmarks.harness.client import Connection, get, post
from shared.domain.errors import ProcessFailed

PLAIN = b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}"
STREAM = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
    b"9\r\ndata: 1\n\n\r\n",
    b"b\r\nevent: end\n\r\n0\r\n\r\n",
)


async def served(answers: Sequence[Sequence[bytes]]) -> tuple[asyncio.Server, int, list[bytes]]:
    """Serve one answer a request, in its pieces, and close the connection behind the last one."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for pieces in answers:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1], requests


async def test_answers_of_known_length_and_streams_follow_each_other_on_one_connection() -> None:
    server, port, requests = await served([[PLAIN], STREAM])
    async with server:
        connection = await Connection.open(port)
        first = await connection.ask(post("/v1/x", b"{}", key="k"))
        seen: list[bytes] = []
        second = await connection.ask(get("/v1/y", key=""), on_piece=seen.append)
        connection.close()
    assert (first.status, first.body) == (202, b"{}")
    assert (second.status, second.body) == (200, b"data: 1\n\nevent: end\n")
    assert b"".join(seen) == second.body
    assert b"authorization: Bearer k\r\n" in requests[0]
    assert b"authorization" not in requests[1]


async def test_a_connection_that_ends_before_its_answer_is_an_error() -> None:
    server, port, _ = await served([[PLAIN[:-1]]])
    async with server:
        connection = await Connection.open(port)
        with pytest.raises(ProcessFailed):
            await connection.ask(get("/v1/x", key=""))
        with pytest.raises(ProcessFailed):
            await connection.ask(get("/v1/x", key=""))
