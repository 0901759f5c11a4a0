"""What background tasks cost: one round trip and one commit a move, nothing for a user's turn, and no scan at any size."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import psycopg
import pytest
from psycopg.rows import dict_row

from shared.database.counters import UnitCount
from shared.database.pool import Database
from shared.database.statements import load_statements
from shared.domain.ids import OwnerId, SessionId, WorkerId, new_session_id
from shared.sessions.log import NewSession
from shared.sessions.postgres import PostgresSessionLog
from shared.tasks.port import TaskLimits, new_task
from shared.tasks.postgres import PostgresTaskStore
from shared.tasks.records import start_params
from tests.architecture.tree import ROOT

OWNER: Final = OwnerId("o")
SQL: Final = load_statements(ROOT / "shared" / "tasks" / "queries.sql")
GROWING: Final = ("turns", "records", "session_keys", "sessions", "deliveries", "inbox_items")
#: Tasks of one parent that are over, debts of others, and finished turns of users.
OVER, OWED, FINISHED = 2_000, 5_000, 20_000


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url, connections=2)
    await opened.open()
    yield opened
    await opened.close()


async def parent_of(database: Database) -> SessionId:
    return (await PostgresSessionLog(database).create(NewSession(new_session_id(), OWNER))).session_id


@pytest.mark.behaviour("TSK-02", "TSK-19")
async def test_a_start_a_cancel_and_a_delivery_are_one_round_trip_and_one_commit_each(
    database: Database,
) -> None:
    tasks, parent = PostgresTaskStore(database), await parent_of(database)
    first, second = (new_task(parent, OWNER, "dig", "fork") for _ in range(2))

    async def cost(call: Any) -> Mapping[str, UnitCount]:
        database.counters.reset()
        await call
        return database.counters.units

    for unit, call in (
        ("task.start", tasks.start(first, TaskLimits())),
        ("task.start", tasks.start(second, TaskLimits())),
        ("task.cancel", tasks.cancel(parent, second.task_id, OWNER)),
        ("task.take", tasks.take(first.task_id, OWNER, WorkerId("w"), lease_s=60)),
    ):
        spent = await cost(call)
        assert {name: (n.statements, n.round_trips, n.commits) for name, n in spent.items()} == {
            unit: (1, 1, 1)
        }
    async with database.connection("test") as connection:
        await connection.execute(
            "UPDATE turns SET status = 'ended', outcome = 'interrupted', ended_at = clock_timestamp(), lease_owner = NULL,"
            " token = NULL, expires_at = NULL WHERE id = %s",
            (first.turn_id,),
        )
    [debt] = await tasks.owed(parent=parent)
    spent = await cost(tasks.deliver(debt))
    assert {name: (n.statements, n.round_trips, n.commits) for name, n in spent.items()} == {
        "task.deliver": (1, 1, 1)
    }


def connected(url: str) -> psycopg.Connection[dict[str, Any]]:
    return psycopg.connect(url, autocommit=True, row_factory=dict_row)


def triggers(connection: psycopg.Connection[dict[str, Any]], origin: str) -> list[str]:
    """The triggers that fire when a row of this origin ends, or is renewed."""
    row = connection.execute(
        "INSERT INTO turns (id, session_id, owner, position, origin, parent, status, fingerprint, run_id)"
        " VALUES (gen_random_uuid(), %s, 'o', 1, %s, 'p', 'ready', '', '') RETURNING id",
        (f"trigger {origin}", origin),
    ).fetchone()
    assert row is not None
    fired: list[str] = []
    for change in (
        "status = 'ready', due_at = clock_timestamp()",
        "status = 'ended', outcome = 'interrupted', ended_at = clock_timestamp()",
    ):
        plan = connection.execute(
            f"EXPLAIN (ANALYZE, FORMAT JSON) UPDATE turns SET {change} WHERE id = %s".encode(), (row["id"],)
        ).fetchone()
        assert plan is not None
        fired += [each["Trigger Name"] for each in plan["QUERY PLAN"][0].get("Triggers", [])]
    return fired


def test_a_users_row_pays_for_no_trigger(database_url: str) -> None:
    with connected(database_url) as connection:
        assert triggers(connection, "user") == []
        assert triggers(connection, "inbox") == []
        assert triggers(connection, "task") == ["turns_task_ends"]


FILL: Final = (
    """INSERT INTO owners (id) VALUES ('o')""",
    """INSERT INTO sessions (id, owner, tail, next_position)
         SELECT name, 'o', sha256('x'), 2 FROM unnest(ARRAY['p', 'other']) name
       UNION ALL SELECT 'user ' || n, 'o', sha256('x'), 2 FROM generate_series(1, %(finished)s) n""",
    """INSERT INTO sessions (id, owner, tail, parent, next_position)
         SELECT 'over ' || lpad(n::text, 6, '0'), 'o', sha256('x'), 'p', 2 FROM generate_series(1, %(over)s) n
       UNION ALL SELECT 'owed ' || lpad(n::text, 6, '0'), 'o', sha256('x'), 'other', 2 FROM generate_series(1, %(owed)s) n""",
    """INSERT INTO turns (id, session_id, owner, position, number, origin, parent, status, outcome, fingerprint, run_id, started_seq,
                          result_seq, ended_at, deadline)
         SELECT gen_random_uuid(), id, owner, 1, 1, CASE WHEN parent IS NULL THEN 'user' ELSE 'task' END, parent, 'ended', 'completed',
                '', '', 1, 1, clock_timestamp(), clock_timestamp() - interval '1 day'
           FROM sessions WHERE id NOT IN ('p', 'other')""",
    """INSERT INTO records (session_id, seq, turn, kind, at, data, digest)
         SELECT id, 1, 1, 'task.result', clock_timestamp(), '{"v":1,"outcome":"completed","text":"x"}', sha256('x')
           FROM sessions WHERE parent IS NOT NULL
       UNION ALL SELECT 'p', n, NULL, 'task.started', clock_timestamp(), '{"v":1,"mode":"spawn","instructions":"dig"}', sha256('x')
           FROM generate_series(1, %(over)s) n""",
    """INSERT INTO session_keys (session_id, space, key, fingerprint, answer)
         SELECT t.parent, 'task', t.session_id, '', t.id || ':1' FROM turns t WHERE t.parent IS NOT NULL""",
    """INSERT INTO deliveries (child, parent, body)
         SELECT session_id, parent, jsonb_build_object('turn', id)::text FROM turns WHERE parent = 'other'""",
    "UPDATE sessions SET seq = %(over)s WHERE id = 'p'",
    "VACUUM ANALYZE",
)


def scans(connection: psycopg.Connection[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    rows = connection.execute(
        "SELECT relname, seq_scan, seq_tup_read + coalesce(idx_tup_fetch, 0) AS rows FROM pg_stat_xact_user_tables"
        " WHERE relname = ANY (%s)",
        [list(GROWING)],
    ).fetchall()
    return {row["relname"]: (row["seq_scan"], row["rows"]) for row in rows}


def test_no_statement_of_tasks_scans_what_is_over(database_url: str) -> None:
    task = new_task(SessionId("p"), OWNER, "dig", "spawn")
    page: dict[str, Any] = {"limit": 20, "max_bytes": 10**7}
    asked: dict[str, dict[str, Any]] = {
        "start": start_params(task) | {"tail": b"x", "max_running": 2, "owner_max": 1_000, "is_full": False},
        "status": {"parent": "p", "owner": "o", "task": "over 001000"},
        "list": page | {"parent": "p", "owner": "o", "before": "over 001000"},
        "owed": page,
        "owed_to": page | {"parent": "other"},
        "waiting": {"parent": "p", "owner": "o"},
        "find_late": {"limit": 50},
        "cancel": {"parent": "p", "task": "over 001000", "owner": "o", "text": "{}", "digest": b"x"},
        "put_off": {"task": "owed 000100", "version": "x", "in_s": 1},
    }
    with connected(database_url) as connection:
        for statement in FILL:
            connection.execute(
                statement.encode(),
                {"over": OVER, "owed": OWED, "finished": FINISHED} if "%(" in statement else None,
            )
        for name, params in asked.items():
            with connection.transaction(force_rollback=True):
                before = scans(connection)
                connection.execute(SQL[name].text, params)
                after = scans(connection)
            assert {t: after[t][0] - before[t][0] for t in GROWING if after[t][0] != before[t][0]} == {}, name
            read = sum(after[t][1] - before[t][1] for t in GROWING)
            assert read <= 150, (name, read)
