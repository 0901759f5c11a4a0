"""The bounded executor: places, lost threads, and what its callers see."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from shared.domain.errors import CallAbandoned
from tests.support.waiting import await_until
from workers.executor import BoundedExecutor

BOUND_S = 10.0
#: A time that a call is meant to outlast.
SHORT_S = 0.01


class Blocker:
    """A blocking call that a test lets go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.let_go.wait(BOUND_S)
        return "late"


async def test_a_call_returns_its_value_and_raises_its_error() -> None:
    executor = BoundedExecutor(2)
    assert await executor.run(divmod, 7, 2, timeout_s=BOUND_S) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await executor.run(divmod, 7, 0, timeout_s=BOUND_S)
    executor.close()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopIteration])
async def test_an_exit_inside_a_call_does_not_end_the_loop(kind: type[BaseException]) -> None:
    def leave() -> None:
        raise kind

    with pytest.raises(RuntimeError, match=kind.__name__):
        await BoundedExecutor(1).run(leave, timeout_s=BOUND_S)


async def test_a_call_sees_the_context_variables_of_its_caller() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("mine")
    assert await BoundedExecutor(1).run(variable.get, timeout_s=BOUND_S) == "mine"


@pytest.mark.behaviour("DST-03")
async def test_more_calls_than_places_wait_for_one() -> None:
    executor = BoundedExecutor(1)
    blocker = Blocker()
    first = asyncio.create_task(executor.run(blocker, timeout_s=BOUND_S))
    await await_until(blocker.begun.is_set)
    second = asyncio.create_task(executor.run(threading.get_ident, timeout_s=BOUND_S))
    await asyncio.sleep(0)
    assert (executor.running, second.done()) == (1, False)
    blocker.let_go.set()
    assert await first == "late"
    await second
    executor.close()


async def test_a_wait_for_a_place_ends_with_the_calls_time() -> None:
    executor = BoundedExecutor(1)
    blocker = Blocker()
    first = asyncio.create_task(executor.run(blocker, timeout_s=BOUND_S))
    await await_until(blocker.begun.is_set)
    with pytest.raises(CallAbandoned, match="no thread was free"):
        await executor.run(threading.get_ident, timeout_s=SHORT_S)
    assert executor.lost == 0
    blocker.let_go.set()
    await first


@pytest.mark.behaviour("DST-31")
async def test_a_call_that_does_not_return_is_abandoned_and_its_place_is_free() -> None:
    executor = BoundedExecutor(1)
    blocker = Blocker()
    with pytest.raises(CallAbandoned):
        await executor.run(blocker, timeout_s=SHORT_S)
    assert (executor.lost, executor.running) == (1, 0)
    assert await executor.run(lambda: "next", timeout_s=BOUND_S) == "next"
    blocker.let_go.set()
    await await_until(lambda: executor.lost == 0)
    assert executor.running == 0


@pytest.mark.behaviour("DST-31")
async def test_too_many_lost_threads_are_reported_once() -> None:
    reports: list[int] = []
    blockers = [Blocker() for _ in range(3)]
    executor = BoundedExecutor(1, lost_max=2, on_exhausted=lambda: reports.append(executor.lost))
    for blocker in blockers:
        with pytest.raises(CallAbandoned):
            await executor.run(blocker, timeout_s=SHORT_S)
    assert reports == [2]
    for blocker in blockers:
        blocker.let_go.set()
    await await_until(lambda: executor.lost == 0)


async def test_a_cancelled_caller_leaves_and_its_call_keeps_the_place_until_it_returns() -> None:
    executor = BoundedExecutor(1)
    blocker = Blocker()
    caller = asyncio.create_task(executor.run(blocker, timeout_s=BOUND_S))
    await await_until(blocker.begun.is_set)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (executor.running, executor.lost) == (1, 0)
    blocker.let_go.set()
    await await_until(lambda: executor.running == 0)
    assert executor.lost == 0


async def test_threads_are_used_again() -> None:
    executor = BoundedExecutor(4)
    threads = {await executor.run(threading.get_ident, timeout_s=BOUND_S) for _ in range(5)}
    assert len(threads) == 1
    executor.close()
    with pytest.raises(CallAbandoned):
        await executor.run(threading.get_ident, timeout_s=BOUND_S)
