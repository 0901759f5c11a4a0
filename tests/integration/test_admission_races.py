"""Races of creations and admissions over two processes' pools, and how claims share out what was admitted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from shared.conformance.check import outcomes
from shared.database.pool import Database
from shared.domain.errors import KeyConflict, SessionBusy
from shared.domain.ids import OwnerId, SessionId, WorkerId, new_run_id, new_session_id, new_turn_id
from shared.sessions.log import Created, NewSession
from shared.sessions.postgres import PostgresSessionLog
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits, ClaimRequest, Receipt

OWNER = OwnerId("ann")
LIMITS = AdmissionLimits()


@asynccontextmanager
async def replicas(url: str, count: int = 2) -> AsyncIterator[Sequence[Database]]:
    """Open the pools of several producers over one database."""
    async with AsyncExitStack() as stack:
        opened = []
        for n in range(count):
            database = Database(url, connections=5, wait_s=10.0, name=f"producer {n}")
            await database.open()
            stack.push_async_callback(database.close)
            opened.append(database)
        yield opened


async def new_session(database: Database, owner: OwnerId = OWNER) -> SessionId:
    return (await PostgresSessionLog(database).create(NewSession(new_session_id(), owner))).session_id


def admission(
    session: SessionId, text: str = "hello", *, owner: OwnerId = OWNER, key: str | None = None
) -> Admission:
    """Return an admission with ids of its own, as each request to a producer mints them."""
    return Admission(new_turn_id(), new_run_id(), session, owner, {"text": text}, key=key)


async def admit_all(databases: Sequence[Database], wanted: Sequence[Admission]) -> list[object]:
    """Admit all at once, each by the next producer; return every answer or typed error."""
    queues = [PostgresTurnQueue(database) for database in databases]
    return await outcomes([queues[n % len(queues)].admit(one, LIMITS) for n, one in enumerate(wanted)])


async def statuses(database: Database, session: SessionId) -> list[tuple[int, str]]:
    async with database.connection("look") as connection:
        cursor = await connection.execute(
            "SELECT position, status FROM turns WHERE session_id = %s ORDER BY position", (session,)
        )
        return [(row["position"], row["status"]) for row in await cursor.fetchall()]


@pytest.mark.behaviour("API-03")
async def test_twenty_equal_admissions_on_two_producers_get_one_receipt(database_url: str) -> None:
    async with replicas(database_url) as databases:
        session = await new_session(databases[0])
        answers = await admit_all(databases, [admission(session, key="k") for _ in range(20)])
        receipts = [answer for answer in answers if isinstance(answer, Receipt)]
        assert len(receipts) == 20
        assert len({(r.turn_id, r.run_id, r.position, r.after) for r in receipts}) == 1
        assert [r.duplicate for r in receipts].count(False) == 1
        assert await statuses(databases[0], session) == [(1, "ready")]


@pytest.mark.behaviour("API-03")
async def test_one_key_with_two_contents_admits_one_of_them(database_url: str) -> None:
    async with replicas(database_url) as databases:
        session = await new_session(databases[0])
        wanted = [admission(session, text, key="k") for text in ("one", "two") * 10]
        answers = await admit_all(databases, wanted)
        receipts = [n for n, answer in enumerate(answers) if isinstance(answer, Receipt)]
        conflicts = [n for n, answer in enumerate(answers) if isinstance(answer, KeyConflict)]
        # All of one content, none of the other.
        assert {n % 2 for n in receipts} != {n % 2 for n in conflicts}
        assert (len(receipts), len(conflicts)) == (10, 10)
        assert await statuses(databases[0], session) == [(1, "ready")]


async def test_repeats_of_one_request_without_a_key_are_one_turn(database_url: str) -> None:
    async with replicas(database_url) as databases:
        session = await new_session(databases[0])
        answers = await admit_all(databases, [admission(session)] * 20)
        assert {answer.duplicate for answer in answers if isinstance(answer, Receipt)} == {False}
        assert await statuses(databases[0], session) == [(1, "ready")]


async def test_concurrent_admissions_of_one_session_take_dense_positions_and_one_is_ready(
    database_url: str,
) -> None:
    async with replicas(database_url) as databases:
        session = await new_session(databases[0])
        answers = await admit_all(databases, [admission(session) for _ in range(50)])
        receipts = [answer for answer in answers if isinstance(answer, Receipt)]
        assert sorted(receipt.position for receipt in receipts) == list(range(1, 51))
        stored = await statuses(databases[0], session)
        assert stored == [(n, "ready" if n == 1 else "queued") for n in range(1, 51)]


async def test_of_concurrent_rejecting_admissions_exactly_one_is_admitted(database_url: str) -> None:
    async with replicas(database_url) as databases:
        session = await new_session(databases[0])
        wanted = [replace(admission(session), on_busy="reject") for _ in range(20)]
        answers = await admit_all(databases, wanted)
        assert sum(isinstance(answer, Receipt) for answer in answers) == 1
        assert sum(isinstance(answer, SessionBusy) for answer in answers) == 19
        assert await statuses(databases[0], session) == [(1, "ready")]


async def test_sixteen_creations_with_one_key_make_one_session(database_url: str) -> None:
    async with replicas(database_url) as databases:
        logs = [PostgresSessionLog(database) for database in databases]
        new = [NewSession(new_session_id(), OWNER, key="one", title="a") for _ in range(16)]
        answers = await outcomes([logs[n % 2].create(one) for n, one in enumerate(new)])
        created = [answer for answer in answers if isinstance(answer, Created)]
        assert len(created) == 16
        assert len({answer.session_id for answer in created}) == 1
        assert [answer.duplicate for answer in created].count(False) == 1
        assert [head.id for head in await logs[0].list(OWNER)] == [created[0].session_id]


async def owe(database: Database, owner: OwnerId, count: int) -> set[SessionId]:
    """Admit turns of an owner, each in a session of its own; return the sessions."""
    sessions = set()
    for _ in range(count):
        session = await new_session(database, owner)
        await PostgresTurnQueue(database).admit(admission(session, owner=owner), LIMITS)
        sessions.add(session)
    return sessions


@pytest.mark.behaviour("DST-14")
@pytest.mark.parametrize("places", [1, 8])
@pytest.mark.parametrize(("big", "small"), [("a", "b"), ("b", "a")])
async def test_owner_of_one_turn_is_served_among_the_first_claims_beside_two_hundred(
    database_url: str, places: int, big: str, small: str
) -> None:
    async with replicas(database_url, 1) as [database]:
        await owe(database, OwnerId(big), 200)
        [only] = await owe(database, OwnerId(small), 1)
        queue = PostgresTurnQueue(database)
        cursor, found_in = "", []
        for n in range(2):
            # The cursor goes on from the last owner served, as a process keeps it.
            claims = await queue.claim(ClaimRequest(WorkerId("w1"), places, cursor=cursor))
            assert len(claims) == places
            cursor = claims[-1].owner
            found_in += [n for claim in claims if claim.session_id == only]
        assert found_in == [1 if places == 1 and big < small else 0]


@pytest.mark.behaviour("DST-14")
async def test_claims_of_one_place_serve_every_owner_in_turn(database_url: str) -> None:
    async with replicas(database_url, 1) as [database]:
        for owner in ("a", "b", "c"):
            await owe(database, OwnerId(owner), 3)
        queue = PostgresTurnQueue(database)
        cursor, served = "b", ""
        for _ in range(9):
            [claim] = await queue.claim(ClaimRequest(WorkerId("w1"), 1, cursor=cursor))
            cursor = claim.owner
            served += claim.owner
        assert served == "cab" * 3


@pytest.mark.behaviour("DST-07", "DST-14")
async def test_hint_brings_its_owner_forward_for_one_claim_and_never_a_row_past_earlier_ones(
    database_url: str,
) -> None:
    async with replicas(database_url, 1) as [database]:
        queue = PostgresTurnQueue(database)
        first = await new_session(database, OwnerId("b"))
        earlier = await queue.admit(admission(first, owner=OwnerId("b")), LIMITS)
        await owe(database, OwnerId("a"), 2)
        second = await new_session(database, OwnerId("b"))
        hinted = await queue.admit(admission(second, owner=OwnerId("b")), LIMITS)
        [claim] = await queue.claim(ClaimRequest(WorkerId("w1"), 1, hints=[hinted.turn_id]))
        assert claim.turn_id == earlier.turn_id
        [claim] = await queue.claim(ClaimRequest(WorkerId("w1"), 1))
        assert claim.owner == "a"
        # A hint at a row that is owned already brings nobody forward, and waits for nothing.
        async with asyncio.timeout(5):
            [claim] = await queue.claim(ClaimRequest(WorkerId("w1"), 1, hints=[earlier.turn_id]))
        assert claim.owner == "a"
