"""A closed loop: each client asks again as soon as it was answered, for so many seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from benchmarks.harness.quantiles import quantile


@dataclass(frozen=True, slots=True)
class Load:
    """What a block of load came to: how much was done within its time, and how long each took, in seconds."""

    seconds: float
    in_time: int
    taken_s: Sequence[float]

    @property
    def per_s(self) -> float:
        """What was done in a second."""
        return self.in_time / self.seconds

    def quantile_ms(self, share: float) -> float:
        """Return how long the quickest ``share`` of all took at most, in milliseconds."""
        return quantile(self.taken_s, share) * 1e3


async def closed_loop(clients: Sequence[Callable[[], Awaitable[None]]], seconds: float) -> Load:
    """Call every client again and again for ``seconds``, let what is under way end, and return what it came to.

    What ends after its time counts for how long it took, not for how much was done.
    """
    taken: list[float] = []
    in_time = 0
    began = time.perf_counter()
    end = began + seconds

    async def go_on(act: Callable[[], Awaitable[None]]) -> None:
        nonlocal in_time
        now = time.perf_counter()
        while now < end:
            await act()
            after = time.perf_counter()
            taken.append(after - now)
            in_time += after <= end
            now = after

    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(go_on(client))
    return Load(seconds, in_time, taken)
