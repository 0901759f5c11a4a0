"""The runners of background tasks: in this process, or by whoever serves the queue that their turns wait in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from shared.domain.errors import TurnkeeperError, code_of, describe_error
from shared.domain.ids import TurnId
from shared.host.activity import BackgroundTaskActivity
from shared.host.tasks.deadlines import CLOSING_RESERVE_MS, Deadline, check_budget, deadline_after
from shared.host.tasks.port import HandedTask, TaskWork

_logger: Final = logging.getLogger(__name__)


class InProcessTaskRunner:
    """Runs tasks as asyncio tasks of this process; implements ``TaskRunner`` and counts what runs (TSK-07, 08).

    ``budget_s`` is how long the work of one task may take from its hand-over (None: as long as it does),
    ``closing_reserve_ms`` what is kept of it for closing, at most half. Use it as ``async with``, inside whatever its work
    writes to: leaving cancels what still runs and waits for it, while the store is still open. A task that never opened
    waits in the store for the next :meth:`~shared.host.tasks.port.Tasks.reconcile`. Raises ``ConfigError`` for a bound.
    """

    def __init__(
        self, *, budget_s: float | None = None, closing_reserve_ms: int = CLOSING_RESERVE_MS
    ) -> None:
        check_budget(budget_s, closing_reserve_ms)
        self._budget_s = budget_s
        self._reserve_ms = closing_reserve_ms
        self._running: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def running(self) -> int:
        """How many tasks run now: this is the port ``BackgroundTaskActivity``."""
        return len(self._running)

    @property
    def activity(self) -> BackgroundTaskActivity:
        """What counts this runner's work, for :func:`shared.host.activity.process_activity`."""
        return self

    def run(self, task: HandedTask, work: TaskWork) -> None:
        """See the port."""
        if self._is_closed:
            _logger.info("a closed runner takes no task: it waits for a reconcile", extra=_about(task))
            return
        running = asyncio.create_task(self._run(task, work), name=f"background-task:{task.task_id}")
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def aclose(self) -> None:
        """Take nothing any more, cancel what runs, and wait until it has ended its turns."""
        self._is_closed = True
        running = list(self._running)
        for one in running:
            one.cancel()
        if running:
            await asyncio.wait(running)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _run(self, task: HandedTask, work: TaskWork) -> None:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        deadline = self._deadline(started_at)
        try:
            async with asyncio.timeout_at(deadline.at if deadline.is_finite else None) as limit:
                await work(deadline)
        except TimeoutError as error:
            if not limit.expired():
                _log_failure(task, error)
                return
            ran_ms = round((loop.time() - started_at) * 1_000)
            _logger.warning(
                "the work of a task was cut by its deadline", extra=_about(task) | {"ran_ms": ran_ms}
            )
        except (Exception, BaseExceptionGroup) as error:
            _log_failure(task, error)

    def _deadline(self, now: float) -> Deadline:
        return deadline_after(self._budget_s, now=now, closing_reserve_ms=self._reserve_ms)


class QueuedTaskRunner:
    """Leaves tasks to the workers that serve the queue: a task's turn is a row of it, and this only rings (TSK-07, 09).

    ``ring`` is given the turns to look at; a ring that is lost costs a sweep's beat.
    """

    def __init__(self, ring: Callable[[Sequence[TurnId]], None]) -> None:
        self._ring = ring

    def run(self, task: HandedTask, work: TaskWork) -> None:
        """See the port."""
        self._ring([task.turn_id])


def _log_failure(task: HandedTask, error: BaseException) -> None:
    about = _about(task) | {"code": code_of(error) if isinstance(error, Exception) else "turn.defect"}
    # A typed error is trouble that somebody will look at; anything else is a defect, whose place matters.
    trace = None if isinstance(error, TurnkeeperError) else error
    _logger.warning("the work of a task failed: %s", describe_error(error), extra=about, exc_info=trace)


def _about(task: HandedTask) -> dict[str, object]:
    return {"task": task.task_id, "parent": task.parent.id}
