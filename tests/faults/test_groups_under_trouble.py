"""Groups whose answer is lost, whose line breaks, whose callers go away: each member ends as by a statement of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from producer.dev.torture.links import Link
from shared.database.pool import Database
from shared.domain.errors import StoreBusy
from shared.domain.failpoints import Failpoints
from shared.turns.grouping.postgres import TurnGroups
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import AdmissionLimits, Ended, Opened, Receipt
from tests.faults.crowd import answers, crowd
from tests.faults.world import BOUND_S, admission, outcome, world


@asynccontextmanager
async def link_to(url: str) -> AsyncIterator[Link]:
    link = Link(url)
    await link.open()
    try:
        yield link
    finally:
        await link.close()


BREAKS: dict[str, Callable[[Link], None]] = {
    "its answer is lost": lambda link: link.cut(at_answer=True),
    "it never arrives": lambda link: link.cut(),
}


@pytest.mark.behaviour("API-02", "SES-87")
@pytest.mark.parametrize("how", BREAKS)
async def test_each_member_of_a_group_that_nobody_heard_of_again_is_repeated_by_its_id(
    database_url: str, how: str
) -> None:
    async with world(database_url) as w, link_to(database_url) as link:

        async def break_it() -> None:
            BREAKS[how](link)

        async with crowd(w, url=link.url, failpoints=Failpoints({"group.gathered": break_it})) as one:
            opened, ending, appending = await w.held_turn(), await w.held_turn(), await w.held_turn()
            await w.end(opened)
            await w.admit(opened.session_id)
            opening, fresh = await w.claim(), await w.session()
            told = await answers(
                *await one.together(
                    one.append(appending, "step"), one.end(ending), one.open(opening), one.admit(fresh)
                )
            )
            assert [type(answer) for answer in told] == [int, Ended, Opened, Receipt]
            assert (told[2].result == "adopted") == (how == "its answer is lost")
            assert not told[3].duplicate
            claims = (appending, ending, opening)
            assert [await w.kinds(claim.session_id) for claim in claims] == [
                ["turn.started", "step.started"],
                ["turn.started", "turn.ended"],
                ["turn.started", "turn.ended", "turn.started"],
            ]
            assert await w.statuses(fresh) == ["ready"]


async def test_a_caller_that_is_cancelled_while_it_waits_has_asked_for_nothing(database_url: str) -> None:
    async with world(database_url) as w, crowd(w) as one:
        gone, stays = await w.held_turn(), await w.held_turn()
        told: list[object] = []

        async def asks_and_goes() -> None:
            # The two wait for the same group; it leaves when both are there, or one is there and this one is gone.
            asking = asyncio.create_task(one.append(gone, "step"))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            told.append(asking.cancelled())
            told.append(await one.append(stays, "step"))

        await answers(*await one.together(asks_and_goes()))
        assert told == [True, 2]
        assert await w.kinds(gone.session_id) == ["turn.started"]


async def test_a_caller_that_is_cancelled_after_its_group_left_may_ask_again(database_url: str) -> None:
    """Its outcome is unknown to it, and the same id finds it; the others are answered as if nothing were."""
    committed, told = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        committed.set()
        await told.wait()

    async with world(database_url) as w, crowd(w, failpoints=Failpoints({"group.committed": hold})) as one:
        gone, stays = await w.held_turn(), await w.held_turn()
        cancelled, other = await one.together(one.append(gone, "step"), one.append(stays, "step"))
        async with asyncio.timeout(BOUND_S):
            await committed.wait()
        assert not other.done()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert cancelled.cancelled()
        told.set()
        assert await answers(other) == [2]
        assert await one.append(gone, "step") == 2
        assert await w.kinds(gone.session_id) == ["turn.started", "step.started"]


async def test_a_group_that_gets_no_connection_tells_its_members_so(database_url: str) -> None:
    async with world(database_url) as w:
        sessions = [await w.session() for _ in range(3)]
        database = Database(database_url, connections=1, wait_s=0.1)
        await database.open()
        groups = TurnGroups(database, least=1)
        queue = PostgresTurnQueue(database, groups=groups)
        try:
            async with database.connection("the only one"):
                told = await asyncio.gather(
                    *(outcome(queue.admit(admission(session), AdmissionLimits())) for session in sessions)
                )
            assert [type(answer) for answer in told] == [StoreBusy] * 3
            assert [await w.statuses(session) for session in sessions] == [[]] * 3
        finally:
            await groups.close()
            await database.close()
