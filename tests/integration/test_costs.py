"""What each unit of work costs, exactly: statements, round trips and commits, counted by the process and by the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import pytest

from shared.conformance.turn_stage import commit_id, ended, fences, seen, started, step
from shared.database.counters import UnitCount
from shared.database.pool import Database
from shared.domain.ids import OwnerId, SessionId, WorkerId, new_run_id, new_session_id, new_turn_id
from shared.inbox.port import Delivery
from shared.inbox.postgres import PostgresInbox
from shared.sessions.log import NewSession
from shared.sessions.postgres import PostgresSessionLog
from shared.sessions.records import draft
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits, Claim, ClaimRequest, Ending

OWNER = OwnerId("ann")
WORKER = WorkerId("w1")
#: A unit of work that writes: one statement, one round trip, one commit. One that only reads: no commit.
WRITE = (1, 1, 1, 1)
READ = (1, 1, 1, 0)


@dataclass(slots=True)
class Process:
    """The adapters of one process over one counted pool."""

    database: Database
    queue: PostgresTurnQueue
    log: PostgresSessionLog

    async def session(self) -> SessionId:
        return (await self.log.create(NewSession(new_session_id(), OWNER))).session_id

    async def admit(self, session: SessionId) -> None:
        wanted = Admission(new_turn_id(), new_run_id(), session, OWNER, {"text": "hello"}, key="k")
        await self.queue.admit(wanted, AdmissionLimits())

    async def claim(self, places: int = 1) -> list[Claim]:
        return list(await self.queue.claim(ClaimRequest(WORKER, places)))

    async def open_turn(self) -> Claim:
        await self.admit(await self.session())
        [claim] = await self.claim()
        await self.queue.open(claim, commit_id(claim, "open"), [started(claim)])
        return claim

    def spent(self) -> Mapping[str, tuple[int, int, int, int]]:
        """Return calls, statements, round trips and commits by unit since the last look."""
        counted = self.database.counters.snapshot()
        self.database.counters.reset()
        return {unit: costs(count) for unit, count in counted.items()}


def costs(count: UnitCount) -> tuple[int, int, int, int]:
    return count.calls, count.statements, count.round_trips, count.commits


@asynccontextmanager
async def process(url: str, *, connections: int = 2) -> AsyncIterator[Process]:
    """Open one process's adapters."""
    database = Database(url, connections=connections)
    await database.open()
    try:
        yield Process(database, PostgresTurnQueue(database), PostgresSessionLog(database))
    finally:
        await database.close()


@pytest.mark.behaviour("API-20")
async def test_admission_is_one_statement_one_round_trip_and_one_commit(database_url: str) -> None:
    async with process(database_url) as p:
        session = await p.session()
        p.spent()
        await p.admit(session)
        assert p.spent() == {"turn.admit": WRITE}


async def test_a_delivery_is_one_statement_one_round_trip_and_one_commit_also_when_it_is_repeated(
    database_url: str,
) -> None:
    async with process(database_url) as p:
        session, inbox = await p.session(), PostgresInbox(p.database)
        p.spent()
        for item in ("a", "b", "a"):
            await inbox.deliver(Delivery(session, OWNER, item, "test", "hello"))
        await inbox.waiting(session, OWNER)
        assert p.spent() == {"inbox.deliver": (3, 3, 3, 3), "inbox.waiting": READ}


async def test_lone_one_step_turn_is_four_commits_of_one_round_trip_each(database_url: str) -> None:
    async with process(database_url) as p:
        session = await p.session()
        p.spent()
        await p.admit(session)
        [claim] = await p.claim()
        header = draft("request.prepared", {"v": 1})
        await p.queue.open(claim, commit_id(claim, "open"), [started(claim), header], title="hello")
        reply = draft("turn.reply", {"v": 1, "outcome": "completed", "text": "hi"})
        await p.queue.end(claim, commit_id(claim, "end"), [reply, ended()], Ending("completed"))
        assert p.spent() == {unit: WRITE for unit in ("turn.admit", "turn.claim", "turn.open", "turn.end")}


