"""What a turn costs in a session with a long log: the same statements and rows, whatever lies behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from shared.agents import Agent, App, tool
from shared.database.counters import UnitCount
from shared.database.pool import Database
from shared.database.statements import load_statements
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, WorkerId, new_run_id, new_session_id, new_turn_id
from shared.feed.inproc import InprocFeed
from shared.inbox.postgres import PostgresInbox
from shared.models.scripted import ScriptedModel
from shared.models.types import ToolCall
from shared.sessions import postgres as queries
from shared.sessions.log import NewSession
from shared.sessions.postgres import PostgresSessionLog
from shared.sessions.vocabulary import MEMORY_KINDS
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits
from workers.executor import BoundedExecutor
from workers.turns.claims import TurnClaimer
from workers.turns.holdings import Holdings
from workers.turns.runner import TurnRunner

OWNER = OwnerId("o")

#: A log of whole turns, eight records each, the message and the reply about 2 KiB: as turns leave them.
FILL = """
INSERT INTO records (session_id, seq, turn, kind, at, data, digest)
SELECT %(session)s, (t - 1) * 8 + n, t,
       (ARRAY['turn.started', 'step.started', 'request.prepared', 'memory.message', 'step.usage', 'step.ended',
              'turn.reply', 'turn.ended'])[n],
       clock_timestamp(),
       CASE n
         WHEN 1 THEN jsonb_build_object('v', 1, 'turn_id', 't', 'run_id', 'r' || t, 'entry', 'r' || t || ':0',
                       'origin', 'user', 'claimed', '[]'::jsonb, 'user_message', jsonb_build_object('text', repeat('q', 2000)))
         WHEN 4 THEN jsonb_build_object('v', 1, 'entry', 'r' || t || ':1', 'run_id', 'r' || t, 'run', 0, 'step', 0,
                       'text', repeat('a', 2000), 'calls', '[]'::jsonb)
         WHEN 7 THEN jsonb_build_object('v', 1, 'outcome', 'completed', 'text', repeat('a', 2000), 'step', 0)
         ELSE '{}'::jsonb END::text, sha256('x')
  FROM generate_series(1, %(turns)s) t, generate_series(1, 8) n
