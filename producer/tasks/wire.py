"""Background tasks on the wire: strict models of requests, and of answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, Literal
from uuid import UUID

from pydantic import AfterValidator, Field, StringConstraints

from producer.wire import DURATION_MAX_S, Answer, Identity, Meta, NonEmpty, Request
from shared.domain.bounds import check_text
from shared.domain.errors import InvalidInput
from shared.host.tasks.port import Reconciled
from shared.tasks.port import (
    DEADLINE_MAX_S,
    INSTRUCTIONS_MAX_BYTES,
    LIST_MAX_TASKS,
    TASK_ID_MAX_CHARS,
    CancelledTask,
    StartedTask,
    TaskMode,
    TaskView,
    is_task_id,
)

TASK_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$"
FINISHED: Final = frozenset({"completed", "partial", "failed", "interrupted", "cancelled"})


def _instructions(value: str) -> str:
    checked = check_text(value, field="/instructions", max_bytes=INSTRUCTIONS_MAX_BYTES)
    if not checked.strip():
        raise InvalidInput("instructions are blank", field="/instructions", bound="not blank")
    return checked


TaskId = Annotated[
    str, StringConstraints(min_length=1, max_length=TASK_ID_MAX_CHARS, pattern=TASK_ID_PATTERN)
]


class StartRequest(Request):
    """A background task to start."""

    instructions: Annotated[NonEmpty, AfterValidator(_instructions)] = Field(
        description="All that the task is told.", json_schema_extra={"pattern": r"\S"}
    )
    mode: Literal["fork", "spawn"] = Field(
        description="A fork sees the conversation up to its last closed turn, a spawn nothing of it."
    )
    key: Identity | None = Field(
        None, description="As the Idempotency-Key header; names the task in its session."
    )
    agent: Identity | None = Field(None, description="An agent of the app; the first one by default.")
    meta: Meta | None = Field(
        None, description="Goes with the task's turn and the turn that answers its result."
    )
    deadline_in_s: Annotated[float, Field(gt=0, le=DEADLINE_MAX_S, allow_inf_nan=False)] | None = Field(
        None, description="Seconds from now; what is not done shortly before ends `interrupted`."
    )
    max_duration_s: Annotated[float, Field(gt=0, le=DURATION_MAX_S, allow_inf_nan=False)] | None = Field(
        None, description="Seconds from its first opening, over all attempts; at most the agent's own."
    )


class TasksQuery(Request):
    """A page of tasks."""

    limit: Annotated[int, Field(strict=False, ge=1, le=LIST_MAX_TASKS)] = 20
    cursor: TaskId | None = Field(None, description="`next` of the page before.")


class TaskLinks(Answer):
    """Where a task can be looked at and cancelled, and its own session and turn be followed."""

    task: str
    cancel: str
    session: str
    events: str


class StartAnswer(Answer):
    """The receipt of a start. ``after`` is the cursor of the session from which its answer can be followed."""

    task_id: str
    session_id: str
    turn_id: UUID
    after: int
    duplicate: bool
    links: TaskLinks


class TaskAnswer(Answer):
    """Where a task stands. ``owed``: it has ended and its session was not told yet."""

    task_id: str
    session_id: str
    turn_id: UUID | None
    mode: TaskMode
    instructions: str
    status: str
    finished: bool
    text: str | None = Field(description="What it returned, whole.")
    code: str | None
    owed: bool
    started_at: datetime
    ended_at: datetime | None
    deadline: datetime | None
    links: TaskLinks


class TasksAnswer(Answer):
    """A page of tasks, the newest first."""

    tasks: list[TaskAnswer]
    next: str | None = Field(description="`cursor` of the next page; null on the last.")


class TaskCancelAnswer(Answer):
    """Whether a cancel took effect, and how the task stands after it."""

    cancelled: bool
    status: str


class ReconcileAnswer(Answer):
    """What a reconcile did: tasks that were woken, and those whose result was delivered by it."""

    woken: list[str]
    delivered: list[str]


def links_of_task(session_id: str, task_id: str) -> TaskLinks:
    """Return a task's links: paths on this server."""
    path = f"/v1/sessions/{session_id}/tasks/{task_id}"
    child = f"/v1/sessions/{task_id}"
    return TaskLinks(task=path, cancel=f"{path}/cancel", session=child, events=f"{child}/events")


def start_answer(session_id: str, started: StartedTask) -> StartAnswer:
    """Return a receipt as it goes over the wire."""
    return StartAnswer(
        task_id=started.task_id,
        session_id=session_id,
        turn_id=started.turn_id,
        after=started.seq,
        duplicate=started.duplicate,
        links=links_of_task(session_id, started.task_id),
    )


def task_answer(view: TaskView) -> TaskAnswer:
    """Return a task as it goes over the wire; the stored failure text stays here, its code goes."""
    return TaskAnswer(
        task_id=view.task_id,
        session_id=view.parent,
        turn_id=view.turn_id,
        mode=view.mode,
        instructions=view.instructions,
        status=view.status,
        finished=view.status in FINISHED,
        text=view.text,
        code=view.code,
        owed=view.owed,
        started_at=view.started_at,
        ended_at=view.ended_at,
        deadline=view.deadline,
        links=links_of_task(view.parent, view.task_id),
    )


def tasks_answer(views: Sequence[TaskView], limit: int) -> TasksAnswer:
    """Return a page; a full one names where the next begins."""
    last = views[-1].task_id if len(views) == limit else None
    return TasksAnswer(tasks=[task_answer(view) for view in views], next=last)


def task_cancel_answer(done: CancelledTask) -> TaskCancelAnswer:
    """Return what a cancel did."""
    return TaskCancelAnswer(cancelled=done.took_effect, status=done.status)


def reconcile_answer(done: Reconciled) -> ReconcileAnswer:
    """Return what a reconcile did."""
    return ReconcileAnswer(woken=list(done.handed), delivered=list(done.delivered))


def read_task_id(text: str) -> str:
    """Return a task id of a path as it is; the store answers one that can be none like an unknown one (TSK-47)."""
    return text if is_task_id(text) else ""
