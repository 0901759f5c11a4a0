"""What a host's admission may do, and what the caller gets for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shared.domain.errors import SessionBusy, TurnRefused
from shared.domain.ids import OwnerId, new_run_id, new_session_id, new_turn_id
from shared.turns.admission import ADMISSION_MAX_S, TurnToAdmit
from shared.turns.hooked import admit_through, turn_to_admit
from shared.turns.inproc.admission import NoTransaction
from shared.turns.queue import Admission
from shared.turns.waiting import WaitingTotal
from tests.support.virtual_time import virtual_time

Hook = Callable[[TurnToAdmit, Callable[[], Awaitable[None]]], Awaitable[None]]


class Host:
    """A hook made of a function."""

    def __init__(self, body: Hook) -> None:
        self._body = body

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        await self._body(turn, proceed)


def turn() -> TurnToAdmit:
    made = Admission(new_turn_id(), new_run_id(), new_session_id(), OwnerId("ann"), {"text": "x"})
    return turn_to_admit(made, "admit", NoTransaction())


class Store:
    """Counts how often the turn was stored."""

    def __init__(self, error: Exception | None = None) -> None:
        self.stored = 0
        self._error = error

    async def __call__(self) -> None:
        if self._error is not None:
            raise self._error
        self.stored += 1


@virtual_time
@pytest.mark.behaviour("SES-136")
async def test_a_host_that_takes_too_long_refuses_the_turn() -> None:
    async def dwell(turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        await proceed()
        await asyncio.sleep(ADMISSION_MAX_S + 1)

    with pytest.raises(TurnRefused) as refused:
        await admit_through(Host(dwell), turn(), Store())
    assert refused.value.fields["reason"] == "timeout"


async def test_a_timeout_of_the_host_s_own_is_its_own_error() -> None:
    async def fail(turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        raise TimeoutError("my quota service")

    with pytest.raises(TimeoutError, match="my quota service"):
        await admit_through(Host(fail), turn(), Store())


@pytest.mark.behaviour("SES-132")
async def test_a_turn_is_stored_once_however_often_the_host_proceeds() -> None:
    async def eager(turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        for _ in range(3):
            await proceed()

    store = Store()
    await admit_through(Host(eager), turn(), store)
    assert store.stored == 1


@pytest.mark.behaviour("SES-135")
async def test_what_the_store_refused_with_wins_over_what_the_host_raises_then() -> None:
    async def wrap(turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        try:
            await proceed()
        except SessionBusy as error:
            raise RuntimeError("my own way to say so") from error

    with pytest.raises(SessionBusy):
        await admit_through(Host(wrap), turn(), Store(SessionBusy("busy")))


@virtual_time
@pytest.mark.behaviour("DST-16")
async def test_what_waits_in_all_is_counted_again_each_second_and_never_past_the_bound() -> None:
    answers, asked = iter([1, 3, 2]), []

    async def count(limit: int) -> int:
        asked.append(limit)
        return next(answers)

    total = WaitingTotal(count, bound=3)
    counting = asyncio.create_task(total.count_for_ever())
    seen = []
    for _ in range(3):
        await asyncio.sleep(0.5)
        seen.append(total.is_full)
        await asyncio.sleep(0.5)
    counting.cancel()
    assert (seen, set(asked)) == ([False, True, False], {3})
