"""What an admission costs over HTTP: the same statements and rows, however long a session and a backlog are (API-20)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import psycopg
import pytest

import shared.turns
from shared.database.statements import load_statements
from shared.domain.ids import OwnerId, SessionId, new_run_id, new_turn_id
from shared.turns.postgres_rows import admit_params
from shared.turns.queue import Admission, AdmissionLimits
from tests.support.producers import Producer, calling, create_session

SQL = load_statements(Path(shared.turns.__file__).with_name("queries.sql"))

#: A session with a long log and many finished turns; sessions of another owner that are owed; many workers.
FILL = (
    """UPDATE sessions SET seq = %(records)s, next_number = %(turns)s + 1, next_position = %(turns)s + 1
         WHERE id = %(session)s""",
    """INSERT INTO records (session_id, seq, turn, kind, at, data, digest)
         SELECT %(session)s, n, n / 20 + 1, 'step.ended', now(), '{}', sha256('x') FROM generate_series(1, %(records)s) n""",
    """INSERT INTO turns (id, session_id, owner, position, number, origin, status, outcome, fingerprint, run_id, ended_at)
         SELECT gen_random_uuid(), %(session)s, 'ann', n, n, 'user', 'ended', 'completed', 'f', 'r ' || n, clock_timestamp()
           FROM generate_series(1, %(turns)s) n""",
    """INSERT INTO sessions (id, owner, tail, next_position)
         SELECT 'deep ' || %(times)s || ' ' || n, 'deep', sha256('x'), 101 FROM generate_series(1, %(backlog)s / 100) n""",
    """INSERT INTO turns (id, session_id, owner, position, origin, status, fingerprint, message, run_id)
         SELECT gen_random_uuid(), s.id, 'deep', n, 'user', CASE n WHEN 1 THEN 'ready' ELSE 'queued' END, 'f', '{}', 'r'
           FROM sessions s, generate_series(1, 100) n WHERE s.id LIKE 'deep ' || %(times)s || ' %%'""",
    """INSERT INTO workers (id, host, pid, queues, revisions, capacity, version)
         SELECT 'w' || %(times)s || ' ' || n, 'h', n, ARRAY['turns'], ARRAY['1'], 400, '0' FROM generate_series(1, %(workers)s) n""",
)

#: Rows that this transaction has read of each table, by whatever way.
READ = """SELECT relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables
            WHERE relname IN ('sessions', 'records', 'turns', 'session_keys', 'owners', 'workers') ORDER BY relname"""


def fill(database_url: str, session: str, *, times: int) -> None:
    sizes = {"records": 2_000 * times, "turns": 100 * times, "backlog": 1_000 * times, "workers": 20 * times}
    with psycopg.connect(database_url, autocommit=True) as connection:
        for statement in FILL:
            connection.execute(statement.encode(), sizes | {"session": session, "times": times})
        connection.execute("ANALYZE")


def spent(producer: Producer) -> dict[str, tuple[int, int, int, int]]:
    """Return calls, statements, round trips and commits by unit since the last look.

    The count of all that waits is left out: a producer refreshes it once a second, however much it admits.
    """
    counters = producer.parts.database.counters
    found = {
        unit: (c.calls, c.statements, c.round_trips, c.commits)
        for unit, c in counters.snapshot().items()
        if unit != "turn.waiting"
    }
    counters.reset()
    return found


def rows_read(database_url: str, session: str) -> dict[str, int]:
    """Return how many rows of each table an admission to this session reads; it is rolled back."""
    admission = Admission(
        new_turn_id(), new_run_id(), SessionId(session), OwnerId("ann"), {"text": "x"}, key="another"
    )
    with psycopg.connect(database_url) as connection:
        [row] = connection.execute(SQL["admit"].text, admit_params(admission, AdmissionLimits()))
        assert row[0] == "admitted"
        found = {str(name): int(rows) for name, rows in connection.execute(READ)}
        connection.rollback()
    return found


@pytest.mark.behaviour("API-20")
async def test_an_admission_costs_one_transaction_whatever_is_stored_and_owed(database_url: str) -> None:
    """A backlog of 10,000 and a log of 20,000 records, after tenths of both; and an empty session beside them."""
    async with calling(database_url) as (producer, client):
        sessions, costs, rows = [], [], []
        for times in (1, 10, 0):
            session = await create_session(client)
            if times:
                await asyncio.to_thread(fill, database_url, session, times=times)
            rows.append(await asyncio.to_thread(rows_read, database_url, session))
            sessions.append(session)
        for session in sessions:
            spent(producer)
            statuses = [await admit(client, session, key, "enqueue") for key in ("first", "first", "second")]
            statuses.append(await admit(client, session, "third", "reject"))
            assert statuses == [202, 200, 202, 409]
            costs.append(spent(producer))
    assert costs == [{"turn.admit": (4, 4, 4, 4)}] * 3
    few, many, empty = rows
    assert many == empty
    # A table of a few pages is read through; never more is read because there is more.
    assert all(many[table] <= few[table] for table in few), rows
    assert sum(many.values()) < 10, rows


@pytest.mark.behaviour("API-20")
async def test_a_delivery_and_a_tasks_start_over_http_cost_one_transaction_each(database_url: str) -> None:
    """A delivery that names no agent reads the head before: the first agent of the app answers in a session without turns."""
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        await client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})
        item, head = {"source": "ci", "content": "x"}, {"session.head": (2, 2, 2, 0)}
        agent = producer.parts.app.agents[0].name
        for path, body, unit, more in (
            ("inbox", item | {"id": "a"}, "inbox.deliver", head),
            ("inbox", item | {"id": "b", "agent": agent}, "inbox.deliver", {}),
            ("tasks", {"key": "t", "instructions": "dig", "mode": "fork"}, "task.start", {}),
        ):
            spent(producer)
            for status in (202, 200):  # and its repeat
                assert (await client.post(f"/v1/sessions/{session}/{path}", json=body)).status_code == status
            assert spent(producer) == {unit: (2, 2, 2, 2)} | more


async def admit(client: httpx2.AsyncClient, session: str, key: str, on_busy: str) -> int:
    body, headers = {"message": "x", "on_busy": on_busy}, {"Idempotency-Key": key}
    return (await client.post(f"/v1/sessions/{session}/turns", json=body, headers=headers)).status_code
