"""Whose cancellation it is: one of this task, or one that foreign code raised by itself."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Say whether the running task was asked to stop.

    When it was not, a ``CancelledError`` is a failure of the code below: a task of its own was cancelled.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
