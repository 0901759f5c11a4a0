"""Producers' event streams in a test's own loop: processes with connections of their own, and a real HTTP server before one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from producer.sse import EventStream
from producer.traffic import Closing
from shared.database.pool import Database
from shared.domain.ids import SessionId, TurnId
from shared.feed.redis import RedisFeed
from shared.sessions.postgres import PostgresSessionLog
from shared.turns.postgres import PostgresTurnQueue
from tests.support.following import OWNER, FollowWorld


@dataclass
class Process:
    """One process: its own pool, its own feed, its own watcher."""

    world: FollowWorld
    feed: RedisFeed
    database: Database


@asynccontextmanager
async def process(
    database_url: str,
    redis_url: str,
    *,
    with_feed: bool = True,
    with_hints: bool = True,
    poll_s: float = 0.1,
    kinds: frozenset[str] | None = None,
) -> AsyncIterator[Process]:
    """Start a process of the system; one without a feed or hints finds changes by polling alone."""
    database = Database(database_url, connections=4)
    await database.open()
    feed = RedisFeed(redis_url)
    feed.open()
    world = FollowWorld.over(
        PostgresSessionLog(database),
        PostgresTurnQueue(database),
        feed=feed if with_feed else None,
        hints=feed if with_feed and with_hints else None,
        poll_s=poll_s,
        kinds=kinds,
    )
    world.watcher.open()
    try:
        yield Process(world, feed, database)
    finally:
        await world.watcher.close()
        await feed.close()
        await database.close()


@dataclass
class Site:
    """A producer's event routes behind a real HTTP server."""

    producer: Process
    port: int
    closing: Closing
    server: uvicorn.Server
    lines: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def unsent_bytes(self) -> int:
        """What the server holds for clients that do not take it."""
        connections: Any = self.server.server_state.connections
        return sum(c.transport.get_write_buffer_size() for c in connections if c.transport is not None)

    async def ask(
        self, path: str, *, cursor: int | None = None, receive_bytes: int = 0
    ) -> asyncio.StreamReader:
        """Send a GET and return what comes; ``receive_bytes`` makes a client whose kernel takes no more than that."""
        raw = socket.socket()
        if receive_bytes:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=2**12)
        self.lines.append(writer)
        last = f"Last-Event-ID: {cursor}\r\n" if cursor is not None else ""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{last}\r\n".encode())
        return reader


@asynccontextmanager
async def site(producer: Process, *, stall_s: float = 30.0) -> AsyncIterator[Site]:
    """Serve the event streams of sessions and turns as the producer's routes do."""
    closing = Closing()

    async def events(request: Request) -> Response:
        cursor = int(request.headers.get("last-event-id", 0))
        if "turn" in request.path_params:
            turn_id = TurnId(UUID(request.path_params["turn"]))
            found = await producer.world.following.follow_turn(turn_id, OWNER, after=cursor)
        else:
            session_id = SessionId(request.path_params["session"])
            found = await producer.world.following.follow_session(session_id, OWNER, after=cursor)
        return EventStream(found, stall_s=stall_s, closing=closing)

    routes = [Route("/turns/{turn}", events), Route("/sessions/{session}", events)]
    config = uvicorn.Config(Starlette(routes=routes), log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
        serving = asyncio.create_task(server.serve([listener]))
        here = Site(producer, listener.getsockname()[1], closing, server)
        try:
            yield here
        finally:
            closing.set()
            for line in here.lines:
                line.transport.abort()
            server.should_exit = True
            await asyncio.wait_for(serving, 10)


async def body_of(stream: asyncio.StreamReader) -> str:
    """Read a whole chunked response."""
    async with asyncio.timeout(30):
        raw = await stream.read()
    _, _, body = raw.partition(b"\r\n\r\n")
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        parts.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]
    return b"".join(parts).decode()
