"""Interleavings of background tasks: ends, cancels and deliveries beside removals and each other, each with its proof."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shared.conformance.turn_stage import commit_id, ended
from shared.domain.errors import HistoryModeConflict, TurnClosed
from shared.domain.ids import SessionId
from shared.sessions.log import NewSession
from shared.sessions.records import draft
from shared.tasks.port import StartedTask, TaskLimits, new_task
from shared.tasks.postgres import PostgresTaskStore
from shared.turns.queue import Claim, Ending
from tests.faults.world import OWNER, World, fenced, outcome, run_as, world
from tests.support.mutations import Mutation, Scenario, mutation, prove


class TaskWorld:
    """A world with a store of tasks and a parent."""

    def __init__(self, w: World, parent: SessionId) -> None:
        self.w = w
        self.parent = parent
        self.tasks = PostgresTaskStore(w.database)

    async def start(self, **given: Any) -> StartedTask:
        task = new_task(self.parent, OWNER, "dig", "spawn", **given)
        return await self.tasks.start(task, TaskLimits(20))

    async def open_task(self) -> Claim:
        """Start a task whose turn this process holds and has opened."""
        await self.start()
        claim = await self.w.claim()
        await self.w.open(claim)
        return claim

    async def end(self, claim: Claim) -> object:
        """End it with its result."""
        drafts = [_result(claim), ended()]
        return await outcome(self.w.queue.end(claim, commit_id(claim, "end"), drafts, Ending("completed")))

    async def debts(self) -> list[str]:
        """Read whose results the parent is owed."""
        found = await self.w.rows("SELECT child FROM deliveries WHERE parent = %s", self.parent)
        return [row["child"] for row in found]

    async def items(self) -> list[str]:
        """Read the parent's items."""
        found = await self.w.rows("SELECT id FROM inbox_items WHERE session_id = %s", self.parent)
        return [row["id"] for row in found]


def _result(claim: Claim) -> Any:
    return draft("task.result", {"v": 1, "task": claim.session_id, "outcome": "completed", "text": "found"})


def _end_call(claim: Claim) -> dict[str, Any]:
    drafts = [_result(claim), ended()]
    return fenced(claim, "end") | {
        "p_kinds": [one.kind for one in drafts],
        "p_texts": [one.text for one in drafts],
        "p_digests": [one.digest for one in drafts],
        "p_calls": None,
        "p_outcome": "completed",
        "p_code": None,
        "p_failure": None,
        "p_usage": "{}",
        "p_counts": None,
    }


@asynccontextmanager
async def task_world(url: str) -> AsyncIterator[TaskWorld]:
    """Open a world with a parent session."""
    async with world(url) as w:
        yield TaskWorld(w, await w.session())


async def scenario_end_beside_the_parents_removal(url: str) -> None:
    """(11) A removal waits for a child that ends just now: its debt goes with the parent, and nothing is left of either."""
    async with task_world(url) as t:
        claim = await t.open_task()
        async with t.w.transaction() as ender:
            stored = await run_as(ender, _end_call(claim), "turn_end_v3")
            assert stored["result"] == "stored"
            removal = asyncio.create_task(t.w.log.remove(t.parent, OWNER))
            await t.w.waits(removal, "session_remove_v3")
        assert await removal == [t.parent, claim.session_id]
        assert await t.debts() == []
        for table in ("turns", "records", "session_keys", "inbox_items"):
            assert await t.w.rows(f"SELECT 1 FROM {table} LIMIT 1") == []


async def scenario_removal_beside_the_childs_end(url: str) -> None:
    """The mirror of it: an end that waits for the removal of its parent finds its session gone, and owes nothing."""
    async with task_world(url) as t:
        claim = await t.open_task()
        async with t.w.transaction() as remover:
            await remover.execute("SELECT session_remove_v3(%s, %s)", (t.parent, OWNER))
            end = asyncio.create_task(t.end(claim))
            await t.w.waits(end, "turn_end_v3")
        closed = await end
        assert isinstance(closed, TurnClosed) and closed.fields["reason"] == "removed"
        assert await t.debts() == []


async def scenario_removal_of_a_child_beside_its_delivery(url: str) -> None:
    """A delivery of what was read before its child was removed waits, and leaves the debt that is owed now."""
    async with task_world(url) as t:
        claim = await t.open_task()
        await t.end(claim)
        [debt] = await t.tasks.owed(parent=t.parent)
        async with t.w.transaction() as remover:
            await remover.execute("SELECT session_remove_v3(%s, %s)", (claim.session_id, OWNER))
            delivery = asyncio.create_task(outcome(t.tasks.deliver(debt)))
            await t.w.waits(delivery, "task_deliver_v1")
        assert await delivery is None
        [lost] = await t.tasks.owed(parent=t.parent)
        assert (lost.result.status, lost.result.code) == ("interrupted", "task.lost")


