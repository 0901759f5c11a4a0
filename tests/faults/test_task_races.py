"""Background tasks under races and kills: one terminal record, one start, one delivery, whoever dies between."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shared.conformance.turn_stage import commit_id, ended, started
from shared.domain.errors import SessionMissing, TaskConflict, TurnClosed
from shared.domain.ids import SessionId, WorkerId
from shared.sessions.records import draft
from shared.tasks.port import StartedTask, TaskLimits, item_id, new_task
from shared.tasks.postgres import PostgresTaskStore
from shared.turns.queue import Claim, ClaimRequest, Ending
from tests.faults.world import LEASE_S, OWNER, World, outcome, world
from tests.support.task_process import run_process

ROUNDS = 1_000
TOGETHER = 8
MANY = TaskLimits(20)


@pytest.fixture
async def w(database_url: str) -> AsyncIterator[World]:
    async with world(database_url, connections=10) as opened:
        yield opened


async def open_task(w: World, tasks: PostgresTaskStore, parent: SessionId) -> Claim:
    begun = await tasks.start(new_task(parent, OWNER, "dig", "spawn"), MANY)
    claim = await tasks.take(begun.task_id, OWNER, WorkerId("w"), lease_s=LEASE_S)
    assert claim is not None
    await w.queue.open(claim, commit_id(claim, "open"), [started(claim)])
    return claim


async def end(w: World, claim: Claim) -> object:
    result = draft("task.result", {"v": 1, "task": claim.session_id, "outcome": "completed", "text": "found"})
    return await outcome(w.queue.end(claim, commit_id(claim, "end"), [result, ended()], Ending("completed")))


async def race(w: World, tasks: PostgresTaskStore, n: int) -> str:
    """End and cancel one task at once, and deliver what is owed; return who won."""
    parent = await w.session()
    claim = await open_task(w, tasks, parent)
    calls: list[Any] = [end(w, claim), tasks.cancel(parent, claim.session_id, OWNER)]
    ended_with, cancelled = await asyncio.gather(*(calls if n % 2 else reversed(calls)))
    if not n % 2:
        ended_with, cancelled = cancelled, ended_with
    kinds = [record.kind for record in await w.log.read(claim.session_id)]
    terminal = [kind for kind in kinds if kind in ("task.result", "task.cancelled")]
    assert len(terminal) == 1, kinds
    for debt in await tasks.owed(parent=parent):
        assert await tasks.deliver(debt) is not None
    items = await w.log.read(parent, kinds=["inbox.queued"])
    view = await tasks.status(parent, claim.session_id, OWNER)
    if terminal == ["task.result"]:
        assert (cancelled.took_effect, view.status, len(items)) == (False, "completed", 1)
        return "result"
    assert isinstance(ended_with, TurnClosed)
    assert (cancelled.took_effect, view.status, len(items)) == (True, "cancelled", 0)
    return "cancel"


@pytest.mark.behaviour("TSK-23", "TSK-40", "TSK-19")
async def test_a_cancel_racing_the_result_leaves_one_terminal_record_and_a_delivery_that_agrees(
    w: World,
) -> None:
    tasks, winners, rounds = PostgresTaskStore(w.database), Counter[str](), iter(range(ROUNDS))

    async def some() -> None:
        for n in rounds:
            winners[await race(w, tasks, n)] += 1

    await asyncio.gather(*(some() for _ in range(TOGETHER)))
    assert winners.total() == ROUNDS
    assert set(winners) == {"result", "cancel"}, "neither always wins"


@pytest.mark.behaviour("TSK-10", "TSK-12")
async def test_two_starts_of_one_id_at_once_are_one_task_or_a_conflict(w: World) -> None:
    tasks = PostgresTaskStore(w.database)
    for n in range(50):
        parent = await w.session()
        first = new_task(parent, OWNER, "dig", "fork")
        second = new_task(parent, OWNER, "dig" if n % 2 else "look", "fork", task_id=first.task_id)
        answers = await asyncio.gather(*(outcome(tasks.start(task, MANY)) for task in (first, second)))
        begun = [each for each in answers if isinstance(each, StartedTask)]
        if n % 2:
            assert len({each.turn_id for each in begun}) == 1 and len(begun) == 2
        else:
            assert sum(isinstance(each, TaskConflict) for each in answers) == 1
        assert [r.kind for r in await w.log.read(parent)] == ["task.started"]
        rows = await w.rows("SELECT 1 FROM turns WHERE session_id = %s", first.task_id)
        assert len(rows) == 1


@pytest.mark.behaviour("TSK-05", "TSK-10", "TSK-11")
@pytest.mark.parametrize("point", ["task.starting", "task.started"])
async def test_a_start_that_is_killed_is_whole_or_nothing_and_a_second_one_runs_once(
    w: World, point: str
) -> None:
    tasks, parent = PostgresTaskStore(w.database), await w.session()
    task = new_task(parent, OWNER, "dig", "spawn")
    given = dataclasses.asdict(task) | {"turn_id": str(task.turn_id)}
    code = await run_process(
        w.url,
        "start",
        given,
        {"task.starting": "task.starting=kill", "task.started": "task.started=kill"}[point],
    )
    assert code == -signal.SIGKILL
    if point == "task.starting":
        assert await w.records(parent) == []
        assert isinstance(await outcome(w.log.head(task.task_id, OWNER)), SessionMissing)
    else:
        assert await w.kinds(parent) == ["task.started"]
    again = await tasks.start(task, TaskLimits())
    assert not again.duplicate
    assert await w.kinds(parent) == ["task.started"]
    assert [claim.turn_id for claim in await w.claims(places=8)] == [task.turn_id]


@pytest.mark.behaviour("TSK-19", "TSK-37", "TSK-41")
@pytest.mark.parametrize("points", ["task.delivering=kill", "task.delivered=kill"], ids=["before", "after"])
async def test_a_delivery_that_is_killed_is_made_once(w: World, points: str) -> None:
    tasks, parent = PostgresTaskStore(w.database), await w.session()
    claim = await open_task(w, tasks, parent)
    await end(w, claim)
    assert await run_process(w.url, "deliver", {"parent": parent}, points) == -signal.SIGKILL
    stored = 0 if points.startswith("task.delivering") else 1
    assert len(await w.rows("SELECT 1 FROM inbox_items")) == stored
    assert len(await tasks.owed(parent=parent)) == 1 - stored
    assert await run_process(w.url, "deliver", {"parent": parent}, "") == 0
    items = await w.rows("SELECT id FROM inbox_items WHERE session_id = %s", parent)
    assert [item["id"] for item in items] == [item_id(claim.session_id)]
    assert await w.kinds(parent) == ["task.started", "inbox.queued"]


@pytest.mark.behaviour("TSK-19", "INB-02")
async def test_deliveries_of_many_processes_at_once_store_each_result_once(w: World) -> None:
    tasks, parent = PostgresTaskStore(w.database), await w.session()
    for _ in range(12):
        await end(w, await open_task(w, tasks, parent))
    stores = [PostgresTaskStore(w.database) for _ in range(4)]

    async def deliver(store: PostgresTaskStore) -> int:
        told = [await store.deliver(debt) for debt in await store.owed(parent=parent)]
        return sum(each is not None for each in told)

    assert sum(await asyncio.gather(*(deliver(store) for store in stores))) == 12
    assert len(await w.rows("SELECT 1 FROM inbox_items WHERE session_id = %s", parent)) == 12
    assert (await w.head(parent)).inbox_waiting == 12


async def test_code_of_schema_2_gets_no_rows_that_it_cannot_run(w: World) -> None:
    tasks, parent = PostgresTaskStore(w.database), await w.session()
    lost = await open_task(w, tasks, parent)
    await w.expire(lost.turn_id)
    waiting = await tasks.start(new_task(parent, OWNER, "dig", "spawn"), MANY)
    await w.rows("UPDATE turns SET due_at = due_at - interval '1 hour' WHERE id = %s", waiting.turn_id)
    user = await w.admit(await w.session())
    old = "SELECT turn_id FROM turn_claim_v2('old', 'turns', '{1}', 8, NULL, 60, '', %s::uuid[], true, true, 8, 3, 256)"
    assert await w.rows(old, [waiting.turn_id]) == [{"turn_id": user.turn_id}]
    assert await w.rows(old, [waiting.turn_id]) == []
    new = await w.queue.claim(ClaimRequest(WorkerId("new"), 8))
    assert {claim.turn_id for claim in new} == {lost.turn_id, waiting.turn_id}


async def test_a_removal_by_code_of_schema_2_leaves_nothing_behind(w: World) -> None:
    tasks, parent = PostgresTaskStore(w.database), await w.session()
    await end(w, await open_task(w, tasks, parent))
    await end(w, await open_task(w, tasks, parent))
    [first, _] = await tasks.owed(parent=parent)
    await tasks.deliver(first)
    assert len(await w.rows("SELECT unnest(session_remove_v2(%s, %s))", parent, OWNER)) == 3
    for table in ("sessions", "turns", "records", "session_keys", "inbox_items", "deliveries"):
        assert await w.rows(f"SELECT 1 FROM {table} LIMIT 1") == []