async def test_other_moves_of_a_turn_are_one_statement_each(database_url: str) -> None:
    async with process(database_url) as p:
        claim = await p.open_turn()
        p.spent()
        await p.queue.append(claim, commit_id(claim, "a"), [step()], stepped=True)
        await p.queue.renew(fences(claim), 60.0)
        await p.queue.release(claim.turn_id, claim.fence)
        await p.queue.cancel(claim.turn_id, OWNER)
        await p.queue.seen(seen(WORKER))
        units = ("turn.append", "turn.renew", "turn.release", "turn.cancel", "worker.seen")
        assert p.spent() == {unit: WRITE for unit in units}


async def test_reads_and_polls_are_one_statement_and_commit_nothing(database_url: str) -> None:
    async with process(database_url) as p:
        claim = await p.open_turn()
        p.spent()
        await p.queue.get(claim.turn_id, OWNER)
        await p.queue.watch(WORKER, fences(claim))
        await p.queue.has_overdue("turns", 1.0)
        await p.queue.reap()
        await p.queue.expire()
        units = ("turn.get", "turn.watch", "turn.overdue", "turn.reap.find", "turn.expire.find")
        assert p.spent() == {unit: READ for unit in units}


async def test_fifty_turns_are_claimed_renewed_and_watched_by_one_statement_each(database_url: str) -> None:
    async with process(database_url) as p:
        for _ in range(50):
            await p.admit(await p.session())
        p.spent()
        claims = await p.claim(places=50)
        assert len(claims) == 50
        assert len((await p.queue.renew(fences(*claims), 60.0)).renewed) == 50
        await p.queue.watch(WORKER, fences(*claims))
        assert p.spent() == {"turn.claim": WRITE, "turn.renew": WRITE, "turn.watch": READ}


async def test_whole_turn_is_four_round_trips_on_the_wire(database_url: str, tmp_path: Path) -> None:
    wire = tmp_path / "wire"
    async with process(database_url, connections=1) as p:
        # A connection prepares a statement at its third use, which is a round trip of its own, once.
        for _ in range(3):
            await run_turn(p, await p.session())
        session = await p.session()
        with wire.open("w") as log:
            async with p.database.connection("look") as connection:
                connection.pgconn.trace(log.fileno())
            await run_turn(p, session)
            async with p.database.connection("look") as connection:
                connection.pgconn.untrace()
    assert wire.read_text().count("ReadyForQuery") == 4


async def test_what_one_operation_changes_is_changed_by_one_transaction(database_url: str) -> None:
    async with process(database_url) as p:
        session = await p.session()
        await p.admit(session)
        assert await writers(p, ADMITTED, session) == 1
        [claim] = await p.claim()
        await p.queue.open(claim, commit_id(claim, "open"), [started(claim)])
        assert await writers(p, OPENED, session) == 1
        later = Admission(new_turn_id(), new_run_id(), session, OWNER, {"text": "later"})
        await p.queue.admit(later, AdmissionLimits())
        ending = await p.queue.end(claim, commit_id(claim, "end"), [ended()], Ending("completed"))
        assert ending.promoted == later.turn_id
        assert await writers(p, OPENED, session) == 1


#: The transactions that wrote a session's newest record, its head, and its turns.
OPENED = """SELECT xmin FROM sessions WHERE id = %(id)s UNION SELECT xmin FROM turns WHERE session_id = %(id)s
  UNION (SELECT xmin FROM records WHERE session_id = %(id)s ORDER BY seq DESC LIMIT 1)"""
ADMITTED = """SELECT xmin FROM sessions WHERE id = %(id)s UNION SELECT xmin FROM turns WHERE session_id = %(id)s
  UNION SELECT xmin FROM session_keys WHERE session_id = %(id)s"""


async def writers(p: Process, sql: LiteralString, session: SessionId) -> int:
    """Return how many transactions wrote what the query finds."""
    async with p.database.connection("look") as connection:
        cursor = await connection.execute(sql, {"id": session})
        return len(await cursor.fetchall())


async def run_turn(p: Process, session: SessionId) -> None:
    """Run a lone turn: admit, claim, open, end."""
    await p.admit(session)
    [claim] = await p.claim()
    await p.queue.open(claim, commit_id(claim, "open"), [started(claim)])
    await p.queue.end(claim, commit_id(claim, "end"), [ended()], Ending("completed"))
