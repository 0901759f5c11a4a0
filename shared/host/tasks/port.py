"""The ports of background tasks in a host: who starts and follows them, who runs them, and the host's code that they run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shared.domain.ids import RunId, SessionId, TurnId
from shared.host.endings import TurnOutcome
from shared.host.port import SessionAddress, TurnWriter
from shared.host.tasks.deadlines import Deadline
from shared.tasks.port import CancelledTask, StartedTask, TaskMode, TaskView


@dataclass(frozen=True, slots=True)
class HandedTask:
    """A task that is stored and waits to be run: whose it is, and its turn."""

    parent: SessionAddress
    task_id: SessionId
    turn_id: TurnId

    @property
    def child(self) -> SessionAddress:
        """The session that the task runs in."""
        return SessionAddress(self.task_id, self.parent.owner)


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What a reconcile did: tasks handed to the runner, and those whose result reached the parent's inbox just now.

    The caller drains the parent when something was delivered (TSK-42).
    """

    handed: Sequence[SessionId]
    delivered: Sequence[SessionId]


#: Runs one task to its end within a deadline: claim, turn, result, delivery, the parent's reaction.
TaskWork = Callable[[Deadline], Awaitable[None]]


class TaskRunner(Protocol):
    """Runs the work of tasks that are stored already, somewhere (TSK-06)."""

    def run(self, task: HandedTask, work: TaskWork) -> None:
        """Take a task over and return at once; what becomes of the work is not its caller's to know.

        A runner in this process calls ``work`` once with the runner's deadline; one that hands tasks to workers lets
        them find the task's turn and never calls it. Nothing is lost with a runner: what it did not do the sweep or a
        ``reconcile`` does. Raises nothing; a runner that closes takes nothing any more.
        """
        ...


class TaskExecutor(Protocol):
    """The host's code that a task's turn, and the parent's reaction to its result, run (TSK-17, TSK-20).

    Both get the writer of an open turn, do its work and return what it came to; the caller ends the turn. Either is
    cancelled when its deadline cuts it, and what it raises ends its turn as failed. A reaction that records its answer
    (``turn.reply``) before it returns is never run again for the same notices.
    """

    async def turn(self, writer: TurnWriter) -> TurnOutcome:
        """Run a task's turn; the outcome's reply is what the parent is told."""
        ...

    async def react(self, writer: TurnWriter) -> TurnOutcome:
        """Run an inbox turn of a parent: its message is the notices that it claimed."""
        ...


class Tasks(Protocol):
    """Background tasks of the sessions of a host (TSK-02, TSK-39 to 42).

    A session of another owner reads as missing. All may raise a store's error.
    """

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
        """Store a task of this session and hand it to the runner; a fork sees the conversation, a spawn nothing.

        The same ``task_id`` again answers the first start. ``meta`` goes with the task: its turn and the parent's
        reactions are begun with it (TSK-14). ``run_id`` names the run that starts it, ``deadline_in_s`` (at most a
        week) counts from the start by the store's clock. Raises ``TaskConflict``, ``TaskNested``, ``TasksFull``,
        ``QueueFull``, ``SessionExists``, ``SessionMissing`` or ``InvalidInput``; nothing is stored then.
        """
        ...

    async def status(self, parent: SessionAddress, task_id: str) -> TaskView:
        """Read where a task stands. Raises ``TaskMissing``, also for a string that is no id."""
        ...

    async def list(
        self, parent: SessionAddress, *, limit: int = 20, before: str | None = None
    ) -> Sequence[TaskView]:
        """Read a session's tasks, the newest first; ``before`` is the last id of the page before."""
        ...

    async def cancel(self, parent: SessionAddress, task_id: str) -> CancelledTask:
        """Stop a task that waits or runs: its turn is cancelled and nothing is delivered. Raises ``TaskMissing``."""
        ...

    async def reconcile(self, parent: SessionAddress) -> Reconciled:
        """Run the tasks that a lost runner never ran, and deliver the results that it never delivered (TSK-41)."""
        ...
