"""The HTTP server process: uvicorn, with a drain before it closes its door (API-15)."""

from __future__ import annotations

import asyncio
import logging
import socket
from types import FrameType
from typing import Final

import uvicorn
from fastapi import FastAPI

from producer.connections import GatheredProtocol
from producer.traffic import Traffic

_log: Final = logging.getLogger(__name__)

#: Seconds that uvicorn gives what is still there after the drain.
CLOSE_S: Final = 3
#: Idle connections are kept longer than balancers keep theirs (60 s), so that it is never ours that closes first.
KEEP_ALIVE_S: Final = 75


class ProducerServer(uvicorn.Server):
    """Drains on the first SIGTERM or SIGINT: admits nothing more, lets what is in flight end, then closes and ends.

    The port stays open meanwhile, so that callers read 503 ``turn.refused`` and not a refused connection. A second
    signal, or ``drain_s`` seconds, ends it at once.
    """

    def __init__(self, config: uvicorn.Config, traffic: Traffic, *, drain_s: float) -> None:
        super().__init__(config)
        self._traffic = traffic
        self._drain_s = drain_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._close_by: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, unless a signal comes first: then what was begun is given up, and the process ends."""
        self._loop = asyncio.get_running_loop()
        starting = asyncio.current_task()
        assert starting is not None
        giving_up = asyncio.create_task(self._give_up(starting))
        try:
            await super().startup(sockets)
        except asyncio.CancelledError:
            if not self._traffic.is_draining:
                raise
            starting.uncancel()
            self.should_exit = True
        finally:
            giving_up.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the drain, or end at once when it has begun. Called by the interpreter between two instructions."""
        if self._loop is None or self._traffic.is_draining:
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self._begin_drain)

    async def on_tick(self, counter: int) -> bool:
        """Tell whether to close the door now; uvicorn asks ten times a second."""
        if self._close_by is not None:
            is_quiet = self._traffic.requests == 0
            if is_quiet or asyncio.get_running_loop().time() >= self._close_by:
                self.should_exit = True
        return await super().on_tick(counter)

    async def _give_up(self, starting: asyncio.Task[None]) -> None:
        await self._traffic.draining.wait()
        starting.cancel()

    def _begin_drain(self) -> None:
        _log.info("draining", extra={"requests": self._traffic.requests, "streams": self._traffic.streams})
        self._traffic.begin_drain()
        self._close_by = asyncio.get_running_loop().time() + self._drain_s


def make_server(app: FastAPI, traffic: Traffic, *, host: str, port: int, drain_s: float) -> ProducerServer:
    """Return the server of an application; ``run`` it in a process of its own, or ``serve`` it in a running loop."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http=GatheredProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=CLOSE_S,
    )
    return ProducerServer(config, traffic, drain_s=drain_s)
