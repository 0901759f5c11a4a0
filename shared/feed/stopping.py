"""Stopping tasks for certain."""

from __future__ import annotations

import asyncio
from typing import Any, Final

AGAIN_S: Final = 0.5


async def stop_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they are over, whatever they raise.

    Asked again and again: a cancellation that meets ``asyncio.wait_for`` just as its future is done is lost in Python 3.11
    (https://github.com/python/cpython/issues/86296), and the Redis client writes through it where it bounds a wait itself.
    """
    left = {task for task in tasks if task is not None and not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
    await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
