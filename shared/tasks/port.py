"""The store of background tasks: its values and its port."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from shared.domain.bounds import check_json, check_text
from shared.domain.errors import InvalidInput
from shared.domain.ids import (
    OwnerId,
    RunId,
    SessionId,
    TurnId,
    WorkerId,
    new_run_id,
    new_session_id,
    new_turn_id,
)
from shared.turns.queue import Claim, OnWorkerLoss, Outcome

TaskMode = Literal["fork", "spawn"]
TaskStatus = Literal["pending", "running", "completed", "partial", "failed", "interrupted", "cancelled"]

#: How many tasks a session may run at once: the default, and the most a host may allow (TSK-04).
MAX_RUNNING: Final = 2
MAX_RUNNING_BOUND: Final = 20
#: A task's id is its child's, and ``task:<id>`` its notice's: both fit an identity.
TASK_ID_MAX_CHARS: Final = 200
INSTRUCTIONS_MAX_BYTES: Final = 1024 * 1024
LIST_MAX_TASKS: Final = 100
#: With a budget of its own a task gets no more than this, in seconds.
DEADLINE_MAX_S: Final = 7 * 24 * 3600.0

_TASK_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")


def new_task_id() -> SessionId:
    """Return a fresh id of a task, which is its child session's."""
    return new_session_id()


def is_task_id(text: str) -> bool:
    """Say whether a string can be a task's id at all; no other one names a task (TSK-47)."""
    return len(text) <= TASK_ID_MAX_CHARS and _TASK_ID.fullmatch(text) is not None


def item_id(task_id: str) -> str:
    """Return the id of the inbox item that a task's result becomes (TSK-19)."""
    return f"task:{task_id}"


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to start. Its ids are minted before the first try and kept over retries (:func:`new_task`).

    ``deadline_in_s`` counts from the start, by the store's clock; ``started_by`` is the run that starts it, if one does.
    The agent and its revision are the child's; ``meta`` goes with the task to the child's turn and to the parent's
    reactions.
    """

    task_id: SessionId
    turn_id: TurnId
    run_id: RunId
    parent: SessionId
    owner: OwnerId
    instructions: str
    mode: TaskMode
    meta: Mapping[str, Any] | None = None
    started_by: RunId | None = None
    agent: str = ""
    agent_revision: str = "1"
    on_worker_loss: OnWorkerLoss = "continue"
    deadline_in_s: float | None = None
    max_duration_s: float | None = None


def new_task(
    parent: SessionId,
    owner: OwnerId,
    instructions: str,
    mode: TaskMode,
    *,
    task_id: SessionId | None = None,
    **rest: Any,
) -> NewTask:
    """Return a checked task with fresh ids; ``rest`` are other fields of :class:`NewTask`.

    Raises ``InvalidInput`` for an id, instructions, a mode, a meta or a deadline that cannot be stored.
    """
    child = task_id if task_id is not None else new_task_id()
    task = NewTask(child, new_turn_id(), new_run_id(), parent, owner, instructions, mode, **rest)
    check_task(task)
    return task


def check_task(task: NewTask) -> None:
    """Raise ``InvalidInput`` (``InputTooLarge`` for its size) for a task that cannot be stored."""
    if not is_task_id(task.task_id):
        raise InvalidInput(
            "a task's id is letters, digits and _ . : - and begins with one of the first two",
            field="task_id",
            bound=f"1..{TASK_ID_MAX_CHARS} of A-Z a-z 0-9 _ . : -",
        )
    check_text(task.instructions, field="instructions", max_bytes=INSTRUCTIONS_MAX_BYTES)
    if not task.instructions.strip():
        raise InvalidInput("instructions are empty", field="instructions", bound="not blank")
    if task.mode not in ("fork", "spawn"):
        raise InvalidInput("a task is a fork or a spawn", field="mode", bound="fork, spawn")
    if task.meta is not None:
        check_json(dict(task.meta), field="meta")
    if task.deadline_in_s is not None and not 0 < task.deadline_in_s <= DEADLINE_MAX_S:
        raise InvalidInput(
            "a task's deadline is in the future, and not too far",
            field="deadline_in_s",
            bound=f"> 0, <= {DEADLINE_MAX_S:g}",
        )


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Bounds that a start is judged by; an owner's own row wins over ``queued_per_owner``.

    ``is_full``: the waiting turns of all owners were found to have reached their bound.
    """

    max_running: int = MAX_RUNNING
    queued_per_owner: int = 1_000
    is_full: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.max_running <= MAX_RUNNING_BOUND:
            raise InvalidInput(
                "a session runs some tasks at once, and not too many",
                field="max_running",
                bound=f"1..{MAX_RUNNING_BOUND}",
            )


@dataclass(frozen=True, slots=True)
class StartedTask:
    """The answer of a start. ``duplicate``: an earlier call started it; a retry of the same ``turn_id`` is none.

    ``seq`` is the seq of the parent's ``task.started``. The turn is the one to ring for, also of a duplicate: a wake for
    one that has ended changes nothing.
    """

    task_id: SessionId
    turn_id: TurnId
    seq: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class CancelledTask:
    """The answer of a cancel. ``took_effect`` is False when the task had ended, or its result was stored.

    ``holder`` is the process that ran its turn: it is told by a hint, or within a second by its watch.
    """

    took_effect: bool
    status: TaskStatus
    turn_id: TurnId | None
    holder: WorkerId | None
    #: The seq of the child's log after it; 0 when the child is gone.
    after: int