async def scenario_delivery_beside_the_parents_removal(url: str) -> None:
    """A delivery that waits for its parent's removal finds nobody to tell, and leaves no item without a session."""
    async with task_world(url) as t:
        claim = await t.open_task()
        await t.end(claim)
        [debt] = await t.tasks.owed(parent=t.parent)
        async with t.w.transaction() as remover:
            await remover.execute("DELETE FROM sessions WHERE id = %s", (t.parent,))
            delivery = asyncio.create_task(outcome(t.tasks.deliver(debt)))
            await t.w.waits(delivery, "task_deliver_v1")
        assert await delivery is None
        assert await t.items() == []
        assert await t.debts() == []


async def scenario_two_starts_at_the_bound(url: str) -> None:
    """A start that waits for another is judged by what that left: no more run at once than may."""
    async with task_world(url) as t:
        first, second = (new_task(t.parent, OWNER, "dig", "spawn") for _ in range(2))
        async with t.w.transaction() as holder:
            await holder.execute("SELECT 1 FROM sessions WHERE id = %s FOR NO KEY UPDATE", (t.parent,))
            starts = [
                asyncio.create_task(outcome(t.tasks.start(task, TaskLimits(1)))) for task in (first, second)
            ]
            for start in starts:
                await t.w.waits(start, "task_start_v1")
        assert sorted(type(each).__name__ for each in await asyncio.gather(*starts)) == [
            "StartedTask",
            "TasksFull",
        ]


async def scenario_cancel_beside_the_result(url: str) -> None:
    """A cancel that waits for the end finds the result stored: one terminal record, and the parent is owed it."""
    async with task_world(url) as t:
        claim = await t.open_task()
        async with t.w.transaction() as ender:
            await run_as(ender, _end_call(claim), "turn_end_v3")
            cancel = asyncio.create_task(t.tasks.cancel(t.parent, claim.session_id, OWNER))
            await t.w.waits(cancel, "task_cancel_v1")
        cancelled = await cancel
        assert (cancelled.took_effect, cancelled.status) == (False, "completed")
        assert await t.debts() == [claim.session_id]
        assert "task.cancelled" not in await t.w.kinds(claim.session_id)


async def scenario_end_beside_the_cancel(url: str) -> None:
    """The mirror of it: an end that waits for the cancel is refused, and nothing is owed."""
    async with task_world(url) as t:
        claim = await t.open_task()
        record = draft("task.cancelled", {"v": 1, "task": claim.session_id})
        async with t.w.transaction() as canceller:
            await canceller.execute(
                "SELECT * FROM task_cancel_v1(%s, %s, %s, %s, %s)",
                (t.parent, claim.session_id, OWNER, record.text, record.digest),
            )
            end = asyncio.create_task(t.end(claim))
            await t.w.waits(end, "turn_end_v3")
        assert isinstance(await end, TurnClosed)
        assert await t.debts() == []
        assert (await t.w.kinds(claim.session_id))[1:] == ["task.cancelled", "turn.ended"]


async def scenario_start_beside_the_first_whole_turn(url: str) -> None:
    """A session that keeps its first whole turn while a start waits starts no task: it could never tell the result."""
    async with task_world(url) as t:
        async with t.w.transaction() as keeper:
            await keeper.execute("UPDATE sessions SET retained = true WHERE id = %s", (t.parent,))
            start = asyncio.create_task(
                outcome(t.tasks.start(new_task(t.parent, OWNER, "dig", "spawn"), TaskLimits()))
            )
            await t.w.waits(start, "task_start_v1")
        assert isinstance(await start, HistoryModeConflict)
        assert await t.w.kinds(t.parent) == []


async def scenario_first_whole_turn_beside_a_start(url: str) -> None:
    """The mirror of it: a session that starts a task while a whole turn waits keeps none."""
    async with task_world(url) as t:
        head = await t.w.head(t.parent)
        async with t.w.transaction() as starter:
            await starter.execute("SELECT 1 FROM sessions WHERE id = %s FOR NO KEY UPDATE", (t.parent,))
            await starter.execute(
                "INSERT INTO session_keys (session_id, space, key, fingerprint, answer)"
                " VALUES (%s, 'task', 'one', '', '')",
                (t.parent,),
            )
            whole = t.w.log.retain(
                NewSession(t.parent, OWNER), [draft("noted", {"v": 1})], tail=head.tail, commit_id="one"
            )
            keep = asyncio.create_task(outcome(whole))
            await t.w.waits(keep, "session_retain_v1")
        assert isinstance(await keep, HistoryModeConflict)
        assert not (await t.w.rows("SELECT retained FROM sessions WHERE id = %s", t.parent))[0]["retained"]


