"""The lag of an event loop: how it is smoothed, when the loop counts as overloaded, when no more."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.waiting import await_until
from workers.health.loop_load import LoopLoad


@pytest.mark.behaviour("DST-32")
def test_one_long_step_is_no_overload_and_a_second_of_them_is() -> None:
    load = LoopLoad(0.25)
    load.note(0.3, 0.4)
    assert not load.is_overloaded
    for _ in range(5):
        load.note(0.5, 0.6)
    assert load.is_overloaded


@pytest.mark.behaviour("DST-32")
def test_an_overloaded_loop_stays_so_until_its_lag_is_below_half_of_the_bound() -> None:
    load = LoopLoad(0.25)
    load.note(1.0, 1.0)
    while load.lag_s > 0.2:
        load.note(0.0, 0.1)
    assert load.is_overloaded
    while load.lag_s >= 0.125:
        load.note(0.0, 0.1)
    assert not load.is_overloaded


@pytest.mark.behaviour("DST-32")
async def test_a_loop_that_was_blocked_measures_it() -> None:
    load = LoopLoad(0.05)
    measuring = asyncio.create_task(load.measure_for_ever())
    await await_until(lambda: load.beats >= 1, what="a first beat")
    asyncio.get_running_loop().call_soon(time.sleep, 0.5)  # a step of the loop that is too long
    await await_until(lambda: load.is_overloaded, what="the overload")
    await await_until(lambda: not load.is_overloaded, what="the calm after it", within_s=30)
    measuring.cancel()
