"""One address in front of several servers: forwards each connection to the next of them that takes it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

CHUNK_BYTES = 64 * 1024
#: A socket that lingers for no second sends a reset when it is closed.
_AT_ONCE = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Balancer:
    """Where it listens, and the backends' ports in the order they are tried; a test may change them at any time."""

    port: int
    backends: Sequence[int]
    clients: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"http://127.0.0.1:{self.port}"

    def reset(self) -> None:
        """Break every client's connection as a network does: it hears of a reset, not of an end."""
        for writer in self.clients:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            writer.transport.abort()


@asynccontextmanager
async def balancing(backends: Sequence[int]) -> AsyncIterator[Balancer]:
    """Run a balancer on a free port."""
    made = Balancer(0, backends)
    forwarding: set[asyncio.Task[None]] = set()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        forwarding.add(task)
        task.add_done_callback(forwarding.discard)
        made.clients.add(writer)
        try:
            for port in made.backends:
                with suppress(OSError):
                    answers, requests = await asyncio.open_connection("127.0.0.1", port)
                    break
            else:
                return
            async with asyncio.TaskGroup() as group:
                group.create_task(_pipe(reader, requests))
                group.create_task(_pipe(answers, writer))
        finally:
            made.clients.discard(writer)
            writer.transport.abort()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in tuple(forwarding):
            task.cancel()
        await asyncio.gather(*forwarding, return_exceptions=True)


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Forward bytes until either side is gone; then the other is let go of too."""
    with suppress(OSError):
        while chunk := await source.read(CHUNK_BYTES):
            sink.write(chunk)
            await sink.drain()
    sink.close()
