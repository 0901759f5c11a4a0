"""The store of background tasks on Postgres: one statement, one transaction, one round trip an operation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.database.pool import Database, Row
from shared.database.statements import load_statements
from shared.domain.canonical import first_tail
from shared.domain.errors import (
    QueueFull,
    SessionExists,
    SessionMissing,
    StoreBusy,
    StoreDefect,
    TaskConflict,
    TaskMissing,
    TaskNested,
    TasksFull,
)
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId
from shared.inbox.port import ATTEMPTS_MAX
from shared.tasks.notice import NOTICE_CHARS
from shared.tasks.port import (
    LIST_MAX_TASKS,
    CancelledTask,
    Debt,
    DeliveredTask,
    EndedTask,
    NewTask,
    StartedTask,
    TaskLimits,
    TaskResult,
    TaskView,
    check_task,
    is_task_id,
)
from shared.tasks.records import PAGE_BYTES, cancelled_draft, notice_delivery, start_params
from shared.tasks.states import TaskRecord, TaskTurn, state_of
from shared.turns.postgres_rows import claim_of
from shared.turns.queue import Claim

_SQL = load_statements(Path(__file__).with_name("queries.sql"))


class PostgresTaskStore:
    """Implements :class:`shared.tasks.port.TaskStore`."""

    def __init__(
        self,
        database: Database,
        *,
        attempts_max: int = 3,
        inbox_attempts: int = ATTEMPTS_MAX,
        notice_chars: int = NOTICE_CHARS,
        failpoints: Failpoints | None = None,
    ) -> None:
        self._db = database
        self._attempts_max = attempts_max
        self._inbox_attempts = inbox_attempts
        self._notice_chars = notice_chars
        self._failpoints = failpoints or Failpoints()

    async def start(self, task: NewTask, limits: TaskLimits) -> StartedTask:
        """See the port."""
        check_task(task)
        params = start_params(task) | {
            "tail": first_tail(task.task_id),
            "max_running": limits.max_running,
            "owner_max": limits.queued_per_owner,
            "is_full": limits.is_full,
        }
        await self._failpoints.hit("task.starting")
        [row] = await self._db.call("task.start", _SQL["start"], params, repeatable=True)
        started = _started(task, limits, row)
        await self._failpoints.hit("task.started")
        return started

    async def take(
        self, task_id: SessionId, owner: OwnerId, holder: WorkerId, *, lease_s: float | None
    ) -> Claim | None:
        """See the port."""
        params = {"task": task_id, "owner": owner, "worker": holder, "lease_s": lease_s}
        rows = await self._db.call("task.take", _SQL["take"], params | {"attempts_max": self._attempts_max})
        return claim_of(rows[0]) if rows else None

    async def cancel(self, parent: SessionId, task_id: str, owner: OwnerId) -> CancelledTask:
        """See the port."""
        if not is_task_id(task_id):
            raise TaskMissing("no such task", task=task_id)
        record = cancelled_draft(task_id)
        params = {"parent": parent, "task": task_id, "owner": owner}
        [row] = await self._db.call(
            "task.cancel",
            _SQL["cancel"],
            params | {"text": record.text, "digest": record.digest},
            repeatable=True,
        )
        if row["result"] == "missing":
            raise TaskMissing("no such task", task=task_id)
        took_effect = row["result"] == "cancelled"
        return CancelledTask(
            took_effect,
            "cancelled" if took_effect else (await self.status(parent, task_id, owner)).status,
            None if row["turn_id"] is None else TurnId(row["turn_id"]),
            None if row["holder"] is None else WorkerId(row["holder"]),
            row["after_seq"],
        )

    async def status(self, parent: SessionId, task_id: str, owner: OwnerId) -> TaskView:
        """See the port."""
        if not is_task_id(task_id):
            raise TaskMissing("no such task", task=task_id)
        params = {"parent": parent, "task": task_id, "owner": owner}
        rows = await self._db.read("task.status", _SQL["status"], params)
        if not rows:
            raise TaskMissing("no such task", task=task_id)
        return _view(rows[0])

    async def list(
        self, parent: SessionId, owner: OwnerId, *, limit: int = 20, before: str | None = None
    ) -> Sequence[TaskView]:
        """See the port."""
        params = {"parent": parent, "owner": owner, "before": before, "max_bytes": PAGE_BYTES}
        rows = await self._db.read("task.list", _SQL["list"], params | {"limit": min(limit, LIST_MAX_TASKS)})
        if not rows:
            raise SessionMissing("no such session", session=parent)
        return [_view(row) for row in rows if row["task"] is not None]

    async def owed(self, *, limit: int = 50, parent: SessionId | None = None) -> Sequence[Debt]:
        """See the port."""
        params: dict[str, Any] = {"limit": limit, "max_bytes": PAGE_BYTES}
        if parent is None:
            rows = await self._db.read("task.owed", _SQL["owed"], params)
        else:
            rows = await self._db.read("task.owed", _SQL["owed_to"], params | {"parent": parent})
        return [_debt(row) for row in rows]

    async def deliver(self, debt: Debt, *, wait: bool = True) -> DeliveredTask | None:
        """See the port."""
        delivery, record = notice_delivery(debt, notice_chars=self._notice_chars)
        params = {
            "task": debt.task_id,
            "parent": debt.parent,
            "version": debt.version,
            "id": delivery.id,
            "source": delivery.source,
            "content": delivery.content,
            "text": record.text,
            "digest": record.digest,
            "attempts_max": self._inbox_attempts,
            "wait": wait,
        }
        await self._failpoints.hit("task.delivering")
        [row] = await self._db.call("task.deliver", _SQL["deliver"], params, repeatable=True)
        if row["result"] == "busy":
            raise StoreBusy("the parent is busy just now", session=debt.parent)
        if row["result"] != "delivered":
            return None
        await self._failpoints.hit("task.delivered")
        turn = None if row["turn_id"] is None else TurnId(row["turn_id"])
        return DeliveredTask(debt.task_id, debt.parent, row["seq"], turn)

    async def put_off(self, debt: Debt, in_s: float) -> None:
        """See the port."""
        params = {"task": debt.task_id, "version": debt.version, "in_s": in_s}
        await self._db.call("task.put-off", _SQL["put_off"], params)

    async def waiting(self, parent: SessionId, owner: OwnerId) -> Sequence[TurnId]:
        """See the port."""
        rows = await self._db.read("task.waiting", _SQL["waiting"], {"parent": parent, "owner": owner})
        return [TurnId(row["id"]) for row in rows]

    async def end_late(self, *, limit: int = 50) -> Sequence[EndedTask]:
        """See the port."""
        found = await self._db.read("task.late", _SQL["find_late"], {"limit": limit})
        if not found:
            return []
        ids = {"ids": [row["id"] for row in found]}
        rows = await self._db.call("task.end-late", _SQL["end_late"], ids, repeatable=True)
        return [
            EndedTask(
                TurnId(row["turn_id"]),
                SessionId(row["session_id"]),
                row["outcome"],
                None if row["holder"] is None else WorkerId(row["holder"]),
                row["after_seq"],
            )
            for row in rows
        ]


def _started(task: NewTask, limits: TaskLimits, row: Row) -> StartedTask:
    match row["result"]:
        case "started" | "duplicate":
            turn = TurnId(row["turn_id"])
            # Our own earlier try whose answer was lost is no duplicate to the caller.
            is_repeat = row["result"] == "duplicate" and turn != task.turn_id
            return StartedTask(task.task_id, turn, row["seq"], duplicate=is_repeat)
        case "missing":
            raise SessionMissing("no such session", session=task.parent)
        case "conflict":
            raise TaskConflict("the task was started with other content", task=task.task_id)
        case "nested":
            raise TaskNested("a task starts no tasks", session=task.parent)
        case "limit":
            raise TasksFull(
                "the session runs as many tasks as it may", bound=f"{limits.max_running} running tasks"
            )
        case "owner-full":
            raise QueueFull("too many turns of the owner are queued", bound="queued turns an owner")
        case "all-full":
            raise QueueFull("too many turns are queued in all", bound="queued turns in all")
        case "exists":
            raise SessionExists("the id names a session that is no task of this one", session=task.task_id)
        case other:
            raise StoreDefect("unknown answer of a task's start", answer=other)


def _state(row: Row) -> TaskResult:
    turn = None
    if row["status"] is not None:
        turn = TaskTurn(row["status"], row["opened"], row["outcome"], row["code"], row["failure"])
    records = [] if row["end_kind"] is None else [TaskRecord(row["end_kind"], json.loads(row["end_data"]))]
    return state_of(turn, records)


def _view(row: Row) -> TaskView:
    state, began = _state(row), json.loads(row["began"])
    return TaskView(
        task_id=SessionId(row["task"]),
        parent=SessionId(row["parent"]),
        turn_id=None if row["turn"] is None else TurnId(row["turn"]),
        mode=began["mode"],
        instructions=began["instructions"],
        status=state.status,
        text=state.text,
        code=state.code,
        failure=state.failure,
        owed=row["owed"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        deadline=row["deadline"],
    )


def _debt(row: Row) -> Debt:
    return Debt(
        SessionId(row["task"]),
        SessionId(row["parent"]),
        OwnerId(row["owner"]),
        _state(row),
        row["tries"],
        row["version"],
    )
