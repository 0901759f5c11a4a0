"""What keeps a background task from starting, and a task that nobody knows."""

from __future__ import annotations

from shared.domain.errors.families import Conflict, Exhausted, Refused


class TaskConflict(Conflict):
    """The task's id was started with other instructions or another mode (TSK-12)."""

    code = "task.conflict"
    title = "Task was started with other content"


class TaskNested(Refused):
    """The session is itself a task's: a task starts no tasks (TSK-03)."""

    code = "task.nested"
    title = "A task starts no tasks"


class TasksFull(Exhausted):
    """The session runs as many tasks at once as it may; ``bound`` names the number (TSK-04)."""

    code = "task.limit"
    title = "Too many running tasks"


class TaskMissing(Refused):
    """No such task of this session and owner (a string that is no id reads the same, TSK-47)."""

    code = "task.missing"
    title = "Task not found"


class TaskLate(Exhausted):
    """A task's deadline came before its turn was done: it ends interrupted (TSK-25)."""

    code = "task.deadline"
    title = "Task came too late"
