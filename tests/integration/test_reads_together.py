"""Pages of several sessions that are asked for at once: few statements, and each session's own page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shared.database.pool import Database
from shared.domain.ids import OwnerId, SessionId, new_session_id
from shared.sessions.log import NewSession
from shared.sessions.postgres import PostgresSessionLog
from shared.sessions.postgres_reads import SESSIONS_MAX
from shared.sessions.records import draft

OWNER = OwnerId("ann")


@pytest.fixture
async def log(database_url: str) -> AsyncIterator[PostgresSessionLog]:
    database = Database(database_url, connections=4)
    await database.open()
    yield PostgresSessionLog(database)
    await database.close()


async def sessions_with(log: PostgresSessionLog, count: int) -> list[SessionId]:
    """Sessions of which the n-th holds n records, each of its own words."""
    made = [new_session_id() for _ in range(count)]
    for n, session in enumerate(made):
        await log.create(NewSession(session, OWNER))
        await log.commit(session, OWNER, [draft("host.note", {"text": f"{session} {m}"}) for m in range(n)])
    return made


def statements(log: PostgresSessionLog) -> int:
    return log._db.counters.snapshot()["session.read"].statements


async def test_pages_asked_for_at_once_share_statements(log: PostgresSessionLog) -> None:
    made = await sessions_with(log, SESSIONS_MAX)
    pages = await asyncio.gather(*(log.read_back(one, limit=5, kinds=["host.note"]) for one in made))
    assert statements(log) == 1
    for n, (session, page) in enumerate(zip(made, pages, strict=True)):
        assert [record.seq for record in page] == list(range(n, 0, -1))[:5]
        assert {record.session_id for record in page} <= {session}

    pages = await asyncio.gather(
        *(log.read(one, after=n // 2, limit=100, max_bytes=1_000) for n, one in enumerate(made))
    )
    assert statements(log) == 2
    for n, (session, page) in enumerate(zip(made, pages, strict=True)):
        seqs = [record.seq for record in page]
        assert seqs == list(range(n // 2 + 1, n // 2 + 1 + len(seqs)))
        assert {record.session_id for record in page} <= {session}
        # Up to and with the record that fills the page, or all that there are.
        sizes = [len(record.text) for record in page]
        assert sum(sizes[:-1]) < 1_000
        assert sum(sizes) >= 1_000 or len(seqs) == n - n // 2


async def test_a_session_that_is_asked_for_twice_is_answered_at_each_cursor(log: PostgresSessionLog) -> None:
    session = (await sessions_with(log, 11))[-1]
    pages = await asyncio.gather(*(log.read(session, after=n, max_bytes=10_000) for n in range(10)))
    assert [[record.seq for record in page] for page in pages] == [list(range(n + 1, 11)) for n in range(10)]


async def test_pages_of_other_bounds_are_read_apart(log: PostgresSessionLog) -> None:
    session = (await sessions_with(log, 4))[-1]
    long, short, backwards = await asyncio.gather(
        log.read(session, max_bytes=10_000),
        log.read(session, limit=1, max_bytes=10_000),
        log.read_back(session, limit=2),
    )
    assert [[record.seq for record in page] for page in (long, short, backwards)] == [[1, 2, 3], [1], [3, 2]]


async def test_a_read_that_is_given_up_costs_the_others_nothing(log: PostgresSessionLog) -> None:
    made = await sessions_with(log, 8)
    reads = [asyncio.create_task(log.read_back(one)) for one in made]
    await asyncio.sleep(0)
    reads[5].cancel()
    pages = await asyncio.gather(*reads, return_exceptions=True)
    assert isinstance(pages[5], asyncio.CancelledError)
    assert [len(page) for page in pages if not isinstance(page, BaseException)] == [0, 1, 2, 3, 4, 6, 7]
