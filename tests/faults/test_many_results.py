"""2,000 deliveries and 500 tasks while workers are killed: each is answered exactly once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

from producer.dev.torture.judging.judgement import Judgement
from producer.dev.torture.judging.results import judge_items, judge_tasks, read_items
from producer.dev.torture.load.notes import Item, Notes
from producer.dev.torture.load.tasks import StartedTask
from shared.database.embedded import EmbeddedServers
from shared.database.migrate import migrate
from shared.database.pool import Database
from shared.domain.ids import OwnerId, SessionId, new_session_id
from shared.inbox.port import Delivery
from shared.inbox.postgres import PostgresInbox
from shared.sessions.log import READ_MAX_RECORDS, NewSession
from shared.sessions.postgres import PostgresSessionLog
from shared.sessions.records import Record
from shared.tasks.port import TaskLimits, new_task
from shared.tasks.postgres import PostgresTaskStore
from tests.support.servers import TUNE
from tests.support.system import System

pytestmark = pytest.mark.alone

OWNERS: Final = 5
SESSIONS: Final = 250
ITEMS_A_SESSION: Final = 8
TASKS_A_SESSION: Final = 2
AT_ONCE: Final = 6
WORKERS: Final = 3
#: One worker is killed at each of so many equal parts of the work, so that a slow machine sees no more of them.
KILLS: Final = 10
#: The last ones may come too late, when little is left to do.
KILLS_MIN: Final = 8
BOUND_S: Final = 600.0
LOOK_S: Final = 0.25
LIMITS: Final = TaskLimits(queued_per_owner=10_000)
ENVIRONMENT: Final = {"TURNKEEPER_RUNNING_TURNS_PER_OWNER": "16", "TURNKEEPER_TURNS_CAPACITY": "24"}
SEED: Final = 20

LEFT: Final = """
SELECT (SELECT count(*) FROM turns WHERE status IN ('queued', 'ready', 'running', 'waiting')) AS turns,
       (SELECT count(*) FROM inbox_items) AS items, (SELECT count(*) FROM deliveries) AS deliveries
"""
#: What is over of the work: items that were answered, notices too, and tasks that ended.
DONE: Final = """
SELECT (SELECT count(*) FROM session_keys WHERE space = 'inbox') - (SELECT count(*) FROM inbox_items)
       + (SELECT count(*) FROM turns WHERE origin = 'task' AND status = 'ended') AS done
