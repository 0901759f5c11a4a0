"""The kit of a task runner: what any :class:`shared.host.tasks.port.TaskRunner` that runs work itself must show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

from shared.conformance.check import ConformanceCheck, check, checks_of, require, same
from shared.conformance.tasks.waiting import WAIT_S, eventually, happened
from shared.domain.ids import OwnerId, SessionId, new_session_id, new_turn_id
from shared.host.activity import BackgroundTaskActivity
from shared.host.port import SessionAddress
from shared.host.tasks.deadlines import Deadline
from shared.host.tasks.port import HandedTask, TaskRunner


@dataclass(frozen=True, slots=True)
class MadeRunner:
    """A runner under test, and what counts its work, when it has something that does (SHD-10)."""

    runner: TaskRunner
    activity: BackgroundTaskActivity | None = None


#: Opens a new runner; leaving closes it.
MakeRunner = Callable[[], AbstractAsyncContextManager[MadeRunner]]


@dataclass(frozen=True, slots=True)
class RunnerSubject:
    """What the checks are given. ``interrupts_on_close``: what the host says of it; None is not checked (KIT-54)."""

    make: MakeRunner
    interrupts_on_close: bool | None


class Work:
    """Work that says what becomes of it, and goes on until it is let go."""

    def __init__(self) -> None:
        self.deadlines: list[Deadline] = []
        self.began = asyncio.Event()
        self.release = asyncio.Event()
        self.ended = asyncio.Event()
        self.is_cleaned_up = False

    async def __call__(self, deadline: Deadline) -> None:
        self.deadlines.append(deadline)
        self.began.set()
        try:
            await self.release.wait()
            self.ended.set()
        finally:
            await asyncio.sleep(0)  # what closes a turn awaits too
            self.is_cleaned_up = True


def _task() -> HandedTask:
    parent = SessionAddress(new_session_id(), OwnerId("owner"))
    return HandedTask(parent, SessionId(str(new_session_id())), new_turn_id())


@check("work that is handed over runs once, beside its caller", "TSK-06", "KIT-52", "KIT-06")
async def _runs_once(subject: RunnerSubject) -> None:
    async with subject.make() as made:
        work = Work()
        made.runner.run(_task(), work)
        require(not work.ended.is_set(), "handing over waits for no work")
        await happened(work.began, "the work begins")
        work.release.set()
        await happened(work.ended, "the work goes on to its end")
        same(len(work.deadlines), 1, "how often the work ran")


@check("several tasks run beside each other", "KIT-52")
async def _beside_each_other(subject: RunnerSubject) -> None:
    async with subject.make() as made:
        works = [Work(), Work()]
        for work in works:
            made.runner.run(_task(), work)
        for work in works:
            await happened(work.began, "both begin while neither has ended")
        for work in works:
            work.release.set()
        for work in works:
            await happened(work.ended, "both end")


@check("work that fails takes nothing else with it", "KIT-52")
async def _failures_stay(subject: RunnerSubject) -> None:
    async def fails(deadline: Deadline) -> None:
        raise RuntimeError("the host's code failed")

    async with subject.make() as made:
        other, later = Work(), Work()
        made.runner.run(_task(), other)
        await happened(other.began, "the other work begins")
        made.runner.run(_task(), fails)
        made.runner.run(_task(), later)
        await happened(later.began, "work that comes after a failure begins")
        for work in (other, later):
            work.release.set()
            await happened(work.ended, "work beside a failure ends")


@check("the cutoff of a deadline comes before it and leaves at least half of the time", "TSK-29", "KIT-52")
async def _deadlines(subject: RunnerSubject) -> None:
    async with subject.make() as made:
        work = Work()
        now = asyncio.get_running_loop().time()
        made.runner.run(_task(), work)
        await happened(work.began, "the work begins")
        work.release.set()
        [deadline] = work.deadlines
        require(deadline.cutoff <= deadline.at, "execution is cut no later than the deadline")
        require(deadline.at > now, "the deadline is ahead")
        if deadline.is_finite:
            left = deadline.at - now
            require(
                deadline.cutoff - now >= left / 2 - 0.05, "at most half of the budget is kept for closing"
            )
            require(deadline.cutoff < deadline.at, "something is kept for closing")


@check("work counts from its hand-over to its end", "TSK-08", "SHD-10", "KIT-52")
async def _counts(subject: RunnerSubject) -> None:
    async with subject.make() as made:
        activity = made.activity
        if activity is None:
            return
        work = Work()
        same(activity.running, 0, "what runs before anything was handed over")
        made.runner.run(_task(), work)
        same(activity.running, 1, "what runs right after a hand-over")
        await happened(work.began, "the work begins")
        same(activity.running, 1, "what runs while the work does")
        work.release.set()

        async def is_idle() -> bool:
            return activity.running == 0

        await eventually(is_idle, "work that ended is counted no more")


@check("closing does with the work what the host says that it does", "TSK-08", "SHD-34", "KIT-54")
async def _closes(subject: RunnerSubject) -> None:
    if subject.interrupts_on_close is None:
        return
    work = Work()
    async with subject.make() as made:
        made.runner.run(_task(), work)
        await happened(work.began, "the work begins")
    if subject.interrupts_on_close:
        require(work.is_cleaned_up, "a closed runner has cancelled its work and waited for it")
        require(not work.ended.is_set(), "work that was cancelled did not go on")
    else:
        require(not work.is_cleaned_up, "a closed runner leaves its work alone")
        work.release.set()
        await happened(work.ended, "work goes on after its runner closed")


CHECKS: Final = checks_of(globals())


def task_runner_conformance(
    make: MakeRunner, interrupts_on_close: bool | None = None
) -> Sequence[ConformanceCheck]:
    """Return the checks of a runner that ``make`` opens (KIT-52, KIT-54).

    They wait up to two seconds on the live clock for work in the background, so they run without a fake clock (KIT-06).
    ``interrupts_on_close`` says whether leaving cancels the work; None leaves that unchecked.
    """
    subject = RunnerSubject(make, interrupts_on_close)
    return [each.on(subject, timeout_s=5 * WAIT_S) for each in CHECKS]
