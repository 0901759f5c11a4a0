"""A task's work in a host's process, at every point where its time may end or its store may fail: told once in the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shared.conformance.tasks.stage import ScriptedExecutor
from shared.domain.errors import StoreBusy
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId
from shared.host.activity import await_idle, process_activity
from shared.host.ownership import LeaseOwnership
from shared.host.port import SessionAddress
from shared.host.sessions import HostSessions
from shared.host.tasks.port import HandedTask, TaskWork
from shared.host.tasks.runners import InProcessTaskRunner
from shared.host.tasks.tasks import HostTasks
from shared.inbox.inproc import InprocInbox
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.tasks.inproc import InprocTaskStore
from shared.tasks.port import Debt, DeliveredTask
from shared.turns.inproc import InprocTurnQueue
from shared.turns.queue import Ended
from tests.support.virtual_time import loop_clock, virtual_time

TTL_MS = 60_000
BUDGET_S = 20.0

Hook = Callable[[], Awaitable[None]]


async def for_ever() -> None:
    await asyncio.Event().wait()


async def busy() -> None:
    raise StoreBusy("too many connections")


class HookedQueue(InprocTurnQueue):
    """A queue whose ends meet a hook first."""

    before_end: Hook | None = None

    async def end(self, *given: Any, **how: Any) -> Ended:
        if self.before_end is not None:
            await self.before_end()
        return await super().end(*given, **how)


class HookedStore(InprocTaskStore):
    """A store whose deliveries meet a hook first."""

    before_deliver: Hook | None = None

    async def deliver(self, debt: Debt, *, wait: bool = True) -> DeliveredTask | None:
        if self.before_deliver is not None:
            await self.before_deliver()
        return await super().deliver(debt, wait=wait)


class World:
    """One store with a session, and hosts over it."""

    def __init__(self) -> None:
        self.store = InprocStore(loop_clock)
        self.queue = HookedQueue(self.store)
        self.tasks_store = HookedStore(self.store)
        self.executor = ScriptedExecutor()
        self.parent = SessionAddress(OwnerId("x"), OwnerId("o"))  # type: ignore[arg-type]  # set by ``open``

    def sessions(self) -> HostSessions:
        return HostSessions(
            InprocSessionLog(self.store),
            self.queue,
            inbox=InprocInbox(self.store),
            ownership=LeaseOwnership(TTL_MS, "none"),
        )

    @asynccontextmanager
    async def host(self, *, failpoints: Failpoints | None = None, budget_s: float | None = BUDGET_S) -> Any:
        """A process with a runner; leaving stops it."""
        sessions = self.sessions()
        if self.parent.id == "x":
            self.parent = (await sessions.create(OwnerId("o"))).address
        async with InProcessTaskRunner(budget_s=budget_s) as runner:
            yield HostTasks(sessions, self.tasks_store, runner, self.executor, failpoints=failpoints), runner

    def told(self) -> list[str]:
        records = self.store.sessions[self.parent.id].records
        return [r.data["content"].split("\n")[0] for r in records if r.kind == "inbox.queued"]


async def idle(runner: InProcessTaskRunner) -> None:
    await await_idle(lambda: process_activity(tasks=runner), 10_000.0)


async def reconciled(world: World, task_id: str) -> tuple[str, str | None]:
    """Let the dead turn's lease pass, reconcile twice in a new process; return how the task stands."""
    await asyncio.sleep(TTL_MS / 1_000 + 1)
    async with world.host() as (tasks, runner):
        await tasks.reconcile(world.parent)
        await idle(runner)
        await tasks.reconcile(world.parent)
        view = await tasks.status(world.parent, task_id)
        assert not view.owed
        return view.status, view.code


@pytest.mark.behaviour("TSK-22", "TSK-37", "TSK-41")
def test_a_result_that_the_store_does_not_take_is_logged_and_the_task_reads_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @virtual_time
    async def run() -> None:
        world = World()
        async with world.host(budget_s=None) as (tasks, _runner):
            world.queue.before_end = for_ever
            started = await tasks.start(world.parent, instructions="work", mode="spawn")
            await asyncio.sleep(1.0)
            world.queue.before_end = busy
        world.queue.before_end = None
        assert world.told() == []
        assert await reconciled(world, started.task_id) == ("interrupted", "task.lost")
        assert world.told() == [f"[Background task {started.task_id} interrupted]"]

    run()


