"""What a whole turn costs: exact statements, round trips and commits, without renewals, polls and idle claims."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared.agents import Agent, App, tool
from shared.database.counters import UnitCount
from shared.database.pool import Database
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, SessionId, WorkerId, new_run_id, new_session_id, new_turn_id
from shared.feed.inproc import InprocFeed
from shared.inbox.port import Delivery
from shared.inbox.postgres import PostgresInbox
from shared.models.scripted import ScriptedModel, ScriptedReply
from shared.models.types import ToolCall
from shared.sessions.log import NewSession
from shared.sessions.postgres import PostgresSessionLog
from shared.sessions.records import draft
from shared.tasks.port import TaskLimits, new_task
from shared.tasks.postgres import PostgresTaskStore
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits
from workers.executor import BoundedExecutor
from workers.tasks.delivery import ResultDelivery
from workers.turns.claims import TurnClaimer
from workers.turns.holdings import Holdings
from workers.turns.runner import TurnRunner

OWNER = OwnerId("o")
WORKER = WorkerId("w")
#: Statements, round trips and commits of a unit of work that writes, and of one that only reads.
WRITE = (1, 1, 1)
READ = (1, 1, 0)


@tool(repeatable=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Bench:
    """A producer's and a worker's parts in one process, over a real database, with one counter for both."""

    def __init__(self, database: Database, model: ScriptedModel) -> None:
        self.database = database
        self.queue = PostgresTurnQueue(database)
        self.log = PostgresSessionLog(database)
        feed = InprocFeed()
        holdings = Holdings(self.queue, WORKER, lease_s=15, renew_s=5, poll_s=1)
        self.inbox = PostgresInbox(database)
        self.tasks = PostgresTaskStore(database)
        self.runner = TurnRunner(
            queue=self.queue,
            log=self.log,
            inbox=self.inbox,
            app=App([Agent("a", "Answer.", tools=[add])]),
            model=model,
            default_model="m",
            holdings=holdings,
            executor=BoundedExecutor(1),
            failpoints=Failpoints(),
            feed=feed,
            hints=feed,
            ring=lambda ids: None,
            deliver=ResultDelivery(
                store=self.tasks, hints=feed, failpoints=Failpoints(), ring=lambda ids: None
            ),
        )
        self.claimer = TurnClaimer(
            queue=self.queue,
            holdings=holdings,
            worker=WORKER,
            revisions=["1"],
            lease_s=15,
            attempts_max=3,
            suspects_max=8,
            running_per_owner=256,
            capacity=8,
        )

    async def session(self) -> SessionId:
        session = new_session_id()
        await self.log.create(NewSession(session, OWNER))
        return session

    async def turn(self, session: SessionId) -> dict[str, UnitCount]:
        """Admit and run one turn; return what it cost by unit of work."""
        self.database.counters.reset()
        admission = Admission(new_turn_id(), new_run_id(), session, OWNER, {"text": "hello"})
        await self.queue.admit(admission, AdmissionLimits())
        return await self.claimed()

    async def claimed(self) -> dict[str, UnitCount]:
        """Run the turn that is ready; return what everything cost since the last look."""
        [holding] = await self.claimer.claim(1, ())
        await self.runner.run(holding)
        spent = dict(self.database.counters.snapshot())
        self.database.counters.reset()
        return spent


@asynccontextmanager
async def bench(url: str, model: ScriptedModel) -> AsyncIterator[Bench]:
    database = Database(url, connections=2)
    await database.open()
    try:
        yield Bench(database, model)
    finally:
        await database.close()


def costs(units: dict[str, UnitCount]) -> dict[str, tuple[int, int, int]]:
    return {name: (count.statements, count.round_trips, count.commits) for name, count in units.items()}


def total(units: dict[str, UnitCount], figure: str) -> int:
    return sum(getattr(count, figure) for count in units.values())


@pytest.mark.behaviour("API-20")
async def test_a_lone_one_step_turn_is_four_commits_of_one_round_trip_each_and_nothing_else(
    database_url: str,
) -> None:
    async with bench(database_url, ScriptedModel(["hi", "hi again", "and again"])) as one:
        session = await one.session()
        for _ in range(3):
            assert costs(await one.turn(session)) == {
                "turn.admit": WRITE,
                "turn.claim": WRITE,
                "turn.open": WRITE,
                "turn.end": WRITE,
            }


async def test_a_turn_behind_what_others_wrote_reads_the_history_once(database_url: str) -> None:
    async def append(one: Bench, session: SessionId) -> None:
        await one.log.commit(session, OWNER, [draft("note", {"text": "x"})])

    async def run_elsewhere(one: Bench, session: SessionId) -> None:
        async with bench(database_url, ScriptedModel(["elsewhere"])) as other:
            await other.turn(session)

    async def remove_and_create(one: Bench, session: SessionId) -> None:
        await one.log.remove(session, OWNER)
        await one.log.create(NewSession(session, OWNER))
        await run_elsewhere(one, session)

    async with bench(database_url, ScriptedModel(lambda _: "hi")) as one:
        session = await one.session()
        await one.turn(session)
        for write in (append, run_elsewhere, remove_and_create):
            await write(one, session)
            assert [costs(await one.turn(session)).get("session.read") for _ in range(2)] == [READ, None]


async def test_an_inbox_turn_reads_what_waits_and_else_costs_what_a_users_turn_does(
    database_url: str,
) -> None:
    async with bench(database_url, ScriptedModel(["hi", "hi again"])) as one:
        session = await one.session()
        for items in (("a",), ("b", "c", "d")):
            one.database.counters.reset()
            for item in items:
                await one.inbox.deliver(Delivery(session, OWNER, item, "test", "hello"))
            units = costs(await one.claimed())
            assert units.pop("inbox.deliver") == (len(items),) * 3
            assert units == {
                "turn.claim": WRITE,
                "inbox.waiting": READ,
                # A delivery is a record of the log, so another one than the turn before left.
                "session.read": READ,
                "turn.open": WRITE,
                "turn.end": WRITE,
            }


async def test_a_task_and_the_answer_to_its_result_are_eight_commits_of_one_round_trip_each(
    database_url: str,
) -> None:
    async with bench(database_url, ScriptedModel(["found", "thanks"])) as one:
        parent = await one.session()
        one.database.counters.reset()
        await one.tasks.start(new_task(parent, OWNER, "dig", "spawn"), TaskLimits())
        assert costs(await one.claimed()) == {
            "task.start": WRITE,
            "turn.claim": WRITE,
            "turn.open": WRITE,
            "turn.end": WRITE,
            "task.owed": READ,
            "task.deliver": WRITE,
        }
        assert costs(await one.claimed()) == {
            "turn.claim": WRITE,
            "inbox.waiting": READ,
            "session.read": READ,
            "turn.open": WRITE,
            "turn.end": WRITE,
        }


async def test_a_step_with_one_call_adds_two_commits(database_url: str) -> None:
    calls = ScriptedModel([ToolCall("c", "add", '{"a": 1, "b": 2}'), "three"])
    async with bench(database_url, calls) as one:
        units = await one.turn(await one.session())
        assert units["turn.append"].commits == 2
        assert total(units, "commits") == 6


async def test_calls_that_finish_together_share_their_commit(database_url: str) -> None:
    both = ScriptedReply(
        calls=(ToolCall("c1", "add", '{"a": 1, "b": 2}'), ToolCall("c2", "add", '{"a": 3, "b": 4}')),
        finish_reason="tool_calls",
    )
    async with bench(database_url, ScriptedModel([both, "ten"])) as one:
        units = await one.turn(await one.session())
        assert units["turn.append"].commits == 2
        assert total(units, "commits") == 6
