"""A real TCP server that answers HTTP requests with whatever bytes a test scripts, and sees when its clients leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Exchange:
    """One request that came, and the hand that answers it."""

    number: int
    head: bytes
    body: bytes
    writer: asyncio.StreamWriter
    left: asyncio.Event

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def send_chunk(self, data: bytes) -> None:
        """Send one chunk of a chunked body; an empty one ends it."""
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def send_whole(self, status: str, body: bytes, *headers: str) -> None:
        """Send a whole response."""
        lines = [
            f"HTTP/1.1 {status}",
            f"content-length: {len(body)}",
            "content-type: application/json",
            *headers,
        ]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def wait_left(self) -> None:
        """Return when the client has closed the connection."""
        async with asyncio.timeout(10):
            await self.left.wait()

    def close(self) -> None:
        """Close the connection where it stands."""
        self.writer.close()


Answering = Callable[[Exchange], Awaitable[None]]


@dataclass
class HostileServer:
    """Where it listens, what came, and how many connections it took."""

    base_url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    connections: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def hostile_server(answering: Answering) -> AsyncIterator[HostileServer]:
    """Serve on a free port; ``answering`` is called for each request, on the connection that it came by."""
    server = HostileServer()
    serving: set[asyncio.Task[None]] = set()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        current = asyncio.current_task()
        assert current is not None
        serving.add(current)
        try:
            while (exchange := await _read_request(server, reader, writer)) is not None:
                await _answer(exchange, reader, answering)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(take, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    server.base_url = f"http://{host}:{port}/v1"
    try:
        yield server
    finally:
        listener.close()
        for connection in serving:
            connection.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def _read_request(
    server: HostileServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Exchange | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    body = await reader.readexactly(int(lengths[0].split(b":")[1])) if lengths else b""
    exchange = Exchange(len(server.exchanges) + 1, head, body, writer, asyncio.Event())
    server.exchanges.append(exchange)
    server.begun.set()
    return exchange


async def _answer(exchange: Exchange, reader: asyncio.StreamReader, answering: Answering) -> None:
    """Answer, and mark the exchange as left should the client close the connection before the answer is over."""

    async def watch() -> None:
        # The client sends nothing while it waits: all that comes is the end, or a reset when it left data unread.
        try:
            while await reader.read(1024):
                pass
        except ConnectionError:
            pass
        exchange.left.set()

    watching = asyncio.create_task(watch())
    try:
        await answering(exchange)
    except ConnectionError:
        exchange.left.set()
        raise
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
