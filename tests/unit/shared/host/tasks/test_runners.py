"""The runners: what the deadline itself cuts is logged, a closed one takes nothing, the queued one only rings."""

from __future__ import annotations

import asyncio
import logging

import pytest

from shared.domain.ids import OwnerId, TurnId, new_session_id, new_turn_id
from shared.host.activity import process_activity
from shared.host.port import SessionAddress
from shared.host.tasks.deadlines import Deadline
from shared.host.tasks.port import HandedTask
from shared.host.tasks.runners import InProcessTaskRunner, QueuedTaskRunner
from tests.support.virtual_time import virtual_time


def handed() -> HandedTask:
    return HandedTask(SessionAddress(new_session_id(), OwnerId("o")), new_session_id(), new_turn_id())


async def for_ever(deadline: Deadline) -> None:
    await asyncio.Event().wait()


@pytest.mark.behaviour("TSK-28", "TSK-31")
def test_work_that_the_deadline_itself_cuts_is_logged_with_the_task_and_how_long_it_ran(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = handed()

    @virtual_time
    async def run() -> None:
        async with InProcessTaskRunner(budget_s=10.0) as runner:
            runner.run(task, for_ever)
            await asyncio.sleep(9.9)
            assert runner.running == 1
            await asyncio.sleep(0.2)
            assert runner.running == 0

    with caplog.at_level(logging.WARNING):
        run()
    [record] = [r for r in caplog.records if r.message == "the work of a task was cut by its deadline"]
    assert (record.__dict__["task"], record.__dict__["ran_ms"]) == (task.task_id, 10_000)


@pytest.mark.behaviour("TSK-28")
@virtual_time
async def test_the_deadline_is_the_budget_from_the_hand_over() -> None:
    deadlines: list[Deadline] = []

    async def note(deadline: Deadline) -> None:
        deadlines.append(deadline)

    await asyncio.sleep(5.0)
    async with InProcessTaskRunner(budget_s=10.0, closing_reserve_ms=500) as runner:
        runner.run(handed(), note)
        await asyncio.sleep(0.1)
    assert deadlines == [Deadline(15.0, 14.5)]


@pytest.mark.behaviour("TSK-08")
@virtual_time
async def test_a_runner_that_closed_takes_no_task() -> None:
    runner = InProcessTaskRunner()
    await runner.aclose()
    runner.run(handed(), for_ever)
    assert runner.running == 0


@pytest.mark.behaviour("TSK-08", "SHD-10", "SHD-11")
@virtual_time
async def test_the_runners_work_makes_its_process_busy() -> None:
    async with InProcessTaskRunner() as runner:
        runner.run(handed(), for_ever)
        assert process_activity(tasks=runner.activity).running_tasks == 1
    assert not process_activity(tasks=runner.activity).busy


@pytest.mark.behaviour("TSK-31")
def test_a_timeout_of_the_hosts_own_is_a_failure_and_no_cut(caplog: pytest.LogCaptureFixture) -> None:
    @virtual_time
    async def run() -> None:
        async def times_out(deadline: Deadline) -> None:
            raise TimeoutError("the host's own")

        async with InProcessTaskRunner(budget_s=10.0) as runner:
            runner.run(handed(), times_out)
            await asyncio.sleep(0.1)

    with caplog.at_level(logging.WARNING):
        run()
    assert [r.message for r in caplog.records] == ["the work of a task failed: TimeoutError: the host's own"]


@pytest.mark.behaviour("TSK-07", "TSK-09", "SHD-11")
def test_the_queued_runner_rings_for_the_tasks_turn_and_runs_nothing() -> None:
    rung: list[TurnId] = []
    task = handed()
    QueuedTaskRunner(rung.extend).run(task, for_ever)
    assert rung == [task.turn_id]
