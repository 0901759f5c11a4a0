"""Broken stores of tasks: each fails the checks of its fault by their names, and every check has one that fails it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from shared.conformance import ConformanceFailure
from shared.conformance.task_store import CHECKS, task_store_conformance
from shared.domain.errors import (
    QueueFull,
    SessionExists,
    SessionMissing,
    TaskConflict,
    TaskMissing,
    TaskNested,
    TasksFull,
)
from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId
from shared.sessions.inproc import InprocStore
from shared.tasks.inproc import InprocTaskStore, StoredTask
from shared.tasks.port import (
    CancelledTask,
    Debt,
    DeliveredTask,
    EndedTask,
    NewTask,
    StartedTask,
    TaskLimits,
    TaskResult,
    TaskView,
)
from shared.turns.inproc.rows import claim_of
from shared.turns.queue import Claim
from tests.conformance.task_subjects import InprocTaskStoreSubject


class Forgetful(InprocTaskStore):
    """Keeps neither the task's meta nor its deadline."""

    async def start(self, task: NewTask, limits: TaskLimits) -> StartedTask:
        return await super().start(replace(task, meta=None, deadline_in_s=None), limits)


class Spawning(InprocTaskStore):
    """Makes every child an empty one."""

    def _insert_child(self, task: NewTask, parent: Any) -> None:
        super()._insert_child(replace(task, mode="spawn"), parent)


class Repeating(InprocTaskStore):
    """Tells nobody that a task was started before."""

    async def start(self, task: NewTask, limits: TaskLimits) -> StartedTask:
        return replace(await super().start(task, limits), duplicate=False)


class Agreeing(InprocTaskStore):
    """Takes whatever stands under an id for what was asked."""

    async def start(self, task: NewTask, limits: TaskLimits) -> StartedTask:
        try:
            return await super().start(task, limits)
        except TaskConflict:
            first = self._tables.tasks[task.parent, task.task_id]
            return StartedTask(task.task_id, first.task.turn_id, first.seq, True)


class Adopting(InprocTaskStore):
    """Makes any session of the owner its task."""

    async def start(self, task: NewTask, limits: TaskLimits) -> StartedTask:
        try:
            return await super().start(task, limits)
        except SessionExists:
            return StartedTask(task.task_id, task.turn_id, 0, False)


class Nesting(InprocTaskStore):
    """Lets tasks start tasks."""

    def _judge(self, task: NewTask, limits: TaskLimits) -> None:
        try:
            super()._judge(task, limits)
        except TaskNested:
            return


class Mixing(InprocTaskStore):
    """Starts tasks of sessions that keep whole turns, too."""

    async def start(self, task: NewTask, limits: TaskLimits) -> StartedTask:
        self._store.sessions[task.parent].retained = False
        return await super().start(task, limits)


class Boundless(InprocTaskStore):
    """Runs as many tasks at once as are started."""

    def _judge(self, task: NewTask, limits: TaskLimits) -> None:
        try:
            super()._judge(task, limits)
        except TasksFull:
            return


class Queueing(InprocTaskStore):
    """Counts no turns that wait."""

    def _judge(self, task: NewTask, limits: TaskLimits) -> None:
        try:
            super()._judge(task, limits)
        except QueueFull:
            return


class Ownerless(InprocTaskStore):
    """Looks at nobody's name."""

    async def list(
        self, parent: SessionId, owner: OwnerId, *, limit: int = 20, before: str | None = None
    ) -> Sequence[TaskView]:
        return await super().list(parent, self._store.sessions[parent].owner, limit=limit, before=before)


class Sharing(InprocTaskStore):
    """Gives a turn to whoever asks, also when it is held."""

    async def take(
        self, task_id: SessionId, owner: OwnerId, holder: WorkerId, *, lease_s: float | None
    ) -> Claim | None:
        claim = await super().take(task_id, owner, holder, lease_s=lease_s)
        if claim is None and (key := self._store.keys.get((task_id, "turn", task_id))) is not None:
            return claim_of(self._turns.turns[key.answer], self._store.now(), lost=False)
        return claim


