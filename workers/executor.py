"""A bounded executor for the host's blocking code: a call that never returns costs one thread, not the process.

1. At most ``threads`` calls run at once; the others wait for a place within their own time.
2. A call past its time is abandoned: its caller gets ``CallAbandoned``, its thread is lost, its place is free again.
3. A lost thread that returns after all is no longer lost. Once ``lost_max`` are lost at one time, ``on_exhausted`` is
   called, once: the process should drain and exit (DST-31).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar, TypeVarTuple

from shared.domain.errors import CallAbandoned

Args = TypeVarTuple("Args")
R = TypeVar("R")

_log: Final = logging.getLogger(__name__)

LOST_MAX: Final = 8


@dataclass(slots=True, eq=False)
class _Call:
    """One call and who waits for it; ``returned`` and ``lost`` belong to the event loop."""

    function: Callable[[], Any]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    outcome: asyncio.Future[Any]
    timer: asyncio.TimerHandle | None = None
    returned: bool = False
    lost: bool = False


class BoundedExecutor:
    """Runs blocking functions in daemon threads, started as they are needed; belongs to one event loop."""

    def __init__(
        self,
        threads: int,
        *,
        lost_max: int = LOST_MAX,
        on_exhausted: Callable[[], None] = lambda: None,
        name: str = "host",
    ) -> None:
        self._places = asyncio.Semaphore(threads)
        self._lost_max = lost_max
        self._on_exhausted = on_exhausted
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._resting = 0
        self._running = 0
        self._lost = 0
        self._exhausted = False
        self._closed = False

    @property
    def running(self) -> int:
        """Calls that hold a place."""
        return self._running

    @property
    def lost(self) -> int:
        """Threads that are in an abandoned call now."""
        return self._lost

    async def run(self, function: Callable[[*Args], R], *args: *Args, timeout_s: float) -> R:
        """Return what ``function(*args)`` returns, called in a thread with the caller's context variables.

        ``timeout_s`` seconds cover the wait for a place and the call. Raises what the function raises, or
        ``CallAbandoned``. A cancelled caller leaves at once; its call keeps its place until it returns or its time is up.
        """
        if self._closed:
            raise CallAbandoned("the executor is closed")
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(ends_at):
                await self._places.acquire()
        except TimeoutError:
            raise CallAbandoned(f"no thread was free within {timeout_s:g} s", timeout_s=timeout_s) from None
        call = self._start(lambda: function(*args), loop)
        call.timer = loop.call_at(ends_at, self._abandon, call, timeout_s)
        result: R = await call.outcome
        return result

    def close(self) -> None:
        """Let resting threads end; those in a call end after it. Calls from now on are refused."""
        self._closed = True
        for _ in range(self._resting):
            self._calls.put(None)
        self._resting = 0

    # --- on the event loop -----------------------------------------------------------------------------------

    def _start(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> _Call:
        call = _Call(function, contextvars.copy_context(), loop, loop.create_future())
        # An outcome that nobody awaits any more (its caller was cancelled) is not worth a warning.
        call.outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._running += 1
        if self._resting:
            self._resting -= 1
        else:
            threading.Thread(target=self._work, name=f"{self._name}-call", daemon=True).start()
        self._calls.put(call)
        return call

    def _abandon(self, call: _Call, timeout_s: float) -> None:
        if call.returned:
            return
        call.lost = True
        self._lost += 1
        self._free_place()
        _log.error("a blocking call did not return; its thread is lost", extra={"lost": self._lost})
        if not call.outcome.done():
            call.outcome.set_exception(
                CallAbandoned(f"no answer within {timeout_s:g} s", timeout_s=timeout_s)
            )
        if self._lost >= self._lost_max and not self._exhausted:
            self._exhausted = True
            self._on_exhausted()

    def _finish(self, call: _Call, result: Any, error: BaseException | None) -> None:
        call.returned = True
        if call.timer is not None:
            call.timer.cancel()
        if call.lost:
            self._lost -= 1
        else:
            self._free_place()
        if self._closed:
            self._calls.put(None)
        else:
            self._resting += 1
        if call.outcome.done():
            return
        if error is None:
            call.outcome.set_result(result)
        else:
            call.outcome.set_exception(error)

    def _free_place(self) -> None:
        self._running -= 1
        self._places.release()

    # --- in a thread -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            result, error = None, None
            try:
                result = call.context.run(call.function)
            except (
                BaseException
            ) as raised:  # whatever host code raises is its caller's to see, SystemExit too
                error = _as_raisable(raised)
            # The loop is closed when the process leaves without this thread; then nobody waits.
            with suppress(RuntimeError):
                call.loop.call_soon_threadsafe(self._finish, call, result, error)


def _as_raisable(error: BaseException) -> BaseException:
    """Return what a future can hold and an event loop survives: ``StopIteration``, ``SystemExit`` and their like wrapped."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"blocking call raised {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped
