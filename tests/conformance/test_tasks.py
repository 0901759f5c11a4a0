"""The kit of background tasks, on the twins and on Postgres; and tasks that break, each caught by the checks of its fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Any

import pytest

from shared.conformance import tasks_conformance
from shared.conformance.check import ConformanceFailure
from shared.conformance.tasks import CHECKS
from shared.domain.errors import TaskMissing, TurnkeeperError
from shared.domain.ids import new_session_id
from shared.host.port import SessionAddress, TurnWriter
from shared.host.sessions import HostSessions
from shared.host.tasks.deadlines import UNBOUNDED, Deadline
from shared.host.tasks.port import HandedTask, Reconciled, TaskExecutor, TaskRunner
from shared.host.tasks.tasks import HostTasks
from shared.host.tasks.work import InProcessWork
from shared.host.writer import QueuedTurnWriter
from shared.sessions.vocabulary_around import BackgroundTaskResult
from shared.tasks.port import CancelledTask, StartedTask, TaskLimits, TaskStore, TaskView
from shared.turns.queue import Ending
from tests.conformance.kits import cited_by, names_of, proved_by, run_check
from tests.support.task_world import MadeOver

KIT = tasks_conformance(MadeOver(None))


@pytest.mark.behaviour(
    "KIT-53",
    "TSK-01",
    "TSK-03",
    "TSK-04",
    "TSK-06",
    "TSK-10",
    "TSK-12",
    "TSK-14",
    "TSK-15",
    "TSK-16",
    "TSK-17",
    "TSK-18",
    "TSK-20",
    "TSK-24",
    "TSK-25",
    "TSK-26",
    "TSK-28",
    "TSK-29",
    "TSK-32",
    "TSK-33",
    "TSK-34",
    "TSK-35",
    "TSK-36",
    "TSK-37",
    "TSK-39",
    "TSK-40",
    "TSK-41",
    "TSK-47",
)
@pytest.mark.parametrize("name", names_of(KIT))
async def test_background_tasks_keep_their_contract(name: str, backend_url: str | None) -> None:
    await run_check(tasks_conformance(MadeOver(backend_url)), name)


def test_the_cited_rows_are_those_that_the_checks_prove() -> None:
    assert cited_by(test_background_tasks_keep_their_contract) == proved_by(KIT)


# --- tasks that break ------------------------------------------------------------------------------------------------


class Silent(HostTasks):
    """Hands nothing over."""

    def _hand(self, task: HandedTask) -> None:
        pass


class Renaming(HostTasks):
    """Starts whatever it is asked for under an id of its own."""

    async def start(self, parent: SessionAddress, **given: Any) -> StartedTask:
        return await super().start(parent, **given | {"task_id": new_session_id()})


class Spawning(HostTasks):
    """Forks nothing."""

    async def start(self, parent: SessionAddress, **given: Any) -> StartedTask:
        return await super().start(parent, **given | {"mode": "spawn"})


class Metaless(HostTasks):
    """Loses the meta."""

    async def start(self, parent: SessionAddress, **given: Any) -> StartedTask:
        return await super().start(parent, **given | {"meta": None})


class Untyped(HostTasks):
    """Raises errors of its own."""

    async def status(self, parent: SessionAddress, task_id: str) -> TaskView:
        try:
            return await super().status(parent, task_id)
        except TaskMissing as error:
            raise KeyError(task_id) from error


class SoftCancel(HostTasks):
    """Only says that it cancelled."""

    async def cancel(self, parent: SessionAddress, task_id: str) -> CancelledTask:
        view = await self.status(parent, task_id)
        return CancelledTask(True, "cancelled", view.turn_id, None, 0)


class SlowCancel(HostTasks):
    """Lets what runs here go on."""

    async def cancel(self, parent: SessionAddress, task_id: str) -> CancelledTask:
        return await self._store.cancel(parent.id, task_id, parent.owner)


class Idle(HostTasks):
    """Reconciles nothing."""

    async def reconcile(self, parent: SessionAddress) -> Reconciled:
        return Reconciled([], [])


class Generous(HostTasks):
    """Starts as many as are asked for."""

    def __init__(self, *parts: Any, **how: Any) -> None:
        super().__init__(*parts, **how | {"limits": TaskLimits(20)})


class Resultless(InProcessWork):
    """Ends a task's turn without its result."""

    async def _run_open(self, task: HandedTask, writer: QueuedTurnWriter, own: Deadline) -> None:
        ending, _ = await self._execute(task, writer, own)
        await writer.end(ending)


class Unanswering(InProcessWork):
    """Lets no parent react."""

    async def react(self, parent: SessionAddress, deadline: Deadline, meta: Any = None) -> None:
        pass


class Undelivering(InProcessWork):
    """Tells nobody."""

    async def run(self, task: HandedTask, deadline: Deadline) -> None:
        await self._turn(task, deadline)


class Cheerful(InProcessWork):
    """Takes a failure for an answer."""

    async def _execute(
        self, task: HandedTask, writer: QueuedTurnWriter, own: Deadline
    ) -> tuple[Ending, BackgroundTaskResult]:
        await super()._execute(task, writer, own)
        return Ending("completed"), BackgroundTaskResult(task=task.task_id, outcome="completed", text="42")


class Patient(InProcessWork):
    """Knows no cutoff of a task's turn."""

    async def _run_open(self, task: HandedTask, writer: QueuedTurnWriter, own: Deadline) -> None:
        await super()._run_open(task, writer, UNBOUNDED)


class Heedless(InProcessWork):
    """Begins whatever the time is."""

    async def run(self, task: HandedTask, deadline: Deadline) -> None:
        await super().run(task, UNBOUNDED)


class Drainer(InProcessWork):
    """Reacts for as long as something waits."""

    async def react(self, parent: SessionAddress, deadline: Deadline, meta: Any = None) -> None:
        await super().react(parent, UNBOUNDED, meta)


class Severe(InProcessWork):
    """Takes every reaction that was cut for one that has not answered."""

    async def _cut_short(self, writer: TurnWriter, after: int) -> Ending:
        return Ending("interrupted", "task.deadline")


class Lenient(InProcessWork):
    """Takes every reaction that was cut for an answer."""

    async def _cut_short(self, writer: TurnWriter, after: int) -> Ending:
        return Ending("partial", "task.deadline")


class Counting(InProcessWork):
    """Counts an attempt of what was admitted too late."""

    async def _react_once(self, writer: TurnWriter, deadline: Deadline) -> None:
        await writer.end(Ending("interrupted", "task.deadline", counts_attempt=True))


class Stubborn(InProcessWork):
    """Answers beside a turn in flight, in no turn at all."""

    async def react(self, parent: SessionAddress, deadline: Deadline, meta: Any = None) -> None:
        with suppress(TurnkeeperError):
            await super().react(parent, deadline, meta)
        if (await self.sessions.view(parent)).open is not None:
            self.executor.reactions.append("anyway")  # type: ignore[attr-defined]  # the kit's own executor


class Unjudged(HostTasks):
    """Asks no admission."""

    def __init__(self, sessions: HostSessions, *parts: Any, **how: Any) -> None:
        sessions._door._hook = None
        super().__init__(sessions, *parts, **how)


#: What is broken, and a beginning of the name of each check that must see it.
FAULTS: Mapping[type[HostTasks] | type[InProcessWork], Sequence[str]] = {
    Silent: ["a started task is handed over"],
    Unanswering: ["a started task is handed over"],
    Undelivering: ["a started task is handed over"],
    Resultless: ["a task's result is stored before"],
    Renaming: ["a start that is repeated"],
    Spawning: ["a fork sees the conversation"],
    Metaless: ["a task's meta goes"],
    Untyped: ["what is asked of a task"],
    SoftCancel: ["a cancelled task that waits"],
    SlowCancel: ["a cancel stops a task"],
    Idle: ["a reconcile hands over", "a task whose runner stopped"],
    Cheerful: ["a task whose code fails"],
    Unjudged: ["a task that the host will not admit"],
    Generous: ["a session runs two tasks"],
    Patient: ["a task that is not done at the cutoff", "a task with a deadline of its own"],
    Heedless: ["work that comes too late"],
    Drainer: ["a runner whose time is bounded"],
    Severe: ["a reaction that is cut after its answer"],
    Lenient: ["a reaction that is cut before its answer"],
    Counting: ["a parent's turn that is admitted past"],
    Stubborn: ["a notice whose reaction cannot begin"],
}


def made_with(broken: type[HostTasks] | type[InProcessWork]) -> Callable[..., HostTasks]:
    if issubclass(broken, HostTasks):
        return broken
    return partial(_with_work, broken)


def _with_work(
    work: type[InProcessWork],
    sessions: HostSessions,
    store: TaskStore,
    runner: TaskRunner,
    executor: TaskExecutor,
) -> HostTasks:
    tasks = HostTasks(sessions, store, runner, executor)
    tasks._work = work(**{f.name: getattr(tasks._work, f.name) for f in fields(InProcessWork)})
    return tasks


@pytest.mark.parametrize("broken", FAULTS, ids=[broken.__name__ for broken in FAULTS])
async def test_broken_tasks_fail_the_checks_of_their_fault_by_their_names(
    broken: type[HostTasks] | type[InProcessWork],
) -> None:
    named = [check for check in CHECKS if check.name.startswith(tuple(FAULTS[broken]))]
    assert len(named) == len(FAULTS[broken])
    # Side by side: those that hang are given up once, after more than the kit itself waits for anything.
    runs = [check.on(MadeOver(None, made_with(broken)), timeout_s=3).run() for check in named]
    for check, failure in zip(named, await asyncio.gather(*runs, return_exceptions=True), strict=True):
        assert isinstance(failure, ConformanceFailure), check.name
        assert str(failure).startswith(f"{check.name}: ")


def test_every_check_of_tasks_has_a_fault_that_fails_it() -> None:
    names = {check.name for check in CHECKS}
    seen = {name for name in names for faults in FAULTS.values() if name.startswith(tuple(faults))}
    assert seen == names
