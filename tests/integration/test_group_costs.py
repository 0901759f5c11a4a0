"""What sessions that write at once cost together: exact statements and commits, with a barrier instead of a clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psycopg
import pytest

from shared.conformance.turn_stage import commit_id, ended, started, step
from shared.database.counters import UnitCount
from shared.database.pool import Database
from shared.domain.ids import OwnerId, SessionId, WorkerId, new_run_id, new_session_id, new_turn_id
from shared.sessions.log import NewSession
from shared.sessions.postgres import PostgresSessionLog
from shared.turns.grouping.postgres import TurnGroups
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits, Claim, ClaimRequest, Ended, Ending, OnBusy, Receipt
from tests.support.producers import running_producer

OWNER = OwnerId("ann")
SESSIONS = 32
FOR_EVER_S = 3_600.0


@dataclass(slots=True)
class Process:
    """A process whose units of work go in groups."""

    database: Database
    queue: PostgresTurnQueue
    log: PostgresSessionLog

    async def sessions(self, number: int = SESSIONS) -> list[SessionId]:
        return [
            (await self.log.create(NewSession(new_session_id(), OWNER))).session_id for _ in range(number)
        ]

    async def admit(self, session: SessionId, on_busy: OnBusy = "enqueue") -> Receipt:
        wanted = Admission(new_turn_id(), new_run_id(), session, OWNER, {"text": "hello"}, on_busy=on_busy)
        return await self.queue.admit(wanted, AdmissionLimits())

    async def claim(self) -> list[Claim]:
        return list(await self.queue.claim(ClaimRequest(WorkerId("w"), SESSIONS)))

    async def open(self, claim: Claim) -> int:
        return (await self.queue.open(claim, commit_id(claim, "open"), [started(claim)])).seq

    async def append(self, claim: Claim) -> int:
        return await self.queue.append(claim, commit_id(claim, "step"), [step()])

    async def end(self, claim: Claim) -> Ended:
        return await self.queue.end(claim, commit_id(claim, "end"), [ended()], Ending("completed"))

    def spent(self) -> dict[str, tuple[int, int, int, int]]:
        """Return calls, statements, round trips and commits by unit since the last look."""
        counted = self.database.counters.snapshot()
        self.database.counters.reset()
        return {unit: costs(count) for unit, count in counted.items()}


def costs(count: UnitCount) -> tuple[int, int, int, int]:
    return count.calls, count.statements, count.round_trips, count.commits


@asynccontextmanager
async def process(url: str, *, members_max: int = 64) -> AsyncIterator[Process]:
    database = Database(url, connections=4)
    await database.open()
    groups = TurnGroups(database, members_max=members_max, wait_s=FOR_EVER_S)
    try:
        yield Process(database, PostgresTurnQueue(database, groups=groups), PostgresSessionLog(database))
        await groups.close()
    finally:
        await database.close()


def commits_of(database_url: str) -> int:
    """Return how many transactions of the turn queue wrote anything: those that the rows of its sessions name."""
    with psycopg.connect(database_url) as connection:
        [row] = connection.execute("SELECT count(DISTINCT xmin::text) FROM turns").fetchall()
        return int(row[0])


async def test_sessions_that_move_at_once_share_one_commit_for_each_move(database_url: str) -> None:
    async with process(database_url) as p:
        sessions = await p.sessions()
        p.spent()
        await asyncio.gather(*map(p.admit, sessions))
        assert p.spent() == {"turn.admit": (32, 0, 0, 0), "turn.group": (1, 1, 1, 1)}
        assert commits_of(database_url) == 1
        claims = await p.claim()
        assert p.spent() == {"turn.claim": (1, 1, 1, 1)}
        assert await asyncio.gather(*map(p.open, claims)) == [1] * SESSIONS
        assert p.spent() == {"turn.open": (32, 0, 0, 0), "turn.group": (1, 1, 1, 1)}
        assert await asyncio.gather(*map(p.append, claims)) == [2] * SESSIONS
        assert p.spent() == {"turn.append": (32, 0, 0, 0), "turn.group": (1, 1, 1, 1)}
        assert [done.seq for done in await asyncio.gather(*map(p.end, claims))] == [3] * SESSIONS
        assert p.spent() == {"turn.end": (32, 0, 0, 0), "turn.group": (1, 1, 1, 1)}
        assert commits_of(database_url) == 1


async def test_a_producers_admissions_wait_for_nobody_while_one_statement_is_under_way(
    database_url: str,
) -> None:
    async with running_producer(database_url, group_wait_s=FOR_EVER_S) as producer:
        parts = producer.parts
        assert isinstance(parts.queue, PostgresTurnQueue)
        p = Process(parts.database, parts.queue, PostgresSessionLog(parts.database))
        held, *sessions = await p.sessions()
        p.spent()
        with psycopg.connect(database_url) as blocker:
            blocker.execute("SELECT FROM sessions WHERE id = %s FOR UPDATE", [held])
            first = asyncio.create_task(p.admit(held))
            for _ in range(3):  # it begins, the loop's turn ends, its statement leaves
                await asyncio.sleep(0)
            await asyncio.gather(*map(p.admit, sessions))
            assert not first.done()
        await first
        spent = p.spent()
        # 31 of them, at most 16 a group.
        assert (spent["turn.admit"], spent["turn.group"]) == ((32, 1, 1, 1), (2, 2, 2, 2))
        assert commits_of(database_url) == 3


async def test_units_of_work_of_every_kind_share_a_group(database_url: str) -> None:
    async with process(database_url) as p:
        held = await p.sessions(3)
        for session in held:
            await p.admit(session)
        opening, appending, ending = await p.claim()
        await p.open(appending)
        await p.open(ending)
        first, admitted = await p.sessions(2)
        p.spent()
        await asyncio.gather(
            p.admit(first), p.admit(admitted), p.open(opening), p.append(appending), p.end(ending)
        )
        assert p.spent() == {
            "turn.admit": (2, 0, 0, 0),
            "turn.open": (1, 0, 0, 0),
            "turn.append": (1, 0, 0, 0),
            "turn.end": (1, 0, 0, 0),
            "turn.group": (1, 1, 1, 1),
        }


async def test_a_session_has_one_unit_of_work_in_a_group_and_keeps_its_order(database_url: str) -> None:
    async with process(database_url) as p:
        first, second, third = await p.sessions(3)
        asked = [first, second, second, third, second]
        receipts = await asyncio.gather(*map(p.admit, asked))
        assert [receipt.position for receipt in receipts] == [1, 1, 2, 1, 3]
        spent = p.spent()
        # The first of each; then the second's others one by one, by statements of their own.
        assert spent["turn.group"] == (1, 1, 1, 1)
        assert spent["turn.admit"] == (5, 2, 2, 2)


async def test_turns_that_make_others_way_go_by_themselves(database_url: str) -> None:
    async with process(database_url) as p:
        sessions = await p.sessions(4)
        p.spent()
        await asyncio.gather(*(p.admit(session, "interrupt") for session in sessions))
        assert p.spent() == {"turn.admit": (4, 4, 4, 4)}


async def test_groups_of_one_are_switched_off(database_url: str) -> None:
    async with process(database_url, members_max=1) as p:
        sessions = await p.sessions(8)
        p.spent()
        await asyncio.gather(*map(p.admit, sessions))
        assert p.spent() == {"turn.admit": (8, 8, 8, 8)}


@pytest.mark.parametrize("text", ["x" * 70_000, "a\u0000b", "\ud800"])
async def test_what_a_group_cannot_carry_goes_by_itself(database_url: str, text: str) -> None:
    """Its own statement stores it, or says what is wrong with it, and the others are none the wiser."""
    async with process(database_url) as p:
        odd, plain = await p.sessions(2)
        wanted = Admission(new_turn_id(), new_run_id(), odd, OWNER, {"text": "hello"}, agent=text)
        p.spent()
        answer, receipt = await asyncio.gather(
            p.queue.admit(wanted, AdmissionLimits()),
            p.admit(plain),
            return_exceptions=True,
        )
        assert isinstance(receipt, Receipt)
        assert isinstance(answer, Receipt) == (len(text) > 3), answer
        assert "turn.group" not in p.spent()
