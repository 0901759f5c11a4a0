"""The store of background tasks in this process's memory: the twin of the Postgres one, over the sessions' store.

What is owed is told from the tasks and their turns, so that whatever ends a turn owes it here too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import uuid4

from shared.domain.canonical import first_tail
from shared.domain.errors import (
    QueueFull,
    SessionExists,
    TaskConflict,
    TaskMissing,
    TaskNested,
    TasksFull,
)
from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId
from shared.inbox.inproc import put_item
from shared.inbox.port import ATTEMPTS_MAX
from shared.sessions.inproc import InprocStore, StoredKey, StoredSession
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
)
from shared.tasks.records import (
    admission_of,
    cancelled_draft,
    create_print,
    notice_delivery,
    print_of,
    started_draft,
)
from shared.tasks.states import TERMINAL, TaskRecord, TaskTurn, state_of
from shared.turns.fingerprint import fingerprint_of
from shared.turns.inproc.ends import close_open
from shared.turns.inproc.inbox import promote
from shared.turns.inproc.rows import FOREVER, TurnRow, TurnTables, claim_of, is_open, new_row
from shared.turns.queue import FINISHED, Claim, Outcome
from shared.turns.rules import count_loss, may_take_over


@dataclass(slots=True)
class StoredTask:
    """A task as its parent knows it, whatever became of its child."""

    task: NewTask
    seq: int
    started_at: datetime
    due_at: datetime
    is_settled: bool = False
    is_removed: bool = False
    tries: int = 0

    @property
    def version(self) -> str:
        """What a reader of the debt names."""
        return "lost" if self.is_removed else "owed"


@dataclass(slots=True)
class TaskTables:
    """The tasks' part of an :class:`~shared.sessions.inproc.InprocStore`, by parent and id."""

    tasks: dict[tuple[SessionId, SessionId], StoredTask] = field(default_factory=dict)

    def forget(self, sessions: Collection[SessionId]) -> None:
        """Drop the tasks of removed parents; a removed child's task is lost to a parent that stays."""
        self.tasks = {place: kept for place, kept in self.tasks.items() if place[0] not in sessions}
        for (_, child), kept in self.tasks.items():
            kept.is_removed = kept.is_removed or child in sessions

    def of(self, parent: SessionId) -> Iterator[StoredTask]:
        """Every task of a parent."""
        return (kept for place, kept in self.tasks.items() if place[0] == parent)