@dataclass(frozen=True, slots=True)
class TaskView:
    """Where a task stands. ``text`` is the result's, whole; ``code`` and ``failure`` say why there is none, or not all.

    ``owed``: it has ended and its parent has not been told yet. ``turn_id`` is None once the child was removed.
    """

    task_id: SessionId
    parent: SessionId
    turn_id: TurnId | None
    mode: TaskMode
    instructions: str
    status: TaskStatus
    text: str | None
    code: str | None
    failure: str | None
    owed: bool
    started_at: datetime
    ended_at: datetime | None
    deadline: datetime | None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task ended, as its parent is told. ``text`` is its reply; without one ``code`` and ``failure`` say why."""

    status: TaskStatus
    text: str | None = None
    code: str | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Debt:
    """A result that a parent has not been told. ``version`` names what was read: a debt that changed is read again."""

    task_id: SessionId
    parent: SessionId
    owner: OwnerId
    result: TaskResult
    tries: int
    version: str


@dataclass(frozen=True, slots=True)
class DeliveredTask:
    """A result that became an inbox item of the parent; ``turn_id`` is the parent's turn to ring for, if one is ready."""

    task_id: SessionId
    parent: SessionId
    seq: int
    turn_id: TurnId | None


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A task's turn that the store ended because its deadline had passed; ``holder`` still ran it."""

    turn_id: TurnId
    session_id: SessionId
    outcome: Outcome
    holder: WorkerId | None
    after: int


class TaskStore(Protocol):
    """Starts, ends and delivers tasks in one transaction each (docs/core.md 3, 4, 6).

    All may raise ``StoreBusy`` (nothing stored) and ``StoreUnavailable`` (a write's outcome is unknown: repeat it with
    the same ids). A session of another owner reads as missing.
    """

    async def start(self, task: NewTask, limits: TaskLimits) -> StartedTask:
        """Store ``task.started`` in the parent, the child session and its turn, ready to be claimed, all or nothing.

        Judged under the parent's head in this order: the id (a repeat answers the first start, ``TaskConflict`` with
        other instructions or another mode), a parent that keeps whole turns, whose inbox could never tell the result
        (``HistoryModeConflict``), one that is itself a task's child (``TaskNested``), its unfinished tasks (``TasksFull``), the owner's and all waiting turns (``QueueFull``), an id that names another session, the
        parent itself included (``SessionExists``). Also raises ``SessionMissing``. A fork inherits the parent's history
        up to its last closed turn; a spawn inherits nothing. The host's admission hook judges the turn when it opens.
        """
        ...

    async def take(
        self, task_id: SessionId, owner: OwnerId, holder: WorkerId, *, lease_s: float | None
    ) -> Claim | None:
        """Claim exactly this task's turn if it is ready and due, whatever the caps; None when it is not to be had.

        For a runner in the host's own process. ``lease_s=None`` holds it without expiry, as ``TurnQueue.begin`` does.
        """
        ...

    async def cancel(self, parent: SessionId, task_id: str, owner: OwnerId) -> CancelledTask:
        """End a task that waits or runs: its turn is cancelled, ``task.cancelled`` is stored, nothing is owed.

        A stored ``task.result`` or reply wins: the turn ends by it and is owed. A repeat answers as the first did. Raises
        ``TaskMissing``.
        """
        ...

    async def status(self, parent: SessionId, task_id: str, owner: OwnerId) -> TaskView:
        """Read where a task stands. Raises ``TaskMissing``."""
        ...

    async def list(
        self, parent: SessionId, owner: OwnerId, *, limit: int = 20, before: str | None = None
    ) -> Sequence[TaskView]:
        """Read a session's tasks by id, the greatest first; ``before`` is the last id of the page before.

        Ids made here grow with time, so the newest come first. At most ``LIST_MAX_TASKS``. Raises ``SessionMissing``.
        """
        ...

    async def owed(self, *, limit: int = 50, parent: SessionId | None = None) -> Sequence[Debt]:
        """Read what is owed and due, the longest due first; of one parent, all that it is owed, due or not."""
        ...

    async def deliver(self, debt: Debt, *, wait: bool = True) -> DeliveredTask | None:
        """Change a debt into the parent's inbox item ``task:<id>``, beyond ``max_pending`` if need be.

        None when nothing was delivered: another delivered it, the parent was removed (the debt is dropped with it), or
        the debt is not what was read any more (it is owed still). Without ``wait`` a parent that is busy just now raises
        ``StoreBusy`` at once, as for a sweep that serves many.
        """
        ...

    async def put_off(self, debt: Debt, in_s: float) -> None:
        """Count a try to deliver that failed; the debt is due again after ``in_s`` seconds."""
        ...

    async def waiting(self, parent: SessionId, owner: OwnerId) -> Sequence[TurnId]:
        """Read the turns of a parent's tasks that wait for a worker, to ring for them again (TSK-41). At most 20."""
        ...

    async def end_late(self, *, limit: int = 50) -> Sequence[EndedTask]:
        """End open task turns whose deadline has passed: by a stored reply, else ``interrupted`` with ``task.deadline``.

        Skips a session that is busy just now: it is looked at again.
        """
        ...