"""
MOVE_HEAD = "UPDATE sessions SET seq = %(turns)s * 8, next_number = %(turns)s + 1, tail = sha256('filled') WHERE id = %(session)s"
EXPIRE = "UPDATE turns SET expires_at = clock_timestamp() - interval '1 ms' WHERE session_id = %(session)s"


@tool(repeatable=True)
async def act() -> str:
    """Act."""
    return "done"


class Process:
    """One worker process with a counter of its own."""

    def __init__(self, database: Database, name: str, model: ScriptedModel, failpoints: Failpoints) -> None:
        self.counters = database.counters
        self.queue = PostgresTurnQueue(database)
        feed = InprocFeed()
        self.holdings = Holdings(self.queue, WorkerId(name), lease_s=15, renew_s=5, poll_s=1)
        self.runner = TurnRunner(
            queue=self.queue,
            log=PostgresSessionLog(database),
            inbox=PostgresInbox(database),
            app=App([Agent("a", "Answer.", tools=[act])]),
            model=model,
            default_model="m",
            holdings=self.holdings,
            executor=BoundedExecutor(1),
            failpoints=failpoints,
            feed=feed,
            hints=feed,
            ring=lambda ids: None,
        )
        self.claimer = TurnClaimer(
            queue=self.queue,
            holdings=self.holdings,
            worker=WorkerId(name),
            revisions=["1"],
            lease_s=15,
            attempts_max=3,
            suspects_max=8,
            running_per_owner=256,
            capacity=8,
        )

    async def run(self) -> dict[str, UnitCount]:
        """Claim the one turn and run it, to its end or until the process dies; return what that cost by unit of work."""
        self.counters.reset()
        [self.holding] = await self.claimer.claim(1, ())
        running = asyncio.create_task(self.runner.run(self.holding))
        await asyncio.wait({running})
        if not running.cancelled():
            running.result()
        return dict(self.counters.snapshot())

    async def die(self) -> None:
        """Stop where the process stands: nothing is stored or given back any more."""
        self.holding.lose("test")
        await asyncio.Event().wait()


@asynccontextmanager
async def databases(url: str) -> AsyncIterator[tuple[Database, AsyncConnection[Any]]]:
    database = Database(url, connections=2)
    await database.open()
    admin = await AsyncConnection.connect(url, autocommit=True)
    try:
        yield database, admin
    finally:
        await admin.close()
        await database.close()


async def take_over(url: str, records: int) -> tuple[dict[str, UnitCount], dict[str, UnitCount], int]:
    """Run a turn behind so many records until its worker dies, then in another one.

    Returns what it cost the first until it died, what it cost its successor, and how many messages the model read last.
    """
    async with databases(url) as (database, admin):
        session = new_session_id()
        await PostgresSessionLog(database).create(NewSession(session, OWNER))
        filled = {"session": session, "turns": records // 8}
        await admin.execute(FILL, filled)
        await admin.execute(MOVE_HEAD, filled)
        await admin.execute("ANALYZE records")
        model = ScriptedModel([ToolCall("c", "act", "{}"), "fine"])
        first = Process(database, "w1", model, Failpoints())
        first.runner.failpoints = Failpoints({"turn.step-stored": first.die})
        await first.queue.admit(
            Admission(new_turn_id(), new_run_id(), session, OWNER, {"text": "hello"}), AdmissionLimits()
        )
        lost = await first.run()
        await admin.execute(EXPIRE, filled)
        costs = await Process(database, "w2", model, Failpoints()).run()
        [row] = await (
            await admin.execute("SELECT outcome FROM turns WHERE session_id = %(session)s", filled)
        ).fetchall()
        assert row == ("completed",)
        return lost, costs, len(model.requests[-1].messages)


@pytest.mark.behaviour("API-20")
async def test_opening_and_taking_over_a_turn_cost_the_same_behind_1_000_records_and_100_000(
    database_url: str,
) -> None:
    short = await take_over(database_url, 1_000)
    long = await take_over(database_url, 100_000)
    assert short == long
    opened, taken, shown = long
    # One page of 256 memory records fills the budget of 64,000 tokens: 1 statement of the history, 1 of the own turn.
    assert (opened["session.read"].statements, opened["session.read"].rows) == (1, 256)
    assert (taken["session.read"].statements, taken["turn.calls"].statements) == (2, 1)
    assert taken["session.read"].rows < 256 + 20
    assert 120 < shown < 140


def nodes_of(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every node of a plan that ran, from the top."""
    if plan.get("Actual Loops") != 0:
        yield plan
    for below in plan.get("Plans", ()):
        yield from nodes_of(below)


@pytest.mark.parametrize("before", [None, 99_001])
async def test_reading_back_walks_the_key_from_the_end_and_looks_at_nothing_before_its_page(
    database_url: str, before: int | None
) -> None:
    statement = load_statements(Path(queries.__file__).with_name("queries.sql"))["read_pages_back"]
    async with databases(database_url) as (_, admin):
        await admin.execute(FILL, {"session": "long", "turns": 12_500})
        await admin.execute("ANALYZE records")
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.text}"
        params = {"sessions": ["long"], "cursors": [before], "kinds": list(MEMORY_KINDS), "limit": 256}
        [row] = await (await admin.execute(explain.encode(), params)).fetchall()
        scan = next(node for node in nodes_of(row[0][0]["Plan"]) if node.get("Relation Name") == "records")
        assert (scan["Node Type"], scan["Scan Direction"]) == ("Index Scan", "Backward")
        assert "seq" in scan["Index Cond"]
        assert scan["Actual Rows"] == 256
        # Of each turn's eight records three are memory.
        assert scan["Rows Removed by Filter"] < 256 * 5 / 3 + 8
