"""What the tables themselves refuse, what a change of a turn's row touches, and how a turn is found by its number."""

from __future__ import annotations

from typing import Any, Final

import psycopg
import pytest

#: A running turn, as SQL.
ROW: Final = {
    "id": "gen_random_uuid()",
    "session_id": "'s'",
    "owner": "'o'",
    "position": "1",
    "origin": "'user'",
    "status": "'running'",
    "fingerprint": "''",
    "run_id": "''",
    "token": "gen_random_uuid()",
    "lease_owner": "'w'",
    "expires_at": "clock_timestamp()",
}
#: Turns of one session for each position: those with these remainders never opened.
POSITIONS: Final = 4_003
UNOPENED: Final = (0, 3, 4)


def insert(connection: psycopg.Connection[Any], **values: str) -> None:
    row = ROW | values
    names, texts = ", ".join(row), ", ".join(row.values())
    connection.execute(f"INSERT INTO turns ({names}) VALUES ({texts})".encode())


@pytest.mark.parametrize(
    "values",
    [
        {"status": "'sleeping'"},
        {"outcome": "'won'"},
        {"origin": "'nobody'"},
        {"on_worker_loss": "'shrug'"},
        {"history": "'none'"},
        {"priority": "3"},
        {"priority": "-1"},
        {"token": "NULL"},
        {"lease_owner": "NULL"},
        {"expires_at": "NULL"},
        {"ended_at": "clock_timestamp()"},
        {"status": "'ended'"},
        {"status": "'cancelled'", "ended_at": "clock_timestamp()", "number": "1"},
        {"status": "'refused'", "ended_at": "clock_timestamp()", "number": "1"},
        {"status": "'expired'", "ended_at": "clock_timestamp()", "number": "1"},
    ],
    ids=str,
)
def test_the_database_refuses_a_turn_that_cannot_be(database_url: str, values: dict[str, str]) -> None:
    with psycopg.connect(database_url) as connection:
        insert(connection)
        with pytest.raises(psycopg.errors.CheckViolation):
            insert(connection, position="2", session_id="'other'", **values)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO session_keys (session_id, space, key, fingerprint, answer) VALUES ('s', 'lost', 'k', '', '')",
        "INSERT INTO tool_calls (session_id, turn_id, invocation_id, step, ordinal, name, argument_digest, token, state)"
        " VALUES ('s', gen_random_uuid(), 'i', 0, 0, 'n', '', '', 'half')",
    ],
    ids=["key", "call"],
)
def test_the_database_refuses_a_key_and_a_call_of_no_known_kind(database_url: str, statement: str) -> None:
    with psycopg.connect(database_url) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(statement.encode())


def test_opening_a_turn_changes_nothing_that_an_index_is_made_of(database_url: str) -> None:
    """Then the row's new version stays on its page, and none of the indexes is written."""
    with psycopg.connect(database_url) as connection:
        indexed = {
            name
            for (name,) in connection.execute(
                "SELECT DISTINCT a.attname FROM pg_depend d JOIN pg_index i ON i.indexrelid = d.objid"
                " JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid"
                " WHERE d.classid = 'pg_class'::regclass AND i.indrelid = 'turns'::regclass"
            ).fetchall()
        }
    assert {"status", "position", "session_id"} <= indexed
    assert not indexed & {"number", "opened_at", "started_seq", "opened_seq"}


@pytest.fixture
def numbered(database_url: str) -> str:
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO sessions (id, owner, tail, next_position) VALUES ('s', 'o', sha256('x'), %s)",
            (POSITIONS + 1,),
        )
        connection.execute(
            "INSERT INTO turns (id, session_id, owner, position, number, origin, status, fingerprint, run_id, ended_at)"
            " SELECT gen_random_uuid(), 's', 'o', n,"
            "   CASE WHEN opened THEN 50 + count(*) FILTER (WHERE opened) OVER (ORDER BY n) END,"
            "   CASE WHEN n %% 7 = 5 THEN 'inbox' ELSE 'user' END,"
            "   CASE WHEN opened THEN 'ended' ELSE 'cancelled' END, '', '', clock_timestamp()"
            " FROM (SELECT n, NOT n %% 7 = ANY (%s) AS opened FROM generate_series(1, %s) n) turn",
            (list(UNOPENED), POSITIONS),
        )
    return database_url


@pytest.mark.behaviour("RSM-08")
def test_a_turn_is_found_by_its_number_whatever_never_opened_between(numbered: str) -> None:
    with psycopg.connect(numbered) as connection:
        wanted = connection.execute(
            "SELECT number, id, origin FROM turns WHERE session_id = 's' AND number IS NOT NULL ORDER BY number"
        ).fetchall()
        assert len(wanted) > POSITIONS // 2
        for number, turn, origin in wanted[:: len(wanted) // 200]:
            found = connection.execute(
                "SELECT (turn_numbered_v1('s', %s)).id, turn_user_numbered_v1('s', %s)", (number, number)
            ).fetchone()
            assert found == (turn, turn if origin == "user" else None)
        first, last = wanted[0][0], wanted[-1][0]
        for number in (first - 1, 0, -1, last + 1, None):
            found = connection.execute("SELECT (turn_numbered_v1('s', %s)).id", (number,)).fetchone()
            assert found == (None,)


def test_looking_for_a_number_reads_a_row_or_two_for_each_halving(numbered: str) -> None:
    looks = b"SELECT idx_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'turns'::regclass"
    newest = 50 + sum(n % 7 not in UNOPENED for n in range(1, POSITIONS + 1))
    for number, scans_max in ((newest, 1), (51, 13), (newest // 2, 13), (newest + 1, 13), (1, 13)):
        with psycopg.connect(numbered) as connection:
            connection.execute("SELECT turn_numbered_v1('s', %s)", (number,))
            (read,) = connection.execute(looks).fetchall()
        scans, rows = read
        assert scans <= scans_max
        # Beside the one that is found, those that never opened and stand before it: two in a row here.
        assert rows <= 3 * scans
