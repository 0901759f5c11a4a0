"""Waiting for background work on the live clock, with a bound (KIT-06)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from shared.conformance.check import Unmet

T = TypeVar("T")

#: How long a check waits for what goes on behind it.
WAIT_S: Final = 2.0
_LOOK_S: Final = 0.005


async def eventually(look: Callable[[], Awaitable[T]], promise: str) -> T:
    """Return the first true thing that ``look`` answers; raise ``Unmet`` with the promise after ``WAIT_S`` seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + WAIT_S
    while not (found := await look()):
        if loop.time() >= until:
            raise Unmet(f"{promise}: not within {WAIT_S:g} s")
        await asyncio.sleep(_LOOK_S)  # a poll's pause, inside the bound
    return found


async def happened(event: asyncio.Event, promise: str) -> None:
    """Wait for an event; raise ``Unmet`` with the promise after ``WAIT_S`` seconds."""
    try:
        async with asyncio.timeout(WAIT_S):
            await event.wait()
    except TimeoutError as error:
        raise Unmet(f"{promise}: not within {WAIT_S:g} s") from error
