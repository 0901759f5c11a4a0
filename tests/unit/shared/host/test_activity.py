"""What a process has in flight, and waiting until it is idle."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from shared.domain.ids import SessionId
from shared.host.activity import CountedTurns, ProcessActivity, await_idle, process_activity
from tests.support.virtual_time import virtual_time

HERE = SessionId("ses_1")


@dataclass
class Tasks:
    running: int = 0


@pytest.mark.behaviour("SHD-12", "SHD-13", "SHD-08")
@virtual_time
async def test_activity_adds_up_what_the_ports_of_a_process_count() -> None:
    assert process_activity() == ProcessActivity(0, 0, 0)
    assert not process_activity().busy
    first, second = CountedTurns(), CountedTurns()
    with first.beginning(), second.open(HERE, 1), second.open(HERE, 2):
        assert process_activity(first) == ProcessActivity(0, 1, 0)
        assert process_activity([first, second], Tasks(3)) == ProcessActivity(2, 1, 3)
        assert process_activity(first).busy
    assert process_activity([first, second]) == ProcessActivity(0, 0, 0)
    assert process_activity(None, Tasks(1)).busy


@pytest.mark.behaviour("SHD-04")
@virtual_time
async def test_turns_are_counted_oldest_first_each_since_it_opened() -> None:
    turns = CountedTurns()
    with turns.open(HERE, 1), turns.open(HERE, 2):
        first, second = turns.current.open
        assert (first.turn, second.turn) == (1, 2)
        assert first.since <= second.since


@pytest.mark.behaviour("SHD-14")
@virtual_time
async def test_a_wait_ends_once_nothing_is_in_flight_at_one_moment() -> None:
    turns, tasks = CountedTurns(), Tasks(1)

    async def work() -> None:
        with turns.open(HERE, 1):
            await asyncio.sleep(5)
            with turns.beginning():  # overlaps the turn's end: there is no idle moment between
                await asyncio.sleep(5)
                tasks.running = 1
        await asyncio.sleep(5)
        tasks.running = 0

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    tasks.running = 0
    idle = await await_idle(lambda: process_activity(turns, tasks), timeout=60)
    assert working.done() and idle == ProcessActivity(0, 0, 0)
    assert asyncio.get_running_loop().time() < 16


@pytest.mark.behaviour("SHD-16")
@virtual_time
async def test_at_the_timeout_a_wait_answers_what_is_left() -> None:
    turns = CountedTurns()
    with turns.open(HERE, 1), turns.beginning():
        left = await await_idle(lambda: process_activity(turns, Tasks(2)), timeout=25)
        assert (left, left.busy) == (ProcessActivity(1, 1, 2), True)
        assert asyncio.get_running_loop().time() == pytest.approx(25)
    assert not (await await_idle(lambda: process_activity(turns), timeout=0)).busy
