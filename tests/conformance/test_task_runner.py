"""The kit of task runners, on the one in this process; and runners that break, each caught by the checks of its fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shared.conformance import MadeRunner, task_runner_conformance
from shared.conformance.check import ConformanceFailure
from shared.conformance.tasks.runner import CHECKS, RunnerSubject
from shared.host.tasks.deadlines import Deadline
from shared.host.tasks.port import HandedTask, TaskWork
from shared.host.tasks.runners import InProcessTaskRunner
from tests.conformance.kits import cited_by, names_of, proved_by, run_check


@asynccontextmanager
async def unbounded() -> AsyncIterator[MadeRunner]:
    async with InProcessTaskRunner() as runner:
        yield MadeRunner(runner, runner.activity)


@asynccontextmanager
async def bounded() -> AsyncIterator[MadeRunner]:
    async with InProcessTaskRunner(budget_s=30.0) as runner:
        yield MadeRunner(runner, runner.activity)


class Lasting:
    """A host's own runner, which leaves its work alone when it closes."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def run(self, task: HandedTask, work: TaskWork) -> None:
        async def guarded() -> None:
            try:
                await work(Deadline())
            except Exception:
                return

        running = asyncio.create_task(guarded())
        self.tasks.add(running)


@asynccontextmanager
async def lasting() -> AsyncIterator[MadeRunner]:
    yield MadeRunner(Lasting())


KITS = {
    "unbounded": task_runner_conformance(unbounded, interrupts_on_close=True),
    "bounded": task_runner_conformance(bounded, interrupts_on_close=True),
    "a host's own": task_runner_conformance(lasting, interrupts_on_close=False),
}


@pytest.mark.behaviour("KIT-06", "KIT-52", "KIT-54", "SHD-10", "SHD-34", "TSK-06", "TSK-08", "TSK-29")
@pytest.mark.parametrize("runner", KITS)
@pytest.mark.parametrize("name", names_of(KITS["bounded"]))
async def test_a_task_runner_keeps_its_contract(name: str, runner: str) -> None:
    await run_check(KITS[runner], name)


def test_the_cited_rows_are_those_that_the_checks_prove() -> None:
    assert cited_by(test_a_task_runner_keeps_its_contract) == proved_by(KITS["bounded"])


class Forgetful(InProcessTaskRunner):
    """Runs nothing."""

    def run(self, task: HandedTask, work: TaskWork) -> None:
        pass


class Twice(InProcessTaskRunner):
    """Runs everything twice."""

    def run(self, task: HandedTask, work: TaskWork) -> None:
        super().run(task, work)
        super().run(task, work)


class OneAtATime(InProcessTaskRunner):
    """Lets work wait for other work."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.lock = asyncio.Lock()

    def run(self, task: HandedTask, work: TaskWork) -> None:
        async def alone(deadline: Deadline) -> None:
            async with self.lock:
                await work(deadline)

        super().run(task, alone)


class Fragile(InProcessTaskRunner):
    """Stops everything when one work fails."""

    def run(self, task: HandedTask, work: TaskWork) -> None:
        async def fatal(deadline: Deadline) -> None:
            try:
                await work(deadline)
            except Exception:
                self._is_closed = True
                for one in self._running:
                    one.cancel()

        super().run(task, fatal)


class Unreserved(InProcessTaskRunner):
    """Keeps nothing for closing."""

    def _deadline(self, now: float) -> Deadline:
        return Deadline(now + 30.0, now + 30.0)


class Greedy(InProcessTaskRunner):
    """Keeps nearly all of the time for closing."""

    def _deadline(self, now: float) -> Deadline:
        return Deadline(now + 30.0, now + 1.0)


class Uncounting(InProcessTaskRunner):
    """Counts nothing."""

    @property
    def running(self) -> int:
        return 0


class Sticky(InProcessTaskRunner):
    """Counts what has ended too."""

    ran = 0

    @property
    def running(self) -> int:
        return self.ran

    def run(self, task: HandedTask, work: TaskWork) -> None:
        self.ran += 1
        super().run(task, work)


class Abandoning(InProcessTaskRunner):
    """Leaves without a look at what runs."""

    async def aclose(self) -> None:
        self._is_closed = True


class Hasty(InProcessTaskRunner):
    """Cancels what runs and does not wait for it."""

    async def aclose(self) -> None:
        for one in self._running:
            one.cancel()


#: What is broken, and a beginning of the name of each check that must see it.
FAULTS: Mapping[type[InProcessTaskRunner], Sequence[str]] = {
    Forgetful: ["work that is handed over runs once"],
    Twice: ["work that is handed over runs once"],
    OneAtATime: ["several tasks run beside each other"],
    Fragile: ["work that fails takes nothing else"],
    Unreserved: ["the cutoff of a deadline"],
    Greedy: ["the cutoff of a deadline"],
    Uncounting: ["work counts from its hand-over"],
    Sticky: ["work counts from its hand-over"],
    Abandoning: ["closing does with the work"],
    Hasty: ["closing does with the work"],
}


def opened(broken: Callable[..., InProcessTaskRunner]) -> Callable[[], Any]:
    @asynccontextmanager
    async def make() -> AsyncIterator[MadeRunner]:
        runner = broken(budget_s=30.0)
        async with runner:
            yield MadeRunner(runner, runner)

    return make


@pytest.mark.parametrize("broken", FAULTS, ids=[broken.__name__ for broken in FAULTS])
async def test_a_broken_runner_fails_the_checks_of_its_fault_by_their_names(
    broken: type[InProcessTaskRunner],
) -> None:
    for beginning in FAULTS[broken]:
        [check] = [check for check in CHECKS if check.name.startswith(beginning)]
        with pytest.raises(ConformanceFailure) as failure:
            await check.on(RunnerSubject(opened(broken), True), timeout_s=8).run()
        assert str(failure.value).startswith(f"{check.name}: ")


def names_of_checks() -> list[str]:
    return [check.name for check in CHECKS]


def test_every_check_of_a_runner_has_a_fault_that_fails_it() -> None:
    seen = {
        name for name in names_of_checks() for faults in FAULTS.values() if name.startswith(tuple(faults))
    }
    assert seen == set(names_of_checks())


@pytest.mark.behaviour("KIT-54")
async def test_a_runner_that_interrupts_fails_where_the_host_says_that_it_does_not() -> None:
    [closes] = [c for c in task_runner_conformance(unbounded, False) if c.name.startswith("closing does")]
    with pytest.raises(ConformanceFailure):
        await closes.run()
    [unsaid] = [c for c in task_runner_conformance(unbounded) if c.name.startswith("closing does")]
    await unsaid.run()
