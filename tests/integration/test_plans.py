"""No statement of a turn, and no sweep, costs more because more history exists or more is owed to others.

Cost is counted in the pages that a statement touches: exact, and the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

import shared.turns
from shared.conformance.turn_stage import ended, step
from shared.database.statements import load_statements
from shared.sessions.records import Draft
from tests.support.mutations import Mutation, apply, mutation

SQL: Final = load_statements(Path(shared.turns.__file__).with_name("queries.sql"))
Connection = psycopg.Connection[dict[str, Any]]

RATIO_MAX: Final = 2.0
#: A statement of few pages may touch a level more of a tree.
PAGES_FREE: Final = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is stored: finished turns of many sessions, those of the session at hand, and what others are owed."""

    finished: int
    in_session: int
    owed: int
    unserved: int


#: Trees have more than one level in both, so that what differs is the history.
SMALL: Final = Sizes(finished=2_000, in_session=20, owed=20, unserved=20)
LARGE: Final = Sizes(finished=20_000, in_session=2_000, owed=5_000, unserved=5_000)

FILL: Final = (
    "INSERT INTO owners (id) VALUES ('me'), ('deep'), ('far') ON CONFLICT DO NOTHING",
    "INSERT INTO owners (id) SELECT 'other ' || n FROM generate_series(1, 50) n ON CONFLICT DO NOTHING",
    """INSERT INTO sessions (id, owner, tail, next_position, next_number, seq)
         SELECT 'old ' || n, 'other ' || (n %% 50 + 1), sha256('x'), 11, 11, 20
           FROM generate_series(1, %(finished)s / 10) n
       UNION ALL SELECT 'long', 'me', sha256('x'), %(in_session)s + 1, %(in_session)s + 1, %(in_session)s * 2""",
    """INSERT INTO turns (id, session_id, owner, position, number, origin, status, outcome, fingerprint, message, run_id,
                          opened_at, ended_at, started_seq)
         SELECT gen_random_uuid(), s.id, s.owner, n, n, 'user', 'ended', 'completed', 'f', '{}', 'r', clock_timestamp(),
                clock_timestamp(), n * 2 - 1
           FROM sessions s, generate_series(1, s.next_number - 1) n""",
    """INSERT INTO records (session_id, seq, turn, kind, at, data, digest)
         SELECT session_id, number * 2 - 1 + n, number, CASE n WHEN 0 THEN 'turn.started' ELSE 'turn.ended' END,
                clock_timestamp(), '{}', sha256('x')
           FROM turns, generate_series(0, 1) n WHERE status = 'ended'""",
    """INSERT INTO session_keys (session_id, space, key, fingerprint, answer)
         SELECT session_id, 'turn', id::text, 'f', id::text FROM turns""",
    """INSERT INTO sessions (id, owner, tail, next_position)
         SELECT 'deep ' || n, 'deep', sha256('x'), 2 FROM generate_series(1, %(owed)s) n
       UNION ALL SELECT 'far ' || n, 'far', sha256('x'), 2 FROM generate_series(1, %(unserved)s) n
       UNION ALL SELECT name, 'me', sha256('x'), 1 FROM unnest(ARRAY['fresh', 'claimed', 'waiting']) name""",
    """INSERT INTO turns (id, session_id, owner, position, origin, status, fingerprint, message, run_id, agent_revision,
                          deadline)
         SELECT gen_random_uuid(), id, owner, 1, 'user', 'ready', 'f', '{}', 'r',
                CASE owner WHEN 'far' THEN 'unserved' ELSE '1' END, clock_timestamp() + interval '1 h'
           FROM sessions WHERE owner IN ('deep', 'far')""",
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A turn that is held and open in the long session, and one that is only claimed."""

    held: Mapping[str, Any]
    claimed: Mapping[str, Any]


def params_of(drafts: tuple[Draft, ...]) -> dict[str, Any]:
    return {
        "kinds": [one.kind for one in drafts],
        "texts": [one.text for one in drafts],
        "digests": [one.digest for one in drafts],
    }


def admission(session: str, owner: str) -> dict[str, Any]:
    return {
        "id": uuid4(),
        "session": session,
        "owner": owner,
        "key": None,
        "print": "p",
        "run": str(uuid4()),
        "message": "{}",
        "command": None,
        "meta": None,
        "agent": "",
        "revision": "1",
        "on_busy": "enqueue",
        "on_worker_loss": "continue",
        "priority": 0,
        "deadline": None,
        "max_duration_s": None,
        "session_max": 100,
        "owner_max": 1_000,
        "is_full": False,
        "attempts_max": 3,
    }


def claim_of(worker: str, *, cursor: str = "", oldest_first: bool = False) -> dict[str, Any]:
    return {
        "worker": worker,
        "pool": "turns",
        "revisions": ["1"],
        "places": 1,
        "background": 1,
        "lease_s": 600.0,
        "cursor": cursor,
        "hints": [],
        "oldest_first": oldest_first,
        "takeovers": True,
        "suspects": 8,
        "attempts_max": 3,
        "running_max": 256,
    }


def beginning() -> dict[str, Any]:
    return {"holder": "host", "lease_s": 600.0, "commit": "begin", "title": None}


def fence_of(claimed: Mapping[str, Any], commit: str) -> dict[str, Any]:
    return {
        "id": claimed["turn_id"],
        "session": claimed["session_id"],
        "epoch": claimed["epoch"],
        "token": claimed["token"],
        "commit": commit,
    }


def set_scene(connection: Connection, sizes: Sizes) -> Scene:
    """Fill the database and bring its own turns to where the statements begin."""
    for statement in FILL:
        connection.execute(statement.encode(), vars_of(sizes))
    taken = []
    for session in ("long", "claimed"):
        connection.execute(SQL["admit"].text, admission(session, "me"))
        row = connection.execute(SQL["claim"].text, claim_of("w1", cursor="far")).fetchone()
        assert row is not None
        assert row["session_id"] == session
        taken.append(row)
    held, claimed = taken
    opening = fence_of(held, "open") | {"title": None} | params_of((step(),))
    connection.execute(SQL["open"].text, opening)
    connection.execute(SQL["admit"].text, admission("waiting", "me"))
    return Scene(held, claimed)


def vars_of(sizes: Sizes) -> dict[str, int]:
    return {name: getattr(sizes, name) for name in Sizes.__slots__}


def statements(scene: Scene) -> Mapping[str, tuple[str, dict[str, Any]]]:
    """Return every statement that is measured, with its parameters, by a name of its own."""
    ids: list[UUID] = [scene.held["turn_id"]]
    tokens: list[UUID] = [scene.held["token"]]
    who = {"id": scene.held["turn_id"], "owner": "me"}
    closing = {"calls": None, "outcome": "completed", "code": None, "failure": None, "usage": "{}"}
    return {
        "admit": ("admit", admission("fresh", "me")),
        "admit behind others": ("admit", admission("waiting", "me")),
        "claim": ("claim", claim_of("w2")),
        "claim past the deep owner": ("claim", claim_of("w2", cursor="deep")),
        "claim the oldest": ("claim", claim_of("w2", oldest_first=True)),
        "interrupt": ("admit", admission("long", "me") | {"on_busy": "interrupt"}),
        "begin": ("begin", admission("fresh", "me") | beginning() | params_of((step(),))),
        "open": ("open", fence_of(scene.claimed, "open") | {"title": None} | params_of((step(),))),
        "append": (
            "append",
            fence_of(scene.held, "a") | {"stepped": True, "calls": None} | params_of((step(),)),
        ),
        "end": ("end_turn", fence_of(scene.held, "end") | closing | params_of((ended(),))),
        "cancel": ("cancel", who | {"attempts_max": 3}),
        "release": ("release", fence_of(scene.held, "") | {"due_in_s": 0.0}),
        "renew": ("renew", {"ids": ids, "tokens": tokens, "lease_s": 60.0}),
        "watch": ("watch", {"worker": "w1", "ids": ids, "tokens": tokens}),
        "get": ("get", who),
        "get_many": ("get_many", {"ids": ids}),
        "reap": ("reap", {"ids": ids, "attempts_max": 3}),
        "find_dead": ("find_dead", {"attempts_max": 3, "limit": 50}),
        "find_late": ("find_late", {"limit": 50}),
        "overdue": ("overdue", {"pool": "turns", "older_s": 1.0}),
    }


def pages(connection: Connection, name: str, params: Mapping[str, Any]) -> int:
    """Run a statement, undo it, and return how many pages it touched, those inside its functions included."""
    touched = 0
    for _ in range(2):  # The first run of a function also plans its statements.
        with connection.transaction(force_rollback=True):
            explain = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + SQL[name].text
            row = connection.execute(explain.encode(), params).fetchone()
            assert row is not None
            plan = row["QUERY PLAN"][0]["Plan"]
            touched = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return touched


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


@pytest.fixture
def two_urls(database_url: str) -> Iterator[tuple[str, str]]:
    """Two databases of one content's shape: the test's own, and a copy of it while it was empty."""
    base, name = database_url.rsplit("/", 1)
    copy = f"{name}_large"
    with psycopg.connect(f"{base}/postgres", autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {copy} TEMPLATE {name}".encode())
    yield database_url, f"{base}/{copy}"
    with psycopg.connect(f"{base}/postgres", autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {copy} WITH (FORCE)".encode())


def measure(url: str, sizes: Sizes, *, plans_are_old: bool) -> Mapping[str, int]:
    """Fill a database and return the pages of each statement.

    With ``plans_are_old`` the connection planned everything while the database was empty, as a process that started
    with it did, and nothing has analysed the tables since.
    """
    with connected(url) as connection:
        if plans_are_old:
            nobody = Scene(nothing(), nothing())
            for name, params in statements(nobody).values():
                pages(connection, name, params)
        scene = set_scene(connection, sizes)
        if not plans_are_old:
            connection.execute("ANALYZE")
        return {what: pages(connection, name, params) for what, (name, params) in statements(scene).items()}


def nothing() -> dict[str, Any]:
    return {"turn_id": uuid4(), "session_id": "none", "epoch": 1, "token": uuid4()}


def grown(urls: tuple[str, str], *, plans_are_old: bool) -> Mapping[str, tuple[int, int]]:
    """Return the statements whose pages grow from the small database to the large one, with both counts."""
    small = measure(urls[0], SMALL, plans_are_old=plans_are_old)
    large = measure(urls[1], LARGE, plans_are_old=plans_are_old)
    return {
        what: (small[what], large[what])
        for what in small
        if large[what] > RATIO_MAX * small[what] + PAGES_FREE
    }


@pytest.mark.behaviour("DST-12", "API-20")
@pytest.mark.parametrize("plans_are_old", [False, True])
def test_no_statement_costs_more_for_history_or_for_what_others_are_owed(
    two_urls: tuple[str, str], plans_are_old: bool
) -> None:
    assert grown(two_urls, plans_are_old=plans_are_old) == {}


READ_WHOLE_LOG: Final = mutation(
    "the reply is looked for in the whole log", "turn_reply_outcome_v1", ("AND seq >= p_turn.started_seq", "")
)
COUNT_ALL_TURNS: Final = mutation(
    "room is counted over all turns",
    "turn_take_ready_v2",
    (
        "(SELECT count(*) FROM turns t WHERE t.owner = p_owner AND t.status = 'running')",
        "(SELECT count(*) FILTER (WHERE t.status = 'running' AND t.owner = p_owner) FROM turns t)",
    ),
)


@pytest.mark.mutation
@pytest.mark.parametrize(("change", "found"), [(READ_WHOLE_LOG, "cancel"), (COUNT_ALL_TURNS, "claim")])
def test_statement_that_reads_history_is_found(
    two_urls: tuple[str, str], change: Mutation, found: str
) -> None:
    for url in two_urls:
        apply(url, change)
    assert found in grown(two_urls, plans_are_old=False)


def claim_pages(connection: Connection, owners: range) -> int:
    """Give each of these owners a due turn, and return the pages of a claim of one place."""
    for statement in (
        "INSERT INTO owners (id) SELECT 'due ' || n FROM generate_series(%(first)s::int, %(last)s::int) n",
        """INSERT INTO sessions (id, owner, tail, next_position)
             SELECT 'due ' || n, 'due ' || n, sha256('x'), 2 FROM generate_series(%(first)s::int, %(last)s::int) n""",
        """INSERT INTO turns (id, session_id, owner, position, origin, status, fingerprint, message, run_id)
             SELECT gen_random_uuid(), 'due ' || n, 'due ' || n, 1, 'user', 'ready', 'f', '{}', 'r'
               FROM generate_series(%(first)s::int, %(last)s::int) n""",
    ):
        connection.execute(statement.encode(), {"first": owners[0], "last": owners[-1]})
    connection.execute("ANALYZE")
    return pages(connection, "claim", claim_of("w1"))


@pytest.mark.behaviour("DST-14")
def test_claim_costs_no_more_for_owners_past_the_sixteenth(database_url: str) -> None:
    with connected(database_url) as connection:
        few = claim_pages(connection, range(1, 101))
        many = claim_pages(connection, range(101, 1001))
        assert many <= RATIO_MAX * few
