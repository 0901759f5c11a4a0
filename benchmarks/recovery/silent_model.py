"""A model endpoint that takes requests and never answers: a worker that asks it is killed while it waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from shared.domain.errors import ProcessFailed

HOST: Final = "127.0.0.1"
BOUND_S: Final = 60.0


@dataclass(slots=True)
class SilentModel:
    """Notes when a request begins to come (``time.time``), in the loop that serves it."""

    url: str = ""
    _asked: asyncio.Queue[float] = field(default_factory=asyncio.Queue)

    async def next_request(self) -> float:
        """Return when the next request came; raise ``ProcessFailed`` after ``BOUND_S`` seconds without one."""
        try:
            async with asyncio.timeout(BOUND_S):
                return await self._asked.get()
        except TimeoutError:
            raise ProcessFailed(f"no model was asked within {BOUND_S:g} s", name="worker") from None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one connection's request, and hold the connection until its other end is gone."""
        try:
            if await reader.read(1):
                self._asked.put_nowait(time.time())
            with suppress(ConnectionError):
                while await reader.read(65_536):
                    pass
        finally:
            writer.close()


@asynccontextmanager
async def open_silent_model() -> AsyncIterator[SilentModel]:
    """Serve on a free port of this machine."""
    model = SilentModel()
    server = await asyncio.start_server(model.serve, HOST, 0)
    model.url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield model
    finally:
        server.close()
