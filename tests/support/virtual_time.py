"""An event loop whose clock jumps over idle time: tests of leases and beats take no real time and never race it."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec

P = ParamSpec("P")

#: Real seconds to wait for a thread or a socket when no timer is set: after that nothing will ever happen.
STUCK_S = 5.0
_START = datetime(2030, 1, 1, tzinfo=UTC)


class _JumpingSelector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is not None:
            self.now += timeout
            return []
        ready = super().select(STUCK_S)
        if not ready:
            raise RuntimeError("every task waits for something that cannot happen")
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its ``time()`` starts at 0 and moves to the next timer whenever nothing else is to do."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Return the virtual seconds since the loop began."""
        return self._clock.now


def loop_clock() -> datetime:
    """Return the running loop's time as a moment: a clock for the twins that moves with the timers."""
    return _START + timedelta(seconds=asyncio.get_running_loop().time())


def virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on a :class:`VirtualTimeLoop` of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
