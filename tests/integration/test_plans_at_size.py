"""At 100,000 finished turns, 10,000 owed to one owner and 10,000 of a revision that nobody serves, nothing scans.

What a statement reads is counted where it happens, inside the functions it calls: rows and scans from the transaction's own
statistics, pages from ``EXPLAIN (ANALYZE, BUFFERS)``. All are exact, and the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from shared.conformance.turn_stage import step
from shared.database.embedded import EmbeddedServers
from tests.support.history import (
    COUNT_ALL_TURNS,
    SQL,
    Connection,
    Scene,
    Sizes,
    admission,
    connected,
    fence_of,
    pages,
    params_of,
    set_scene,
    statements,
)
from tests.support.mutations import apply
from tests.support.servers import TEMPLATE

SMALL: Final = Sizes(finished=1_000, in_session=20, owed=20, unserved=20)
LARGE: Final = Sizes(finished=100_000, in_session=10_000, owed=10_000, unserved=10_000)

#: Tables that grow with history: no statement may scan one.
GROWING: Final = ("turns", "records", "session_keys", "sessions", "tool_calls", "inbox_items")
ROWS_MAX: Final = 120
#: The backlog counts up to 10,000 rows of each kind, and says so.
COUNTED_MAX: Final = 10_000
PAGES_RATIO_MAX: Final = 2.0
#: A larger tree is a level or two deeper, and a statement goes down several.
PAGES_FREE: Final = 16
PAGES_A_LOOK_UP: Final = 5
POLL: Final = "a follower's poll of many sessions"
POLLED: Final = 100

Statements = Mapping[str, tuple[str, Mapping[str, Any]]]


def everything(scene: Scene, connection: Connection) -> Statements:
    """Every hot statement, every sweep's, and those that list, look up and follow."""
    used = connection.execute("SELECT key FROM session_keys WHERE session_id = 'long' LIMIT 1").fetchone()
    page = connection.execute(
        "SELECT active_at, id FROM sessions WHERE owner = 'deep' ORDER BY active_at DESC, id DESC OFFSET 15 LIMIT 1"
    ).fetchone()
    head = connection.execute("SELECT seq FROM sessions WHERE id = 'long'").fetchone()
    assert used is not None
    assert page is not None
    assert head is not None
    known = admission("long", "me") | {"key": used["key"], "print": "f"}
    first = step()
    tail = {"id": "long", "after": head["seq"] - 3, "limit": 1_000}
    outside = {"id": "long", "owner": "me", "print": "p", "expect": None, "not_after": None, "state": None}
    mine = {"owner": "deep", "limit": 50}
    return {
        **statements(scene),
        "a key that was used": ("admit", known),
        "abandon": ("abandon", fence_of(scene.held, "")),
        "expire": ("expire", {"ids": [scene.held["turn_id"]]}),
        "calls": ("calls", {"session": "long", "id": scene.held["turn_id"]}),
        "unserved": ("unserved", {"pool": "turns"}),
        "backlog": ("backlog", {"pool": "turns"}),
        "head": ("read_head", {"id": "long", "owner": "me"}),
        POLL: ("read_seqs", {"ids": [f"old {n}" for n in range(1, POLLED + 1)]}),
        "a follower's read": ("read_records", tail),
        "records of one turn": ("read_records_of_kinds", tail | {"kinds": [], "turn": scene.held["number"]}),
        "the first page of a list": ("list_heads", mine | {"before_at": None, "before_id": None}),
        "a later page": ("list_heads", mine | {"before_at": page["active_at"], "before_id": page["id"]}),
        "a commit outside": ("commit_records", outside | {"commit": "c"} | params_of((first,))),
        "a creation": (
            "create_session",
            {
                "id": str(uuid4()),
                "owner": "me",
                "key": "k",
                "print": "p",
                "title": None,
                "meta": "{}",
                "tail": b"x",
            },
        ),
    }


@dataclass(frozen=True, slots=True)
class Touched:
    """What a statement read: rows of growing tables, scans of one, and pages in all."""

    rows: int
    scans: Mapping[str, int]
    pages: int


