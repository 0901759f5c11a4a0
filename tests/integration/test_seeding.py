"""Seeded history is the product's own: every log verifies, every row is finished, and work goes on behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.growth.run import LIVE, Turns
from benchmarks.seeding.history import SeededTurn, brief_turn, one_step_turn
from benchmarks.seeding.postgres import Seed, seed
from benchmarks.seeding.sides import Side
from benchmarks.sweep.run import LOST, UNRUNG, Upkeep
from shared.database.pool import Database
from shared.domain.ids import WorkerId
from shared.sessions.postgres import PostgresSessionLog
from shared.sessions.records import verify_log
from shared.sessions.vocabulary import journal_schema_of, read_stored
from shared.turns.queue import ClaimRequest

TURNS_EACH = 7


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = Database(url, connections=1)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


@pytest.mark.parametrize("turn", [brief_turn("hello"), one_step_turn("hello")], ids=["brief", "one step"])
async def test_every_seeded_log_verifies_and_every_record_decodes(
    database_url: str, turn: SeededTurn
) -> None:
    wanted = Seed(turn=turn, sessions=5, turns_each=TURNS_EACH, owners=2)
    await seed(database_url, wanted)
    async with opened(database_url) as database:
        log = PostgresSessionLog(database)
        for number in range(1, wanted.sessions + 1):
            session = wanted.session_id(number)
            head = await log.head(session, wanted.owner_id(number))
            records = await log.read(session)
            assert (head.turns, head.open, len(records)) == (TURNS_EACH, None, TURNS_EACH * len(turn.drafts))
            verify_log(session, records, seq=head.seq, tail=head.tail)
            for record in records:
                schema = journal_schema_of(record.kind)
                assert schema is not None
                read_stored(schema, record)
            started = {record.data["turn_id"] for record in records if record.kind == "turn.started"}
            assert len(started) == TURNS_EACH


async def test_turns_go_on_behind_what_was_seeded(database_url: str) -> None:
    async with side_of(database_url, sessions=3) as side:
        [place] = side.places(1)
        await side.admit(*place)
        [claim] = await side.queue.claim(ClaimRequest(WorkerId("w"), 5))
        assert claim.session_id == side.seeded.session_id(3)
        await side.open_turn(claim)
        spent = await side.spent(lambda: side.end_turn(claim))
        assert spent.pages > 0
        turn = await side.queue.get(claim.turn_id, claim.owner)
        assert (turn.number, turn.outcome) == (2, "completed")


async def test_every_sweep_of_the_benchmark_finds_the_same_owed(database_url: str) -> None:
    async with side_of(database_url, sessions=LOST + UNRUNG) as side:
        upkeep = Upkeep(side)
        await upkeep.set_scene()
        for _ in range(3):
            await upkeep.lose_turns()
            await upkeep.sweep()
        assert upkeep.repaired == {
            **dict.fromkeys(upkeep.repaired, 0),
            "turns.reap": 3 * LOST,
            "turns.ring": 3,
        }


async def test_turns_of_the_growth_benchmark_leave_nothing_owed(database_url: str) -> None:
    async with side_of(database_url, sessions=LIVE) as side:
        turns = Turns(side)
        for _ in range(3):
            await turns.take_turn()
        assert (len(turns.admits), len(turns.claims)) == (3, 3)
        assert await side.queue.claim(ClaimRequest(WorkerId("w"), 5)) == []
        assert await side.queue.count_waiting(10) == 0


@asynccontextmanager
async def side_of(url: str, *, sessions: int) -> AsyncIterator[Side]:
    wanted = Seed(turn=brief_turn("hello"), sessions=sessions, turns_each=1, owners=2)
    await seed(url, wanted)
    side = await Side.open(url, url.rsplit("/", 1)[1], wanted)
    try:
        yield side
    finally:
        await side.close()
