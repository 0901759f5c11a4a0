"""The asyncio side of a worker process: one event loop in its own thread, its parts, and how both end.

::

    building ──ready──▶ serving ──drain──▶ draining ──▶ closing ──▶ ended
        └──────── failure ──┴─── stop now ────┴──────────▲

The thread of Celery's hub starts it, offers wakes to it, asks it to drain, and waits for its end. The waits are on the
read end of a pipe that the loop's thread closes as it ends: unlike locks, that may be waited for again from a signal
handler which interrupted such a wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final

import uvloop

from workers.parts import QueueServer, WorkerParts

_log: Final = logging.getLogger(__name__)

#: Seconds that a stop at once gives what was cancelled to release what it held.
STOP_NOW_S: Final = 1.0
#: Seconds that closing the parts may take.
CLOSE_S: Final = 10.0
_LOOK_S: Final = 0.1


class LoopProcess:
    """Builds the parts on the loop and serves their queues until drained or stopped.

    ``build`` makes the parts; it is called on the loop. ``on_unfit`` is called on the loop when the process can serve no
    longer (a server or a service ended by itself, or a part asked to leave), with the reason; draining then waits for
    :meth:`begin_drain`. ``after_stop`` is called in the loop's thread once a stop at once is complete. The other methods are called by the hub's thread, and by signal handlers in it.
    """

    def __init__(
        self,
        build: Callable[[], AbstractAsyncContextManager[WorkerParts]],
        *,
        drain_s: float,
        on_unfit: Callable[[str], None],
        after_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._build = build
        self._drain_s = drain_s
        self._on_unfit = on_unfit
        self._after_stop = after_stop
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._drain = asyncio.Event()
        self._now = asyncio.Event()
        self._parts: WorkerParts | None = None
        self._ready = False
        self._failure: BaseException | None = None
        self._ended_r, self._ended_w = os.pipe()

    # --- from the hub's thread -------------------------------------------------------------------------------

    def start(self, look: Callable[[], None]) -> None:
        """Start the loop and return once the parts are built; raise what building them raised.

        ``look`` is called ten times a second meanwhile; what it raises (a shutdown was asked for) ends the wait.
        """
        threading.Thread(target=self._run, name="event-loop", daemon=True).start()
        try:
            while not self._ready and not self.wait_ended(_LOOK_S):
                look()
        except BaseException:
            self.stop_now()
            self.wait_ended(STOP_NOW_S + CLOSE_S)
            raise
        if self._failure is not None:
            raise self._failure

    def offer(self, queue: str, ids: Sequence[str]) -> bool:
        """Hand a wake to what serves ``queue``; return whether this process serves it."""
        parts = self._parts
        if parts is None or (server := parts.pumps.get(queue)) is None:
            return False
        self.call(server.offer, tuple(ids))
        return True

    def info(self) -> dict[str, Any]:
        """Return what every server holds: totals, and its own figures by queue."""
        parts = self._parts
        figures = {queue: dict(server.info()) for queue, server in parts.pumps.items()} if parts else {}
        return {
            "held": sum(one.get("held", 0) for one in figures.values()),
            "capacity": sum(one.get("capacity", 0) for one in figures.values()),
            "ids": [name for one in figures.values() for name in one.get("ids", ())],
            "pumps": figures,
        }

    @property
    def beats(self) -> int:
        """How often the loop has measured its lag; standing still, it is blocked."""
        return self._parts.load.beats if self._parts is not None else 0

    def note_unfit(self, reason: str) -> None:
        """Have the health endpoint say why this process leaves."""
        if self._parts is not None:
            self._parts.health.unfit = reason

    def begin_drain(self) -> None:
        """Take no more wakes and claims, and end when what is held is done or its time is up. Returns at once."""
        self.call(self._drain.set)

    def stop_now(self) -> None:
        """Cancel everything and end within about ``STOP_NOW_S``. Returns at once."""
        self.call(self._now.set)

    def wait_ended(self, timeout_s: float) -> bool:
        """Wait until the loop's thread has ended; return whether it has. May be nested in itself by a signal handler."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            # In slices: a signal handler may have ended it while an outer wait slept on.
            if select.select([self._ended_r], [], [], min(left, _LOOK_S))[0]:
                return True
        return False

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function`` on the loop soon; nothing happens when the loop has ended. Safe in a signal handler."""
        with suppress(RuntimeError):  # the loop is closed: there is nobody left to tell
            self._loop.call_soon_threadsafe(function, *args)

    # --- on the loop -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        except BaseException as error:  # the thread's edge: the hub's thread must learn of whatever ended it
            self._failure = error
            if self._ready:
                _log.critical("the event loop ended: %r", error, exc_info=error)
                self._on_unfit(f"the event loop ended: {error!r}")
        finally:
            self._parts = None
            os.close(self._ended_w)
        if self._now.is_set():
            self._after_stop()

    async def _main(self) -> None:
        building = asyncio.create_task(self._live())
        now = asyncio.create_task(self._now.wait())
        await asyncio.wait({building, now}, return_when=asyncio.FIRST_COMPLETED)
        if not building.done():
            # What serves stops by itself (see ``_drain_all``) and then closes its parts; what still builds does not.
            await asyncio.wait({building}, timeout=2 * STOP_NOW_S if self._ready else 0)
            building.cancel()
            await asyncio.wait({building}, timeout=STOP_NOW_S)
        now.cancel()
        if building.done() and not building.cancelled():
            building.result()

    async def _live(self) -> None:
        async with self._build() as parts:
            self._parts = parts
            servers = [
                asyncio.create_task(_must_not_end(one.serve, self._leaving)) for one in parts.pumps.values()
            ]
            loops = (*parts.services, parts.load.measure_for_ever)
            services = [asyncio.create_task(_must_not_end(one, self._leaving)) for one in loops]
            self._ready = True
            try:
                await self._until_told(parts, [*servers, *services])
                await self._drain_all(list(parts.pumps.values()))
            finally:
                for task in (*servers, *services):
                    task.cancel()
                await asyncio.gather(*servers, *services, return_exceptions=True)

    def _leaving(self) -> bool:
        return self._drain.is_set() or self._now.is_set()

    async def _until_told(self, parts: WorkerParts, watched: list[asyncio.Task[None]]) -> None:
        """Wait until told to drain or stop; tell the hub's thread when one of the parts gives up before."""
        told = [asyncio.create_task(event.wait()) for event in (self._drain, self._now)]
        leave = asyncio.create_task(parts.leave.wait())
        try:
            ends: set[asyncio.Task[Any]] = {*told, leave, *watched}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not self._leaving():
                reason = next(
                    (str(one.exception()) for one in watched if one.done()), "a part asked to leave"
                )
                parts.health.unfit = reason
                self._on_unfit(reason)
                await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (*told, leave):
                one.cancel()

    async def _drain_all(self, servers: list[QueueServer]) -> None:
        draining = asyncio.ensure_future(asyncio.gather(*(one.drain(self._drain_s) for one in servers)))
        now = asyncio.create_task(self._now.wait())
        either: set[asyncio.Future[Any]] = {draining, now}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        now.cancel()
        if not draining.done():
            for one in servers:
                one.stop_now()
            await asyncio.wait({draining}, timeout=STOP_NOW_S)
            draining.cancel()


async def _must_not_end(part: Callable[[], Awaitable[None]], leaving: Callable[[], bool]) -> None:
    """Await a loop of the process; raise if it ends by itself before the process is leaving."""
    name = getattr(part, "__qualname__", repr(part))
    try:
        await part()
    except Exception as error:
        _log.critical("%s failed", name, exc_info=error)
        raise RuntimeError(f"{name} failed: {error!r}") from error
    if not leaving():
        raise RuntimeError(f"{name} ended")