class Silent(InprocTaskStore):
    """Rings for nothing."""

    async def waiting(self, parent: SessionId, owner: OwnerId) -> Sequence[TurnId]:
        return []


class Hopeful(InprocTaskStore):
    """Takes every task for one that waits."""

    async def status(self, parent: SessionId, task_id: str, owner: OwnerId) -> TaskView:
        return replace(await super().status(parent, task_id, owner), status="pending")


class Endless(InprocTaskStore):
    """Lists without pages."""

    async def list(
        self, parent: SessionId, owner: OwnerId, *, limit: int = 20, before: str | None = None
    ) -> Sequence[TaskView]:
        return await super().list(parent, owner)


class Guessing(InprocTaskStore):
    """Finds some task for every question."""

    def _kept(self, parent: SessionId, task_id: str, owner: OwnerId) -> StoredTask:
        try:
            return super()._kept(parent, task_id, owner)
        except TaskMissing:
            return next(iter(self._tables.tasks.values()))


class Telling(InprocTaskStore):
    """Owes a cancelled task's end like any other."""

    async def cancel(self, parent: SessionId, task_id: str, owner: OwnerId) -> CancelledTask:
        cancelled = await super().cancel(parent, task_id, owner)
        self._kept(parent, task_id, owner).is_settled = False
        return cancelled


class Hasty(InprocTaskStore):
    """Cancels whatever has not been closed, with its result stored or not."""

    def _stored_outcome(self, session: Any, row: Any) -> None:
        return None


class Forgiving(InprocTaskStore):
    """Owes only what ended with a result."""

    def _is_owed(self, kept: StoredTask) -> bool:
        return super()._is_owed(kept) and self._state(kept).text is not None


class Eager(InprocTaskStore):
    """Ends every open task that has a deadline."""

    async def end_late(self, *, limit: int = 50) -> Sequence[EndedTask]:
        now, self._store.now = self._store.now, lambda: now() + timedelta(days=30)
        try:
            return await super().end_late(limit=limit)
        finally:
            self._store.now = now


class Naked(InprocTaskStore):
    """Delivers the task's words without a frame."""

    async def deliver(self, debt: Debt, *, wait: bool = True) -> DeliveredTask | None:
        return await super().deliver(replace(debt, result=TaskResult("cancelled")), wait=wait)


class Insistent(InprocTaskStore):
    """Answers every delivery as if it had stored it."""

    async def deliver(self, debt: Debt, *, wait: bool = True) -> DeliveredTask | None:
        told = await super().deliver(debt, wait=wait)
        return told or DeliveredTask(debt.task_id, debt.parent, 0, None)


class Full(InprocTaskStore):
    """Counts notices among the items that an inbox holds at most."""

    async def deliver(self, debt: Debt, *, wait: bool = True) -> DeliveredTask | None:
        if self._store.owned(debt.parent, debt.owner).inbox_waiting >= 20:
            return None
        return await super().deliver(debt, wait=wait)


class Anonymous(InprocTaskStore):
    """Answers in the name of nobody in particular."""

    async def deliver(self, debt: Debt, *, wait: bool = True) -> DeliveredTask | None:
        kept = self._tables.tasks.get((debt.parent, debt.task_id))
        if kept is not None:
            kept.task = replace(kept.task, meta=None)
        return await super().deliver(debt, wait=wait)


class Pushing(InprocTaskStore):
    """Has a notice answered at once, whatever runs."""

    async def deliver(self, debt: Debt, *, wait: bool = True) -> DeliveredTask | None:
        told = await super().deliver(debt, wait=wait)
        for row in self._turns.of_session(debt.parent):
            row.status = "ready" if row.status == "queued" else row.status
        return told


class Restless(InprocTaskStore):
    """Puts nothing off."""

    async def put_off(self, debt: Debt, in_s: float) -> None:
        return None


class Unordered(InprocTaskStore):
    """Reads what is owed last first."""

    async def owed(self, *, limit: int = 50, parent: SessionId | None = None) -> Sequence[Debt]:
        return list(reversed(await super().owed(limit=limit, parent=parent)))