PROOFS: list[tuple[Scenario, Mutation]] = [
    (
        scenario_end_beside_the_parents_removal,
        mutation(
            "removal locks no child",
            "session_remove_v3",
            ("ORDER BY id FOR UPDATE) children", "ORDER BY id) children"),
        ),
    ),
    (
        scenario_end_beside_the_parents_removal,
        mutation(
            "removal leaves what it is owed",
            "session_remove_v3",
            ("DELETE FROM deliveries WHERE parent = ANY (v_ids);", ""),
        ),
    ),
    (
        scenario_removal_of_a_child_beside_its_delivery,
        mutation("whatever is owed is delivered", "task_deliver_v1", (" AND md5(body) = p_version", "")),
    ),
    (
        scenario_delivery_beside_the_parents_removal,
        mutation(
            "a delivery locks no parent",
            "task_deliver_v1",
            ("WHERE id = p_parent FOR NO KEY UPDATE;", "WHERE id = p_parent;"),
        ),
    ),
    (
        scenario_two_starts_at_the_bound,
        mutation(
            "a start locks no parent",
            "task_start_v1",
            (
                "WHERE id = p_parent AND owner = p_owner FOR NO KEY UPDATE;",
                "WHERE id = p_parent AND owner = p_owner;",
            ),
        ),
    ),
    (
        scenario_start_beside_the_first_whole_turn,
        mutation(
            "a session of whole turns starts tasks", "task_start_v1", ("IF v_head.retained", "IF false")
        ),
    ),
    (
        scenario_first_whole_turn_beside_a_start,
        mutation(
            "a session that started tasks keeps whole turns",
            "session_retain_v1",
            ("OR NOT v_head.retained AND EXISTS", "OR false AND EXISTS"),
        ),
    ),
    (
        scenario_end_beside_the_cancel,
        mutation(
            "a cancelled task is owed",
            "task_cancel_v1",
            (
                "PERFORM turn_close_open_v1(v_turn, 'cancelled', NULL);\n      DELETE FROM deliveries WHERE child = p_task; result",
                "PERFORM turn_close_open_v1(v_turn, 'cancelled', NULL);\n      result",
            ),
        ),
    ),
    (
        scenario_cancel_beside_the_result,
        mutation(
            "an end owes nothing",
            "task_owe_v1",
            (
                "ON CONFLICT DO NOTHING",
                "ON CONFLICT DO NOTHING; DELETE FROM deliveries WHERE child = NEW.session_id",
            ),
        ),
    ),
]


@pytest.mark.behaviour("TSK-43", "SES-12")
async def test_an_end_and_its_parents_removal_leave_nothing_behind_whichever_is_first(
    database_url: str,
) -> None:
    await scenario_end_beside_the_parents_removal(database_url)
    await scenario_removal_beside_the_childs_end(database_url)


@pytest.mark.behaviour("TSK-19", "TSK-22")
async def test_a_delivery_tells_what_is_owed_when_it_has_the_parent(database_url: str) -> None:
    await scenario_removal_of_a_child_beside_its_delivery(database_url)
    await scenario_delivery_beside_the_parents_removal(database_url)


@pytest.mark.behaviour("TSK-04")
async def test_a_start_that_waited_is_judged_by_what_the_other_left(database_url: str) -> None:
    await scenario_two_starts_at_the_bound(database_url)


@pytest.mark.behaviour("THR-76")
async def test_tasks_and_whole_turns_keep_apart_whichever_is_first(database_url: str) -> None:
    await scenario_start_beside_the_first_whole_turn(database_url)
    await scenario_first_whole_turn_beside_a_start(database_url)


@pytest.mark.behaviour("TSK-23", "TSK-40")
async def test_a_cancel_and_a_result_leave_one_terminal_record_whichever_is_first(database_url: str) -> None:
    await scenario_cancel_beside_the_result(database_url)
    await scenario_end_beside_the_cancel(database_url)


@pytest.mark.mutation
@pytest.mark.parametrize(("scenario", "change"), PROOFS, ids=[change.name for _, change in PROOFS])
async def test_scenario_fails_without_its_rule(
    scenario: Scenario, change: Mutation, database_url: str
) -> None:
    await prove(database_url, scenario, change)
