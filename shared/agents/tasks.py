"""Work that a turn's body runs beside itself: forked under a tag, joined before the reply is recorded (TRN-20, TRN-139)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, Final

from shared.domain.bounds import check_identity
from shared.domain.errors import Conflict

#: How long cancelled tasks may clean up before the turn goes on without them.
CANCEL_TASKS_S: Final = 5.0


class TurnTasks:
    """The tasks of one turn. All methods belong to its event loop.

    A tag names one task of the turn (1 to 256 printable ASCII characters). A task may fork others; joining waits for
    those too. A task that failed is told once: by the first :meth:`join` that meets it.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._results: dict[str, Any] = {}
        self._used: set[str] = set()
        self._closed = False

    @property
    def results(self) -> Mapping[str, Any]:
        """What joined tasks returned, by tag."""
        return dict(self._results)

    @property
    def pending(self) -> Collection[str]:
        """Tags of tasks that were not joined yet."""
        return tuple(self._tasks)

    def fork(self, tag: str, work: Coroutine[Any, Any, Any]) -> None:
        """Start a task. Raises ``Conflict`` for a tag that the turn has used, and once the turn's body is over."""
        try:
            check_identity(tag, field="task.tag")
            if self._closed:
                raise Conflict("the turn is over: nothing can be forked any more", tag=tag)
            if tag in self._used:
                raise Conflict(f"the turn has a task {tag!r} already", tag=tag)
        except BaseException:
            work.close()
            raise
        self._used.add(tag)
        self._tasks[tag] = asyncio.create_task(work, name=f"turn-task:{tag}")

    async def join(self, *tags: str) -> Mapping[str, Any]:
        """Wait for these tasks, or for all there are and those that they fork; return the results by tag.

        A tag that nobody forked is left out. Raises what a task raised: of several in an ``ExceptionGroup``.
        """
        while waiting := [tag for tag in self._tasks if not tags or tag in tags]:
            await asyncio.wait([self._tasks[tag] for tag in waiting])
            self._take(waiting)
        return {tag: self._results[tag] for tag in (tags or self._results) if tag in self._results}

    async def cancel(self) -> None:
        """Cancel what still runs and let it clean up; nothing can be forked from now on."""
        self._closed = True
        running = [task for task in self._tasks.values() if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCEL_TASKS_S)
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.exception()  # told by nobody any more: the turn has a cause of its own
        self._tasks.clear()

    def _take(self, tags: Collection[str]) -> None:
        failures: list[BaseException] = []
        for tag in tags:
            task = self._tasks.pop(tag)
            try:
                self._results[tag] = task.result()
            except BaseException as error:  # a cancelled task is told like a failed one
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise BaseExceptionGroup("tasks of the turn failed", failures)