def counted(connection: Connection) -> Mapping[str, tuple[int, int]]:
    """Return scans and rows read so far, by table; what an earlier transaction read may still be among them."""
    tables = connection.execute(
        "SELECT relname, seq_scan, seq_tup_read + coalesce(idx_tup_fetch, 0) AS rows FROM pg_stat_xact_user_tables"
        " WHERE relname = ANY (%s)",
        [list(GROWING)],
    ).fetchall()
    return {table["relname"]: (table["seq_scan"], table["rows"]) for table in tables}


def touched(connection: Connection, name: str, params: Mapping[str, Any]) -> Touched:
    """Run a statement, undo it, and return what it read."""
    with connection.transaction(force_rollback=True):
        before = counted(connection)
        connection.execute(SQL[name].text, params)
        after = counted(connection)
    scans = {table: after[table][0] - before[table][0] for table in GROWING}
    rows = sum(after[table][1] - before[table][1] for table in GROWING)
    return Touched(rows, {table: n for table, n in scans.items() if n}, pages(connection, name, params))


@contextmanager
def filled(servers: EmbeddedServers, sizes: Sizes) -> Iterator[Mapping[str, Touched]]:
    """Fill a database of these sizes and return what each statement reads in it."""
    name = sql.Identifier(f"sized_{uuid4().hex}")
    with psycopg.connect(servers.database_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, sql.Identifier(TEMPLATE)))
    try:
        with connected(f"{servers.database_url.rsplit('/', 1)[0]}/{name.as_string()[1:-1]}") as connection:
            scene = set_scene(connection, sizes)
            connection.execute("VACUUM ANALYZE")
            yield {
                what: touched(connection, name, params)
                for what, (name, params) in everything(scene, connection).items()
            }
    finally:
        with psycopg.connect(servers.database_url, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture(scope="module")
def small(servers: EmbeddedServers) -> Iterator[Mapping[str, Touched]]:
    """What each statement reads with little behind it."""
    with filled(servers, SMALL) as found:
        yield found


@pytest.fixture(scope="module")
def large(servers: EmbeddedServers) -> Iterator[Mapping[str, Touched]]:
    """What each statement reads at size."""
    with filled(servers, LARGE) as found:
        yield found


@pytest.mark.behaviour("DST-12", "API-20")
def test_no_statement_scans_a_table_that_grows(large: Mapping[str, Touched]) -> None:
    assert {what: one.scans for what, one in large.items() if one.scans} == {}


@pytest.mark.behaviour("DST-12")
def test_the_rows_that_a_statement_reads_are_bounded_at_any_size(large: Mapping[str, Touched]) -> None:
    rows = {what: one.rows for what, one in large.items()}
    counts = {"backlog": 3 * COUNTED_MAX, "unserved": 2 * COUNTED_MAX}
    assert {what: read for what, read in rows.items() if read > counts.get(what, ROWS_MAX)} == {}


@pytest.mark.behaviour("DST-12")
def test_a_hundred_times_the_history_costs_no_more_pages(
    small: Mapping[str, Touched], large: Mapping[str, Touched]
) -> None:
    grown = {
        what: (small[what].pages, large[what].pages)
        for what in small
        if large[what].pages > PAGES_RATIO_MAX * small[what].pages + PAGES_FREE
    }
    # Two count up to a bound, and one looks up as many sessions as it is asked for, one by one once there are many.
    assert grown.keys() <= {"backlog", "unserved", POLL}, grown
    assert large[POLL].pages <= PAGES_A_LOOK_UP * POLLED


@pytest.mark.mutation
def test_a_statement_that_scans_is_seen(database_url: str) -> None:
    apply(database_url, COUNT_ALL_TURNS)
    with connected(database_url) as connection:
        scene = set_scene(connection, SMALL)
        connection.execute("VACUUM ANALYZE")
        claims = touched(connection, *statements(scene)["claim"])
    assert "turns" in claims.scans
    assert claims.rows > SMALL.finished > ROWS_MAX
