"""The background tasks of a host's sessions, over a store of tasks and a runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from shared.domain.errors import SessionMissing, StoreUnavailable
from shared.domain.failpoints import Failpoints
from shared.domain.ids import RunId, SessionId
from shared.domain.retrying import retried
from shared.host.port import SessionAddress
from shared.host.sessions import HostSessions
from shared.host.tasks.deadlines import CLOSING_RESERVE_MS, UNBOUNDED, check_budget
from shared.host.tasks.delivering import deliver_owed
from shared.host.tasks.port import HandedTask, Reconciled, TaskExecutor, TaskRunner
from shared.host.tasks.reconciling import waiting_tasks
from shared.host.tasks.work import InProcessWork
from shared.tasks.port import (
    LIST_MAX_TASKS,
    CancelledTask,
    NewTask,
    StartedTask,
    TaskLimits,
    TaskMode,
    TaskStore,
    TaskView,
    new_task,
)
from shared.turns.queue import OnWorkerLoss

#: Tries of a start whose answer is lost; each finds what an earlier one stored.
START_TRIES: Final = 3


class HostTasks:
    """Implements :class:`shared.host.tasks.port.Tasks`. Belongs to one event loop, as its sessions do.

    ``runner`` gets what is started; a runner in this process runs it with ``executor`` over ``sessions``. ``limits`` are
    what a start is judged by. ``on_worker_loss`` says what becomes of a task whose runner died while it ran: with a runner in this process
    it ends interrupted, workers go on under ``continue``. ``closing_reserve_ms`` is kept of a task's own deadline for closing,
    at most half of it.
    """

    def __init__(
        self,
        sessions: HostSessions,
        store: TaskStore,
        runner: TaskRunner,
        executor: TaskExecutor,
        *,
        limits: TaskLimits | None = None,
        on_worker_loss: OnWorkerLoss = "interrupt",
        closing_reserve_ms: int = CLOSING_RESERVE_MS,
        failpoints: Failpoints | None = None,
    ) -> None:
        check_budget(None, closing_reserve_ms)
        self._sessions = sessions
        self._store = store
        self._runner = runner
        self._on_worker_loss = on_worker_loss
        self._limits = limits if limits is not None else TaskLimits()
        self._failpoints = failpoints if failpoints is not None else Failpoints()
        self._work = InProcessWork(
            sessions=sessions,
            store=store,
            executor=executor,
            failpoints=self._failpoints,
            closing_reserve_ms=closing_reserve_ms,
        )

    async def start(
        self,
        parent: SessionAddress,
        *,
        instructions: str,
        mode: TaskMode,
        task_id: SessionId | None = None,
        meta: Mapping[str, Any] | None = None,
        run_id: RunId | None = None,
        agent: str = "",
        agent_revision: str = "1",
        deadline_in_s: float | None = None,
    ) -> StartedTask:
        """See the port."""
        task = new_task(
            parent.id,
            parent.owner,
            instructions,
            mode,
            task_id=task_id,
            meta=meta,
            started_by=run_id,
            agent=agent,
            agent_revision=agent_revision,
            on_worker_loss=self._on_worker_loss,
            deadline_in_s=deadline_in_s,
        )
        started = await start_known(self._store, task, self._limits)
        await self._failpoints.hit("task.unrung")
        self._hand(HandedTask(parent, started.task_id, started.turn_id))
        return started

    async def status(self, parent: SessionAddress, task_id: str) -> TaskView:
        """See the port."""
        return await self._store.status(parent.id, task_id, parent.owner)

    async def list(
        self, parent: SessionAddress, *, limit: int = 20, before: str | None = None
    ) -> Sequence[TaskView]:
        """See the port."""
        return await self._store.list(parent.id, parent.owner, limit=limit, before=before)

    async def cancel(self, parent: SessionAddress, task_id: str) -> CancelledTask:
        """See the port. Work of this process stops at once, that of another once it looks."""
        cancelled = await self._store.cancel(parent.id, task_id, parent.owner)
        writer = self._work.writers.get(SessionId(task_id))
        if cancelled.took_effect and writer is not None:
            writer.lose("cancelled")
        return cancelled

    async def reconcile(self, parent: SessionAddress) -> Reconciled:
        """See the port. A task's turn that nobody holds any more is closed first, so that it is owed (TSK-26)."""
        views = await self._store.list(parent.id, parent.owner, limit=LIST_MAX_TASKS)
        for view in views:
            if view.status == "running" and view.task_id not in self._work.writers:
                await self._close_dead(SessionAddress(view.task_id, parent.owner))
        delivered = await deliver_owed(self._store, parent)
        waiting = await waiting_tasks(self._store, parent)
        for task in waiting:
            self._hand(task)
        return Reconciled([task.task_id for task in waiting], [one.task_id for one in delivered])

    async def react(self, parent: SessionAddress, *, meta: Mapping[str, Any] | None = None) -> None:
        """Let the executor answer what waits in a session's inbox: what the caller of a reconcile does (TSK-42)."""
        await self._work.react(parent, UNBOUNDED, meta)

    async def _close_dead(self, child: SessionAddress) -> None:
        with suppress(SessionMissing):  # removed since it was read
            await self._sessions.reap(child)

    def _hand(self, task: HandedTask) -> None:
        self._runner.run(task, partial(self._work.run, task))


async def start_known(store: TaskStore, task: NewTask, limits: TaskLimits) -> StartedTask:
    """Start a task, asked again with the same ids while the answer is lost. Raises what the store says last."""
    return await retried(
        partial(store.start, task, limits),
        when=StoreUnavailable,
        tries=START_TRIES,
        pause_max_s=1.0,
    )
