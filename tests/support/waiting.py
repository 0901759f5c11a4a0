"""Waiting for a condition that nothing announces: looked at again and again, for a bounded time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TypeVar

T = TypeVar("T")


def wait_until(look: Callable[[], T], *, within_s: float = 15.0, what: str = "condition") -> T:
    """Return the first true answer of ``look``; fail after ``within_s`` seconds."""
    pause = threading.Event()
    deadline = monotonic() + within_s
    while True:
        answer = look()
        if answer:
            return answer
        if monotonic() >= deadline:
            raise AssertionError(f"{what} did not come true within {within_s:g} s; last answer {answer!r}")
        pause.wait(0.02)


async def await_until(look: Callable[[], T], *, within_s: float = 10.0, what: str = "condition") -> T:
    """Return the first true answer of ``look``, which the event loop goes on between; fail after ``within_s`` seconds."""
    pause = asyncio.Event()
    deadline = monotonic() + within_s
    while not (answer := look()):
        if monotonic() >= deadline:
            raise AssertionError(f"{what} did not come true within {within_s:g} s; last answer {answer!r}")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await pause.wait()
    return answer