class Orphaning(InprocTaskStore):
    """Has children outlive their parent's removal as debts."""

    async def deliver(self, debt: Debt, *, wait: bool = True) -> DeliveredTask | None:
        if debt.parent not in self._store.sessions:
            raise SessionMissing("no such session", session=debt.parent)
        return await super().deliver(debt, wait=wait)


class Trusting(InprocTaskStore):
    """Forgets a task with its child."""

    def __init__(self, store: InprocStore) -> None:
        super().__init__(store)
        self._tables.forget = self._forget  # type: ignore[method-assign] # the fault is in the tables

    def _forget(self, sessions: Any) -> None:
        kept = self._tables.tasks.items()
        self._tables.tasks = {p: t for p, t in kept if not {*p} & {*sessions}}


FAULTS: Sequence[tuple[type[InprocTaskStore], Sequence[str]]] = [
    (Forgetful, ["a start stores the record, the child and its turn, ready to be claimed in the background"]),
    (Spawning, ["a fork inherits the history to the last closed turn, a spawn inherits nothing"]),
    (Repeating, ["starting an id again answers the first start and starts nothing"]),
    (
        Agreeing,
        [
            "an id with other instructions or another mode is a conflict, and nothing is stored",
            "two starts of one id at once are one task, and a conflict with other content",
        ],
    ),
    (Adopting, ["an id of a session that is no task of this one is refused, and nothing is stored"]),
    (Nesting, ["a task starts no tasks"]),
    (
        Boundless,
        [
            "a session runs at most so many tasks at once; one that ended makes room",
            "of many starts at once no more are stored than may run",
        ],
    ),
    (Mixing, ["a session of whole turns starts no task, and one that started a task keeps no whole turn"]),
    (Queueing, ["a start counts among the turns that wait, and is refused where they are too many"]),
    (Ownerless, ["another owner's session reads as missing"]),
    (Sharing, ["a runner takes exactly its task's turn, once, with or without a lease"]),
    (Silent, ["the turns of a parent's tasks that wait are told, to be rung again"]),
    (Hopeful, ["a task is pending, then running, then what its result says"]),
    (Endless, ["the tasks of a session are listed by id, in pages"]),
    (Guessing, ["an unknown task, a string that is no id and another owner's task read alike"]),
    (Telling, ["a cancel ends a task that waits or runs, and nothing of it is owed"]),
    (Hasty, ["a stored result or reply wins over a cancel, and is owed"]),
    (Forgiving, ["whatever ends a task's turn owes its parent, opened or not"]),
    (Eager, ["an open task past its deadline ends by the store: by what it stored, else interrupted"]),
    (Naked, ["a result becomes the parent's inbox item task:<id>, framed, and is owed no more"]),
    (Insistent, ["of many deliveries of one result one is stored, also later"]),
    (Full, ["a parent is told of more tasks than its inbox holds of other items"]),
    (Anonymous, ["the turn that answers a notice has the task's meta, and the agent of the parent's turns"]),
    (Pushing, ["a notice is answered after the parent's turn in flight"]),
    (
        Restless,
        ["a delivery that was put off is due later, and one parent's are found whenever they are due"],
    ),
    (Unordered, ["what is owed longest is read first, and no more than asked for"]),
    (Orphaning, ["a removed parent drops what it is owed"]),
    (Trusting, ["a parent hears that a removed task of it is lost"]),
]


@pytest.mark.behaviour("KIT-01")
@pytest.mark.parametrize(("make", "broken"), FAULTS, ids=[make.__name__ for make, _ in FAULTS])
async def test_a_broken_store_fails_the_checks_of_its_fault_by_their_names(
    make: type[InprocTaskStore], broken: Sequence[str]
) -> None:
    for check in task_store_conformance(InprocTaskStoreSubject(make)):
        if check.name in broken:
            with pytest.raises(ConformanceFailure) as failure:
                await check.run()
            assert str(failure.value).startswith(f"{check.name}: ")


def test_every_check_has_a_broken_store() -> None:
    assert {name for _, names in FAULTS for name in names} == {check.name for check in CHECKS}
