"""The sweeps of background tasks: parents are told what they are owed, a bad one keeps nobody waiting, late tasks end."""

from __future__ import annotations

from typing import Any

import pytest

from shared.conformance import HandClock
from shared.conformance.turn_stage import commit_id, ended, started
from shared.domain.errors import StoreBusy, StoreUnavailable
from shared.domain.ids import OwnerId, SessionId, WorkerId, new_session_id
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.log import NewSession
from shared.sessions.records import draft
from shared.tasks.inproc import InprocTaskStore
from shared.tasks.port import Debt, DeliveredTask, TaskLimits, new_task
from shared.turns.inproc import InprocTurnQueue
from shared.turns.inproc.rows import TurnRow, TurnTables
from shared.turns.queue import Claim, Ending
from shared.wakes.inproc import InprocWakes
from shared.wakes.names import TURNS
from workers.sweeps import BATCH, DELIVERY_RETRY_MAX_S, DELIVERY_RETRY_S, Sweep, task_sweeps

OWNER = OwnerId("o")
LIMITS = TaskLimits(20)


class BadParents(InprocTaskStore):
    """Some parents cannot be told; ``away`` says that nobody can."""

    def __init__(self, store: InprocStore) -> None:
        super().__init__(store)
        self.bad: set[SessionId] = set()
        self.tried: list[SessionId] = []
        self.away = False

    async def deliver(self, debt: Debt, *, wait: bool = True) -> DeliveredTask | None:
        self.tried.append(debt.parent)
        assert not wait, "a sweep waits for nobody"
        if self.away:
            raise StoreUnavailable("the database cannot be reached")
        if debt.parent in self.bad:
            raise StoreBusy("the parent is busy just now")
        return await super().deliver(debt, wait=wait)


class Upkeep:
    """A store of tasks, its sweeps, and what they told."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.store = InprocStore(self.clock)
        self.tasks = BadParents(self.store)
        self.queue = InprocTurnQueue(self.store)
        self.log = InprocSessionLog(self.store)
        self.wakes = InprocWakes()
        self.changed: list[SessionId] = []
        self.late, self.deliver = task_sweeps(self.tasks, self.wakes, on_change=self.changed.append)

    async def session(self) -> SessionId:
        return (await self.log.create(NewSession(new_session_id(), OWNER))).session_id

    async def open_task(self, parent: SessionId, **given: Any) -> Claim:
        begun = await self.tasks.start(new_task(parent, OWNER, "dig", "spawn", **given), LIMITS)
        claim = await self.tasks.take(begun.task_id, OWNER, WorkerId("w"), lease_s=1e6)
        assert claim is not None
        await self.queue.open(claim, commit_id(claim, "open"), [started(claim)])
        return claim

    async def owe(self, parent: SessionId, n: int = 1) -> None:
        for _ in range(n):
            claim = await self.open_task(parent)
            result = draft("task.result", {"v": 1, "task": claim.session_id, "outcome": "completed"})
            await self.queue.end(claim, commit_id(claim, "end"), [result, ended()], Ending("completed"))

    async def waiting(self, parent: SessionId) -> int:
        return (await self.log.head(parent, OWNER)).inbox_waiting


@pytest.mark.behaviour("TSK-43", "DST-11")
async def test_the_sweep_delivers_what_is_owed_and_rings_for_the_turns_that_answer() -> None:
    u = Upkeep()
    parents = [await u.session() for _ in range(3)]
    for parent in parents:
        await u.owe(parent, 2)
    assert await u.deliver.act() == 6
    assert [await u.waiting(parent) for parent in parents] == [2, 2, 2]
    ready = {str(row.id) for row in _inbox_rows(u)}
    assert {i for queue, ids in u.wakes.rings for i in ids if queue == TURNS} == ready and len(ready) == 3
    assert set(u.changed) == set(parents)
    assert await u.deliver.act() == 0


@pytest.mark.behaviour("TSK-43", "TSK-37")
async def test_a_parent_that_cannot_be_told_keeps_nobody_waiting_and_is_tried_ever_more_rarely() -> None:
    u = Upkeep()
    bad, good = await u.session(), await u.session()
    u.tasks.bad = {bad}
    await u.owe(bad, 3)
    await u.owe(good)
    assert await u.deliver.act() == 1
    assert (await u.waiting(good), u.tasks.tried.count(bad)) == (1, 1), "of one parent one try a pass"
    assert await u.deliver.act() == 0
    assert u.tasks.tried.count(bad) == 1, "it is not due"
    pause = DELIVERY_RETRY_S
    for _ in range(10):
        u.clock.advance(pause - 0.5)
        assert await u.deliver.act() == 0
        tried = u.tasks.tried.count(bad)
        u.clock.advance(1.0)
        await u.deliver.act()
        assert u.tasks.tried.count(bad) == tried + 1
        pause = min(pause * 2, DELIVERY_RETRY_MAX_S)
    u.tasks.bad = set()
    u.clock.advance(DELIVERY_RETRY_MAX_S)
    assert await u.deliver.act() == 3
    assert await u.waiting(bad) == 3


async def test_more_bad_parents_than_a_batch_holds_do_not_hide_a_good_one() -> None:
    u = Upkeep()
    for _ in range(BATCH + 5):
        parent = await u.session()
        u.tasks.bad.add(parent)
        await u.owe(parent)
    good = await u.session()
    await u.owe(good)
    assert await u.deliver.act() == 1
    assert await u.waiting(good) == 1


async def test_a_database_that_is_away_counts_no_try() -> None:
    u = Upkeep()
    parent = await u.session()
    await u.owe(parent)
    u.tasks.away = True
    with pytest.raises(StoreUnavailable):
        await u.deliver.act()
    u.tasks.away = False
    [debt] = await u.tasks.owed(parent=parent)
    assert debt.tries == 0
    assert await u.deliver.act() == 1


@pytest.mark.behaviour("TSK-25", "TSK-26", "TSK-27")
async def test_an_open_task_past_its_deadline_is_ended_and_its_parent_told() -> None:
    u = Upkeep()
    parent = await u.session()
    claim = await u.open_task(parent, deadline_in_s=10)
    assert await u.late.act() == 0
    u.clock.advance(11)
    assert await u.late.act() == 1
    assert u.changed == [claim.session_id]
    assert await u.deliver.act() == 1
    [item] = await u.log.read(parent, kinds=["inbox.queued"])
    assert item.data["content"].endswith("interrupted]\n(task.deadline)")


def test_the_sweeps_have_names_of_their_own() -> None:
    u = Upkeep()
    assert [sweep.name for sweep in (u.late, u.deliver)] == ["tasks.deadline", "tasks.deliver"]
    assert isinstance(u.late, Sweep)


def _inbox_rows(u: Upkeep) -> list[TurnRow]:
    return [
        row
        for row in u.store.part(TurnTables).turns.values()
        if row.origin == "inbox" and row.status == "ready"
    ]
