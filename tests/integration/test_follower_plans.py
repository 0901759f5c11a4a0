"""Following costs no more because more is stored: pages touched by its statements, prepared and run often as in a process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from shared.database.statements import load_statements
from shared.feed.merge import MERGE_KINDS
from shared.feed.watcher import PAGE_BYTES, PAGE_RECORDS
from shared.sessions.vocabulary import CLIENT_KINDS

ROOT: Final = Path(__file__).resolve().parents[2]
SQL: Final = {
    name: statement.text
    for package in ("sessions", "turns")
    for name, statement in load_statements(ROOT / "shared" / package / "queries.sql").items()
}
Connection = psycopg.Connection[dict[str, Any]]

FOLLOWED: Final = 100
SMALL: Final = 1_000
LARGE: Final = 100_000
#: A level more of a tree, for each row that is looked up.
RATIO_MAX: Final = 2.0
PAGES_FREE: Final = 4
#: The server plans the first five runs anew and then decides whether one plan serves all.
SETTLED_AFTER: Final = 6

FILL: Final = (
    "INSERT INTO owners (id) VALUES ('me') ON CONFLICT DO NOTHING",
    """INSERT INTO sessions (id, owner, tail, seq, next_position, next_number)
         SELECT 'other ' || n, 'me', sha256('x'), 2, 2, 2 FROM generate_series(1, %(size)s) n
       UNION ALL SELECT 'long', 'me', sha256('x'), %(size)s, %(size)s / 10 + 1, %(size)s / 10 + 1""",
    """INSERT INTO turns (id, session_id, owner, position, number, origin, status, outcome, fingerprint, run_id, started_seq,
                          ended_at)
         SELECT ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, 'long', 'me', n, n, 'user', 'ended', 'completed',
                'f', 'r', n * 10 - 9, clock_timestamp()
           FROM generate_series(1, %(size)s / 10) n""",
    """INSERT INTO records (session_id, seq, turn, kind, at, data, digest)
         SELECT 'long', n, (n - 1) / 10 + 1, (ARRAY['turn.started', 'step.started', 'request.prepared', 'memory.message',
                'step.usage', 'step.ended', 'step.started', 'request.prepared', 'turn.reply', 'turn.ended'])[(n - 1) %% 10 + 1],
                clock_timestamp(), '{"text":"' || repeat('x', 200) || '"}', sha256('x')
           FROM generate_series(1, %(size)s) n""",
)


def statements(size: int) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """What a producer sends for its followers: polls, a read at the head, a replay of an old turn, a look at a turn."""
    page = {
        "sessions": ["long"],
        "kinds": sorted(CLIENT_KINDS | MERGE_KINDS),
        "turn": None,
        "limit": PAGE_RECORDS,
        "max_bytes": PAGE_BYTES,
    }
    return {
        "poll": ("read_seqs", {"ids": [f"other {n}" for n in range(1, FOLLOWED)] + ["long"]}),
        "change": ("read_pages", page | {"cursors": [size - 10]}),
        "nothing new": ("read_pages", page | {"cursors": [size]}),
        "replay": ("read_pages", page | {"cursors": [100]}),
        "first kept": ("read_records", {"id": "long", "after": 50, "limit": 1}),
        "head": ("read_head", {"id": "long", "owner": "me"}),
        "turn": ("get", {"id": "00000000-0000-0000-0000-000000000007", "owner": "me"}),
    }


def pages(connection: Connection, name: str, params: Mapping[str, Any]) -> int:
    """Prepare a statement, run it until its plan has settled, and return how many pages it touches."""
    order: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    text = re.sub(r"%\((\w+)\)s", number, SQL[name])
    connection.execute(f"PREPARE followed AS {text}".encode())
    values = sql.SQL(", ").join(sql.Literal(params[key]) for key in order)
    explain = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE followed ({})").format(values)
    for _ in range(SETTLED_AFTER):
        connection.execute(explain)
    [row] = connection.execute(explain).fetchall()
    connection.execute("DEALLOCATE followed")
    plan = row["QUERY PLAN"][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.behaviour("FOL-02")
def test_followers_cost_no_more_for_what_is_stored(database_url: str) -> None:
    touched: dict[int, dict[str, int]] = {}
    with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as connection:
        for size in (SMALL, LARGE):
            connection.execute("TRUNCATE sessions, turns, records CASCADE")
            for statement in FILL:
                connection.execute(statement.encode(), {"size": size})
            connection.execute("ANALYZE")
            touched[size] = {
                what: pages(connection, name, params) for what, (name, params) in statements(size).items()
            }
    # A poll is a descent of an index for each session; where all fit into a few pages, those are read.
    assert touched[LARGE].pop("poll") <= FOLLOWED * 5
    assert {
        what: (touched[SMALL][what], count)
        for what, count in touched[LARGE].items()
        if count > RATIO_MAX * touched[SMALL][what] + PAGES_FREE
    } == {}
