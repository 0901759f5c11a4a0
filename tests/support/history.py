"""A database with history: finished turns, what others are owed, a turn that is held; and what statements touch in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row

import shared.inbox
import shared.sessions
import shared.turns
from shared.conformance.turn_stage import ended, step
from shared.database.statements import load_statements
from shared.sessions.records import Draft
from tests.support.mutations import mutation

SQL: Final = {
    **load_statements(Path(shared.sessions.__file__).with_name("queries.sql")),
    **load_statements(Path(shared.turns.__file__).with_name("queries.sql")),
    **load_statements(Path(shared.inbox.__file__).with_name("queries.sql")),
}
#: What opens a user's turn besides its fence and its records.
OPENING: Final[dict[str, Any]] = {"title": None, "claims": [], "look": False}
Connection = psycopg.Connection[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is stored: finished turns of many sessions, those of the session at hand, and what others are owed."""

    finished: int
    in_session: int
    owed: int
    unserved: int


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
    """INSERT INTO tool_calls (session_id, turn_id, invocation_id, step, ordinal, name, argument_digest, token, state, result)
         SELECT session_id, id, 'c', 1, 1, 'tool', 'd', 't', 'done', '{}' FROM turns WHERE number %% 5 = 0""",
    """INSERT INTO sessions (id, owner, tail, next_position)
         SELECT 'deep ' || n, 'deep', sha256('x'), 2 FROM generate_series(1, %(owed)s) n
       UNION ALL SELECT 'far ' || n, 'far', sha256('x'), 2 FROM generate_series(1, %(unserved)s) n
       UNION ALL SELECT name, 'me', sha256('x'), 1 FROM unnest(ARRAY['fresh', 'claimed', 'waiting']) name""",
    """INSERT INTO turns (id, session_id, owner, position, origin, status, fingerprint, message, run_id, agent_revision,
                          deadline)
         SELECT gen_random_uuid(), id, owner, 1, 'user', 'ready', 'f', '{}', 'r',
                CASE owner WHEN 'far' THEN 'unserved' ELSE '1' END, clock_timestamp() + interval '1 h'
           FROM sessions WHERE owner IN ('deep', 'far')""",
    """INSERT INTO inbox_items (session_id, id, seq, source, content)
         SELECT id, 'item', 1, 'mail', 'x' FROM sessions WHERE owner = 'deep'""",
    "UPDATE sessions SET inbox_waiting = 1 WHERE owner = 'deep'",
)


#: What reads history: two rules against it, taken out.
READ_WHOLE_LOG: Final = mutation(
    "the reply is looked for in the whole log", "turn_reply_outcome_v1", ("AND seq >= p_turn.started_seq", "")
)
COUNT_ALL_TURNS: Final = mutation(
    "room is counted over all turns",
    "turn_take_ready_v3",
    (
        "(SELECT count(*) FROM turns t WHERE t.owner = p_owner AND t.status = 'running')",
        "(SELECT count(*) FILTER (WHERE t.status = 'running' AND t.owner = p_owner) FROM turns t)",
    ),
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
        "resumes": None,
        "session_max": 100,
        "owner_max": 1_000,
        "is_full": False,
        "attempts_max": 3,
        "origin": "user",
        "claims": [],
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


def appending() -> dict[str, Any]:
    return {"stepped": True, "calls": None, "expect": None, "extend_s": None}


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
    opening = fence_of(held, "open") | OPENING | params_of((step(),))
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
    closing = {
        "calls": None,
        "outcome": "completed",
        "code": None,
        "failure": None,
        "usage": "{}",
        "counts": None,
    }
    return {
        "admit": ("admit", admission("fresh", "me")),
        "admit behind others": ("admit", admission("waiting", "me")),
        "claim": ("claim", claim_of("w2")),
        "claim past the deep owner": ("claim", claim_of("w2", cursor="deep")),
        "claim the oldest": ("claim", claim_of("w2", oldest_first=True)),
        "interrupt": ("admit", admission("long", "me") | {"on_busy": "interrupt"}),
        "begin": ("begin", admission("fresh", "me") | beginning() | params_of((step(),))),
        "open": ("open", fence_of(scene.claimed, "open") | OPENING | params_of((step(),))),
        "append": (
            "append",
            fence_of(scene.held, "a") | appending() | params_of((step(),)),
        ),
        "end": ("end", fence_of(scene.held, "end") | closing | params_of((ended(),))),
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
        "deliver": ("deliver", delivery("fresh", "me")),
        "deliver beside a running turn": ("deliver", delivery("long", "me")),
        "what waits in an inbox": ("waiting_items", {"session": "long", "owner": "me"}),
        "find inboxes to look at": ("find_due", {"limit": 50}),
        "recover": ("recover", {"sessions": ["deep 1", "fresh"]}),
    }


def delivery(session: str, owner: str) -> dict[str, Any]:
    return {
        "session": session,
        "owner": owner,
        "id": str(uuid4()),
        "source": "mail",
        "content": "x",
        "text": "{}",
        "digest": b"x",
        "meta": None,
        "agent": None,
        "revision": None,
        "on_worker_loss": None,
        "max_pending": 20,
        "attempts_max": 2,
        "turn_attempts_max": 3,
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
