"""Background tasks of a session: start, list, look at, cancel, reconcile (API-08)."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response

from producer.doors import SECURITY, Keys, OwnedRoute, Owner, Parts
from producer.tasks.doing import cancel_task, reconcile_tasks, start_task
from producer.tasks.wire import (
    ReconcileAnswer,
    StartAnswer,
    StartRequest,
    TaskAnswer,
    TaskCancelAnswer,
    TasksAnswer,
    TasksQuery,
    read_task_id,
    reconcile_answer,
    start_answer,
    task_answer,
    task_cancel_answer,
    tasks_answer,
)
from producer.wire import NoBody, read_key, read_session_id

router: Final = APIRouter(
    prefix="/v1/sessions/{session_id}/tasks",
    tags=["tasks"],
    route_class=OwnedRoute,
    dependencies=list(SECURITY),
)

_BEFORE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": StartAnswer, "description": "Started before under the same key."}
}


@router.post("", status_code=202, responses=_BEFORE)
async def start(
    parts: Parts, owner: Owner, response: Response, keys: Keys, session_id: str, body: StartRequest
) -> StartAnswer:
    """Start a background task: 202 once it is durable. Its result comes to the session's inbox, and a turn answers it.

    The same key with the same instructions and mode answers the first start (200); with others 409 `task.conflict`.
    """
    session = read_session_id(session_id)
    started = await start_task(parts, owner, session, body, read_key(keys, body.key))
    answer = start_answer(session, started)
    response.headers["Location"] = answer.links.task
    if started.duplicate:
        response.status_code = 200
    return answer


@router.get("")
async def list_tasks(
    parts: Parts, owner: Owner, session_id: str, query: Annotated[TasksQuery, Query()]
) -> TasksAnswer:
    """Read the session's tasks, the newest first."""
    session = read_session_id(session_id)
    views = await parts.tasks.list(session, owner, limit=query.limit, before=query.cursor)
    return tasks_answer(views, query.limit)


@router.post("/reconcile")
async def reconcile(
    parts: Parts, owner: Owner, session_id: str, body: NoBody | None = None
) -> ReconcileAnswer:
    """Wake the session's tasks that wait and deliver the results that it is owed: what the sweep does, at once."""
    return reconcile_answer(await reconcile_tasks(parts, owner, read_session_id(session_id)))


@router.get("/{task_id}")
async def read_task(parts: Parts, owner: Owner, session_id: str, task_id: str) -> TaskAnswer:
    """Read where a task stands."""
    view = await parts.tasks.status(read_session_id(session_id), read_task_id(task_id), owner)
    return task_answer(view)


@router.post("/{task_id}/cancel")
async def cancel(
    parts: Parts, owner: Owner, session_id: str, task_id: str, body: NoBody | None = None
) -> TaskCancelAnswer:
    """Stop a task that waits or runs, durably; nothing is delivered then. Tells whether that took effect."""
    done = await cancel_task(parts, owner, read_session_id(session_id), read_task_id(task_id))
    return task_cancel_answer(done)
