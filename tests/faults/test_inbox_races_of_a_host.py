"""Deliveries that race what ends a turn, on real Postgres: nothing waits unnoticed, and nothing is answered twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from shared.domain.errors import SessionBusy
from shared.host.port import Drained, NewTurn, SessionAddress, TurnWriter
from shared.host.sessions import HostSessions
from shared.inbox.postgres import PostgresInbox
from shared.turns.queue import Ending
from tests.faults.world import OWNER, World, world

ROUNDS = 1_000
SIDE_BY_SIDE = 4
TURN = NewTurn({"text": "hello"})
COMPLETED = Ending("completed")


def sessions_of(w: World) -> HostSessions:
    return HostSessions(w.log, w.queue, inbox=PostgresInbox(w.database))


async def new_address(sessions: HostSessions) -> SessionAddress:
    return (await sessions.create(OWNER)).address


@pytest.mark.behaviour("INB-31", "INB-30", "INB-28", "INB-29", "INB-34")
async def test_a_thousand_deliveries_beside_a_closing_commit_are_counted_by_it_or_find_the_session_free(
    database_url: str,
) -> None:
    found: Counter[str] = Counter()

    async def rounds(w: World, seed: int) -> None:
        here, there, draw = sessions_of(w), sessions_of(w), random.Random(seed)
        address = await new_address(here)
        answered: list[str] = []

        async def take(writer: TurnWriter) -> None:
            answered.extend(writer.admitted.claimed)

        for n in range(ROUNDS // SIDE_BY_SIDE):
            async with here.begin(address, TURN) as writer:

                async def end(writer: TurnWriter = writer) -> int:
                    await asyncio.sleep(draw.random() / 500)
                    return (await writer.end(COMPLETED)).pending

                async def deliver(n: int = n) -> bool:
                    await asyncio.sleep(draw.random() / 500)
                    told = await there.deliver(address, id=f"{n}", source="race", content=f"{n}")
                    return told.turn_id is not None

                pending, is_free = await asyncio.gather(end(), deliver())
            assert (pending, is_free) in ((1, False), (0, True)), f"round {n} of {seed}"
            found["before" if pending else "after"] += 1
            ready = "SELECT 1 FROM turns WHERE session_id = %s AND origin = 'inbox' AND status = 'ready'"
            assert len(await w.rows(ready, address.id)) == 1
            assert await here.drain(address, take) == Drained(1, 0, "empty")
            assert answered[-1] == f"{n}" and len(answered) == n + 1

    async with world(database_url, connections=8) as w:
        await asyncio.gather(*(rounds(w, seed) for seed in range(SIDE_BY_SIDE)))
        assert await w.rows("SELECT 1 FROM inbox_items") == []
        assert await w.rows("SELECT 1 FROM sessions WHERE inbox_waiting <> 0") == []
    assert sum(found.values()) == ROUNDS and len(found) == 2


@pytest.mark.behaviour("INB-02", "INB-07", "INB-31")
async def test_drains_and_deliveries_of_four_instances_answer_each_item_once(database_url: str) -> None:
    async with world(database_url, connections=8) as w:
        instances = [sessions_of(w) for _ in range(4)]
        address = await new_address(instances[0])
        answered: list[str] = []

        async def take(writer: TurnWriter) -> None:
            await asyncio.sleep(0.001)
            answered.extend(writer.admitted.claimed)

        async def work(who: int) -> None:
            for n in range(15):
                await instances[who].deliver(address, id=f"{who}:{n}", source="race", content="x")
                await instances[who].drain(address, take)
                if n % 5 == 4:
                    try:
                        async with instances[who].begin(address, TURN) as writer:
                            await writer.end(COMPLETED)
                    except SessionBusy:
                        pass

        await asyncio.gather(*(work(who) for who in range(4)))
        while (await instances[0].drain(address, take)).pending:
            pass
        assert sorted(answered) == sorted(f"{who}:{n}" for who in range(4) for n in range(15))
        assert (await instances[0].view(address)).pending == 0
        await w.records(address.id)  # verified against its head


@pytest.mark.behaviour("INB-20", "INB-28", "INB-30")
async def test_what_a_drains_turns_could_not_take_is_found_later(database_url: str) -> None:
    async with world(database_url) as w:
        here, there = sessions_of(w), sessions_of(w)
        address = await new_address(here)
        await here.deliver(address, id="0", source="race", content="x")
        answered: list[str] = []

        async def run(writer: TurnWriter) -> None:
            answered.extend(writer.admitted.claimed)
            await there.deliver(address, id=f"{len(answered)}", source="race", content="x")

        assert await here.drain(address, run) == Drained(3, 1, "max_turns")
        # The fourth waits in a row that any worker would claim, or any drain takes.
        claim = await w.claim("w1")
        assert (claim.session_id, claim.origin) == (address.id, "inbox")
        assert await w.queue.release(claim.turn_id, claim.fence)
        assert (await there.drain(address, run, max_turns=1)).turns == 1
        assert answered == ["0", "1", "2", "3"]