@pytest.mark.behaviour("TSK-22")
def test_a_store_that_stays_busy_at_the_result_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    @virtual_time
    async def run() -> None:
        world = World()
        async with world.host(budget_s=600.0) as (tasks, runner):
            world.queue.before_end = busy
            started = await tasks.start(world.parent, instructions="work", mode="spawn")
            await idle(runner)
        world.queue.before_end = None
        assert await reconciled(world, started.task_id) == ("interrupted", "task.lost")
        assert len(world.told()) == 1

    with caplog.at_level(logging.WARNING):
        run()
    assert any(r.message.startswith("the result of a task could not be stored") for r in caplog.records)


@pytest.mark.behaviour("TSK-28", "TSK-31", "TSK-37")
@pytest.mark.parametrize("where", ["result", "delivery"])
def test_a_deadline_that_comes_while_something_is_stored_is_logged_and_the_result_told_once_later(
    caplog: pytest.LogCaptureFixture, where: str
) -> None:
    @virtual_time
    async def run() -> None:
        world = World()
        async with world.host() as (tasks, runner):
            if where == "result":
                world.queue.before_end = for_ever
            else:
                world.tasks_store.before_deliver = for_ever
            began_at = asyncio.get_running_loop().time()
            started = await tasks.start(world.parent, instructions="work", mode="spawn")
            await asyncio.sleep(BUDGET_S - 1)
            assert runner.running == 1
            world.queue.before_end = None if where == "delivery" else for_ever
            await idle(runner)
            # The deadline cuts it, whatever its scope still tries in a bounded time of its own.
            assert asyncio.get_running_loop().time() - began_at < BUDGET_S + 8
        world.queue.before_end = world.tasks_store.before_deliver = None
        assert world.told() == []
        expected = ("completed", None) if where == "delivery" else ("interrupted", "task.lost")
        assert await reconciled(world, started.task_id) == expected
        assert len(world.told()) == 1

    with caplog.at_level(logging.WARNING):
        run()
    [cut] = [r for r in caplog.records if r.message == "the work of a task was cut by its deadline"]
    assert cut.__dict__["ran_ms"] >= BUDGET_S * 1_000


@pytest.mark.behaviour("TSK-06", "TSK-07", "TSK-08", "TSK-37", "TSK-41")
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_process_that_stops_before_during_or_after_the_tasks_turn_leaves_it_to_a_reconcile(
    when: str,
) -> None:
    @virtual_time
    async def run() -> None:
        world = World()
        reached = asyncio.Event()

        async def hang(*_: Any) -> Any:
            reached.set()
            await for_ever()

        points = Failpoints({"task.owed": hang}) if when == "after" else None
        if when == "during":
            world.executor.on_turn = hang
        async with world.host(failpoints=points) as (tasks, runner):
            if when == "before":
                await runner.aclose()
                reached.set()
            started = await tasks.start(world.parent, instructions="work", mode="spawn")
            await reached.wait()
        assert world.told() == []
        world.executor = ScriptedExecutor()
        expected = ("interrupted", "task.lost") if when == "during" else ("completed", None)
        assert await reconciled(world, started.task_id) == expected
        assert len(world.told()) == 1
        assert len(world.executor.turns) == (1 if when == "before" else 0)

    run()


@pytest.mark.behaviour("TSK-41", "TSK-42")
@virtual_time
async def test_a_reconcile_delivers_and_its_caller_drains() -> None:
    world = World()
    async with world.host() as (tasks, runner):
        await runner.aclose()
        await tasks.start(world.parent, instructions="work", mode="spawn", deadline_in_s=1.0)
    await asyncio.sleep(2.0)
    await world.queue.expire()
    async with world.host() as (tasks, _runner):
        done = await tasks.reconcile(world.parent)
        assert (len(done.delivered), world.executor.reactions) == (1, [])
        await tasks.react(world.parent)
        assert len(world.executor.reactions) == 1
        assert (await world.sessions().view(world.parent)).pending == 0


@pytest.mark.behaviour("TSK-09", "TSK-10")
@virtual_time
async def test_one_task_handed_to_two_runners_runs_once() -> None:
    world = World()
    handed: list[tuple[HandedTask, TaskWork]] = []

    class Noting:
        def run(self, task: HandedTask, work: TaskWork) -> None:
            handed.append((task, work))

    sessions = [world.sessions() for _ in range(2)]
    parent = (await sessions[0].create(OwnerId("o"))).address
    hosts = [HostTasks(one, world.tasks_store, Noting(), world.executor) for one in sessions]
    await hosts[0].start(parent, instructions="work", mode="spawn")
    await hosts[1].reconcile(parent)
    async with InProcessTaskRunner() as runner:
        for task, work in handed:
            runner.run(task, work)
        await idle(runner)
    assert (len(handed), len(world.executor.turns), len(world.executor.reactions)) == (2, 1, 1)