class InprocTaskStore:
    """Implements :class:`shared.tasks.port.TaskStore` over an :class:`~shared.sessions.inproc.InprocStore`."""

    def __init__(
        self,
        store: InprocStore,
        *,
        attempts_max: int = 3,
        inbox_attempts: int = ATTEMPTS_MAX,
        notice_chars: int = NOTICE_CHARS,
    ) -> None:
        self._store = store
        self._turns = store.part(TurnTables)
        self._tables = store.part(TaskTables)
        self._attempts_max = attempts_max
        self._inbox_attempts = inbox_attempts
        self._notice_chars = notice_chars

    async def start(self, task: NewTask, limits: TaskLimits) -> StartedTask:
        """See the port."""
        check_task(task)
        record = started_draft(task)
        await self._store.reached()
        parent = self._store.owned(task.parent, task.owner)
        first = self._tables.tasks.get((task.parent, task.task_id))
        if first is not None:
            if print_of(first.task) != print_of(task):
                raise TaskConflict("the task was started with other content", task=task.task_id)
            turn = first.task.turn_id
            return StartedTask(task.task_id, turn, first.seq, duplicate=turn != task.turn_id)
        self._store.queued(task.parent, task.owner)
        self._judge(task, limits)
        self._insert_child(task, parent)
        now, seq = self._store.now(), self._store.append(parent, [record])
        self._tables.tasks[task.parent, task.task_id] = StoredTask(task, seq, now, now)
        parent.has_started_tasks = True
        return StartedTask(task.task_id, task.turn_id, seq, duplicate=False)

    def _judge(self, task: NewTask, limits: TaskLimits) -> None:
        if any(child == task.parent for _, child in self._tables.tasks):
            raise TaskNested("a task starts no tasks", session=task.parent)
        unfinished = [row for kept in self._tables.of(task.parent) if (row := self._unfinished(kept))]
        if len(unfinished) >= limits.max_running:
            raise TasksFull(
                "the session runs as many tasks as it may", bound=f"{limits.max_running} running tasks"
            )
        bounds = self._turns.bounds.get(task.owner)
        own = bounds.queued_max if bounds is not None else None
        if self._turns.count("queued", "ready", owner=task.owner) >= (
            own if own is not None else limits.queued_per_owner
        ):
            raise QueueFull("too many turns of the owner are queued", bound="queued turns an owner")
        if limits.is_full:
            raise QueueFull("too many turns are queued in all", bound="queued turns in all")
        if task.task_id in self._store.sessions:
            raise SessionExists("the id names a session that is no task of this one", session=task.task_id)

    def _unfinished(self, kept: StoredTask) -> TurnRow | None:
        row = self._turns.turns.get(kept.task.turn_id)
        return row if row is not None and row.status not in FINISHED else None

    def _insert_child(self, task: NewTask, parent: StoredSession) -> None:
        now, admission = self._store.now(), admission_of(task)
        child = StoredSession(
            task.task_id,
            task.owner,
            None,
            create_print(),
            None,
            "{}",
            first_tail(task.task_id),
            now,
            now,
            now,
            parent.id,
        )
        if task.mode == "fork":
            last = next((r for r in reversed(parent.records) if r.kind == "turn.ended"), None)
            child.parent_through = 0 if last is None else last.seq
            child.parent_number = parent.parent_number if last is None else last.turn or 0
            child.next_number = child.parent_number + 1
        row = new_row(admission)
        row.origin, row.parent, row.position, child.next_position = "task", parent.id, 1, 2
        row.status, row.due_at, row.admitted_at = "ready", now, now
        if task.deadline_in_s is not None:
            row.deadline = now + timedelta(seconds=task.deadline_in_s)
        self._store.sessions[child.id] = child
        self._turns.turns[row.id] = row
        key = StoredKey(fingerprint_of(admission), row.id)
        self._store.keys[child.id, "turn", task.task_id] = self._store.keys[child.id, "run", task.run_id] = (
            key
        )

    async def take(
        self, task_id: SessionId, owner: OwnerId, holder: WorkerId, *, lease_s: float | None
    ) -> Claim | None:
        """See the port."""
        await self._store.reached()
        now, key = self._store.now(), self._store.keys.get((task_id, "turn", task_id))
        row = self._turns.turns.get(key.answer) if key is not None else None
        if row is None or row.owner != owner or row.origin != "task":
            return None
        lost = may_take_over(row, now, self._attempts_max, self._store.started_at)
        if not lost and not (row.status == "ready" and row.due_at <= now):
            return None
        if lost:
            losses = count_loss(row, holder_is_gone=True)
            row.attempts, row.suspect = losses.attempts, losses.suspect
        row.status, row.epoch, row.token, row.lease_owner = "running", row.epoch + 1, uuid4(), holder
        row.expires_at = FOREVER if lease_s is None else now + timedelta(seconds=lease_s)
        return claim_of(row, now, lost=lost)

    async def cancel(self, parent: SessionId, task_id: str, owner: OwnerId) -> CancelledTask:
        """See the port."""
        await self._store.reached()
        kept = self._kept(parent, task_id, owner)
        if kept.is_removed:
            return CancelledTask(False, self._state(kept).status, None, None, 0)
        session, row = self._store.sessions[kept.task.task_id], self._turns.turns[kept.task.turn_id]
        holder = row.lease_owner
        if row.status not in FINISHED:
            self._cancel(session, row, kept)
        took_effect = "cancelled" in (row.status, row.outcome)
        return CancelledTask(took_effect, self._state(kept).status, row.id, holder, session.seq)

    def _cancel(self, session: StoredSession, row: TurnRow, kept: StoredTask) -> None:
        record = cancelled_draft(kept.task.task_id)
        if not is_open(session, row):
            self._store.append(session, [record])
            row.finish("cancelled", self._store.now())
            promote(self._store, self._turns, session)
        elif (outcome := self._stored_outcome(session, row)) is not None:
            close_open(self._store, self._turns, session, row, outcome, None)
            return
        else:
            self._store.append(session, [record], turn=row.number)
            close_open(self._store, self._turns, session, row, "cancelled", None)
        kept.is_settled = True

    def _stored_outcome(self, session: StoredSession, row: TurnRow) -> Outcome | None:
        records = _records_of(session, row)
        first = next((r for r in records if r.kind in TERMINAL), None)
        last = next((r for r in reversed(records) if r.kind == "turn.reply"), None)
        told = first or last
        outcome: Outcome | None = None if told is None else told.data["outcome"]
        return outcome

    async def status(self, parent: SessionId, task_id: str, owner: OwnerId) -> TaskView:
        """See the port."""
        await self._store.reached()
        return self._view(self._kept(parent, task_id, owner))

    async def list(
        self, parent: SessionId, owner: OwnerId, *, limit: int = 20, before: str | None = None
    ) -> Sequence[TaskView]:
        """See the port."""
        await self._store.reached()
        self._store.owned(parent, owner)
        found = [k for k in self._tables.of(parent) if before is None or k.task.task_id < before]
        found.sort(key=lambda kept: kept.task.task_id, reverse=True)
        return [self._view(kept) for kept in found[: min(limit, LIST_MAX_TASKS)]]

    async def owed(self, *, limit: int = 50, parent: SessionId | None = None) -> Sequence[Debt]:
        """See the port."""
        await self._store.reached()
        now = self._store.now()
        found = [
            kept
            for kept in self._tables.tasks.values()
            if self._is_owed(kept) and (kept.due_at <= now if parent is None else kept.task.parent == parent)
        ]
        found.sort(key=lambda kept: (kept.due_at, kept.task.task_id))
        return [self._debt(kept) for kept in found[:limit]]

    def _debt(self, kept: StoredTask) -> Debt:
        task = kept.task
        return Debt(task.task_id, task.parent, task.owner, self._state(kept), kept.tries, kept.version)

    def _is_owed(self, kept: StoredTask) -> bool:
        return not kept.is_settled and (kept.is_removed or self._unfinished(kept) is None)

    async def deliver(self, debt: Debt, *, wait: bool = True) -> DeliveredTask | None:
        """See the port; nothing is ever busy here."""
        delivery, record = notice_delivery(debt, notice_chars=self._notice_chars)
        await self._store.reached()
        kept = self._tables.tasks.get((debt.parent, debt.task_id))
        parent = self._store.sessions.get(debt.parent)
        if kept is None or parent is None or not self._is_owed(kept) or kept.version != debt.version:
            return None
        kept.is_settled = True
        has_turns = any(True for _ in self._turns.of_session(parent.id))
        given = replace(
            delivery,
            meta=kept.task.meta,
            agent=None if has_turns else kept.task.agent,
            agent_revision=None if has_turns else kept.task.agent_revision,
        )
        seq = put_item(self._store, parent, given, record, attempts_max=self._inbox_attempts)
        live = self._turns.live(parent.id)
        ready = live.id if live is not None and live.status == "ready" else None
        return DeliveredTask(debt.task_id, debt.parent, seq, ready)

    async def put_off(self, debt: Debt, in_s: float) -> None:
        """See the port."""
        await self._store.reached()
        kept = self._tables.tasks.get((debt.parent, debt.task_id))
        if kept is not None and self._is_owed(kept) and kept.version == debt.version:
            kept.tries, kept.due_at = kept.tries + 1, self._store.now() + timedelta(seconds=in_s)

    async def waiting(self, parent: SessionId, owner: OwnerId) -> Sequence[TurnId]:
        """See the port."""
        await self._store.reached()
        rows = [self._unfinished(kept) for kept in self._tables.of(parent) if kept.task.owner == owner]
        return sorted(row.id for row in rows if row is not None and row.status == "ready")[:20]

    async def end_late(self, *, limit: int = 50) -> Sequence[EndedTask]:
        """See the port."""
        await self._store.reached()
        now = self._store.now()
        late = [
            (row.deadline, row)
            for row in self._turns.turns.values()
            if row.origin == "task"
            and row.status not in FINISHED
            and row.deadline is not None
            and row.deadline < now
            and is_open(self._store.sessions[row.session_id], row)
        ]
        late.sort(key=lambda each: (each[0], each[1].id))
        return [self._end_late(row) for _, row in late[:limit]]

    def _end_late(self, row: TurnRow) -> EndedTask:
        session, holder = self._store.sessions[row.session_id], row.lease_owner
        stored = self._stored_outcome(session, row)
        code = None if stored is not None else "task.deadline"
        outcome: Outcome = stored or "interrupted"
        close_open(self._store, self._turns, session, row, outcome, code)
        return EndedTask(row.id, session.id, outcome, holder, session.seq)

    def _kept(self, parent: SessionId, task_id: str, owner: OwnerId) -> StoredTask:
        kept = self._tables.tasks.get((parent, SessionId(task_id)))
        if kept is None or kept.task.owner != owner:
            raise TaskMissing("no such task", task=task_id)
        return kept

    def _state(self, kept: StoredTask) -> TaskResult:
        row = self._turns.turns.get(kept.task.turn_id)
        if row is None or kept.is_removed:
            return state_of(None)
        turn = TaskTurn(row.status, row.number is not None, row.outcome, row.code, row.failure)
        session = self._store.sessions[row.session_id]
        kinds = (*TERMINAL, "turn.reply")
        return state_of(
            turn,
            [
                TaskRecord(r.kind, r.data)
                for r in session.records
                if r.kind in kinds and r.turn in (None, row.number)
            ],
        )

    def _view(self, kept: StoredTask) -> TaskView:
        row, state, task = self._turns.turns.get(kept.task.turn_id), self._state(kept), kept.task
        return TaskView(
            task_id=task.task_id,
            parent=task.parent,
            turn_id=None if row is None else row.id,
            mode=task.mode,
            instructions=task.instructions,
            status=state.status,
            text=state.text,
            code=state.code,
            failure=state.failure,
            owed=self._is_owed(kept),
            started_at=kept.started_at,
            ended_at=None if row is None else row.ended_at,
            deadline=None if row is None else row.deadline,
        )


def _records_of(session: StoredSession, row: TurnRow) -> list[TaskRecord]:
    return [TaskRecord(r.kind, r.data) for r in session.records if r.turn == row.number]