"""
WORK: Final = SESSIONS * (ITEMS_A_SESSION + 2 * TASKS_A_SESSION)
TASK_TURNS: Final = "SELECT session_id, origin, status, outcome FROM turns WHERE origin = 'task'"


@pytest.mark.behaviour("INB-02", "INB-12", "INB-18", "INB-30", "INB-31", "TSK-10", "TSK-19", "TSK-43")
async def test_2000_deliveries_and_500_tasks_under_kills_are_each_answered_exactly_once(
    tmp_path: Path,
) -> None:
    rng, notes = Random(SEED), Notes()
    with EmbeddedServers(tmp_path / "servers", tune=TUNE) as pair:
        migrate(pair.database_url)
        with System(pair, tmp_path / "run", env=ENVIRONMENT) as system:
            await asyncio.to_thread(system.start_worker, "upkeep")
            async with opened(pair.database_url) as database, killing(system, rng) as kills:
                sessions = await made_sessions(PostgresSessionLog(database))
                await load(database, sessions, notes, rng)
                await settled(system)
                assert kills.count >= KILLS_MIN
            async with opened(pair.database_url) as database:
                log = PostgresSessionLog(database)
                told = {str(session): read_items(session, await log_of(log, session)) for session in sessions}
            found = Judgement()
            judge_items(found, notes, told)
            judge_tasks(found, notes, told, system.query(TASK_TURNS))
            for session in rng.sample(sorted(sessions), 25):
                system.verify(session)

    assert (found.delivered, found.tasks) == (SESSIONS * ITEMS_A_SESSION, SESSIONS * TASKS_A_SESSION)
    assert (found.lost, found.doubled_items, found.doubled_tasks, found.log_errors) == ([], [], [], [])
    assert found.dropped == 0, "a worker that dies ends no turn: its items are answered by the next attempt"
    assert found.answered == found.delivered + found.tasks


class Kills:
    """How many workers were killed."""

    count = 0


@asynccontextmanager
async def killing(system: System, rng: Random) -> AsyncIterator[Kills]:
    """Keep workers running around the block, and kill one of them again and again."""
    kills = Kills()
    workers = [await asyncio.to_thread(system.start_worker, "turns") for _ in range(WORKERS)]

    async def kill() -> None:
        for part in range(KILLS):
            await done(system, round(WORK * (part + 0.5) / KILLS))
            n = rng.randrange(WORKERS)
            workers[n].send_signal(signal.SIGKILL)
            await asyncio.to_thread(workers[n].wait, 10)
            kills.count += 1
            workers[n] = await asyncio.to_thread(system.launch_worker, "turns")

    task = asyncio.create_task(kill(), name="killer")
    try:
        yield kills
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def opened(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, connections=AT_ONCE, name="many-results")
    await database.open()
    try:
        yield database
    finally:
        await database.close()


async def made_sessions(log: PostgresSessionLog) -> dict[SessionId, OwnerId]:
    sessions = {new_session_id(): OwnerId(f"owner-{n % OWNERS}") for n in range(SESSIONS)}
    for session, owner in sessions.items():
        await log.create(NewSession(session, owner))
    return sessions


async def load(database: Database, sessions: dict[SessionId, OwnerId], notes: Notes, rng: Random) -> None:
    """Deliver and start everything, some of it twice, a few at a time and in a random order."""
    inbox, tasks = PostgresInbox(database), PostgresTaskStore(database)
    gate = asyncio.Semaphore(AT_ONCE)

    async def deliver(session: SessionId, name: str) -> None:
        notes.items[name] = Item(name, session)
        async with gate:
            delivery = Delivery(session, sessions[session], name, "test", f"Read {name}.")
            await inbox.deliver(delivery)
            notes.items[name].is_acknowledged = True
            if rng.random() < 0.1:
                await inbox.deliver(delivery)

    async def start(session: SessionId, name: str) -> None:
        notes.tasks[name] = StartedTask(name, session)
        async with gate:
            task = new_task(session, sessions[session], f"Do {name}.", "spawn", task_id=SessionId(name))
            await tasks.start(task, LIMITS)
            notes.tasks[name].ids.add(name)
            if rng.random() < 0.1:
                await tasks.start(task, LIMITS)

    work = [
        *(deliver(s, f"item-{n}-{i}") for n, s in enumerate(sessions) for i in range(ITEMS_A_SESSION)),
        *(start(s, f"task-{n}-{i}") for n, s in enumerate(sessions) for i in range(TASKS_A_SESSION)),
    ]
    rng.shuffle(work)
    await asyncio.gather(*work)


async def settled(system: System) -> None:
    """Wait until nothing is left to do."""
    deadline = time.monotonic() + BOUND_S
    while True:
        [left] = await asyncio.to_thread(system.query, LEFT)
        if not any(left.values()):
            return
        assert time.monotonic() < deadline, f"left after {BOUND_S:g} s: {left}"
        await asyncio.sleep(LOOK_S)  # a poll's pause


async def done(system: System, least: int) -> None:
    """Wait until so much of the work is over."""
    while True:
        [row] = await asyncio.to_thread(system.query, DONE)
        if row["done"] >= least:
            return
        await asyncio.sleep(LOOK_S)  # a poll's pause


async def log_of(log: PostgresSessionLog, session: SessionId) -> list[Record]:
    records: list[Record] = []
    while page := await log.read(session, after=records[-1].seq if records else 0):
        records.extend(page)
        if len(page) < READ_MAX_RECORDS:
            break
    return records
