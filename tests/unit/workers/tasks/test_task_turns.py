"""A task's turn in a worker: its result and delivery, its deadline, what an earlier attempt left, what is refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shared.domain.errors import StoreUnavailable, TurnRefused
from shared.domain.failpoints import Failpoints
from shared.domain.ids import SessionId
from shared.host.port import SessionAddress
from shared.host.tasks.delivering import deliver_owed
from shared.models.scripted import ScriptedModel
from shared.sessions.records import Record
from shared.sessions.vocabulary import draft_of
from shared.sessions.vocabulary_around import BackgroundTaskResult
from shared.tasks.port import Debt, DeliveredTask, StartedTask, TaskLimits, new_task
from shared.turns.admission import TurnToAdmit
from tests.support.turn_world import LEASE_S, OWNER, TurnWorld
from tests.support.virtual_time import virtual_time


async def start(world: TurnWorld, mode: Any = "spawn", **given: Any) -> StartedTask:
    """Start a task of the world's session."""
    if not world.session:
        await world.deliver("first")
        await world.process("setup").run()
    task = new_task(world.session, OWNER, "work", mode, **given)
    return await world.tasks.start(task, TaskLimits())


def told(world: TurnWorld) -> list[tuple[str, str]]:
    return [(d["id"], d["content"]) for d in world.data("inbox.queued") if d["id"] != "first"]


def records(world: TurnWorld, session: SessionId) -> list[Record]:
    return list(world.store.sessions[session].records)


@pytest.mark.behaviour("TSK-18", "TSK-19", "TSK-20", "TSK-09")
@virtual_time
async def test_a_worker_runs_a_task_tells_its_parent_and_rings_for_the_parents_turn() -> None:
    world = TurnWorld(ScriptedModel(["seen", "42", "thanks"]))
    task = await start(world)
    process = world.process()
    await process.run()
    assert [r.kind for r in records(world, task.task_id)][-3:] == ["turn.reply", "task.result", "turn.ended"]
    # The result shares the turn's closing commit.
    assert world.queue.writes[-1].what == "end" and "task.result" in world.queue.writes[-1].kinds
    [(item, notice)] = told(world)
    assert item == f"task:{task.task_id}" and "42" in notice
    [rung] = process.rings
    assert process.hints.changes[-1] == world.session
    holding = await process.run()
    assert (holding.claim.turn_id, holding.claim.origin) == (rung, "inbox")
    assert world.data("turn.ended")[-1]["reason"] == "completed"


@pytest.mark.behaviour("TSK-25", "TSK-28", "TSK-29", "TSK-38")
@virtual_time
async def test_a_model_call_that_goes_on_is_cut_before_the_deadline_and_told_in_time() -> None:
    model = ScriptedModel(["seen", "never"])
    world = TurnWorld(model)
    task = await start(world, deadline_in_s=10.0)
    model.hold()
    process = world.process()
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    _, running = await process.start()
    await running
    assert loop.time() - began_at == pytest.approx(8.0, abs=0.1)
    ended = [r.data for r in records(world, task.task_id) if r.kind in ("turn.ended", "task.result")]
    assert [(e.get("reason") or e.get("outcome"), e["code"]) for e in ended] == [
        ("interrupted", "task.deadline"),
        ("interrupted", "task.deadline"),
    ]
    view = await world.tasks.status(world.session, task.task_id, OWNER)
    assert (view.status, view.code, view.owed) == ("interrupted", "task.deadline", False)
    assert told(world)[0][1].startswith(f"[Background task {task.task_id} interrupted]")


@pytest.mark.behaviour("TSK-37", "TSK-19")
def test_a_result_that_cannot_be_delivered_stays_owed_and_is_delivered_once_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @virtual_time
    async def run() -> None:
        world = TurnWorld(ScriptedModel(["seen", "42"]))
        task = await start(world)
        process = world.process()
        away = True

        class Away:
            def __getattr__(self, name: str) -> Any:
                return getattr(world.tasks, name)

            async def deliver(self, debt: Debt) -> DeliveredTask | None:
                if away:
                    raise StoreUnavailable("the database cannot be reached")
                return await world.tasks.deliver(debt)

        assert process.runner.deliver is not None
        object.__setattr__(process.runner.deliver, "store", Away())
        await process.run()
        view = await world.tasks.status(world.session, task.task_id, OWNER)
        assert (view.status, view.owed, told(world)) == ("completed", True, [])
        parent = SessionAddress(world.session, OWNER)
        assert [one.task_id for one in await deliver_owed(world.tasks, parent)] == [task.task_id]
        assert await deliver_owed(world.tasks, parent) == []
        assert len(told(world)) == 1

    with caplog.at_level(logging.WARNING):
        run()
    assert any("waits for the sweep" in r.message for r in caplog.records)


@pytest.mark.behaviour("TSK-18")
@virtual_time
async def test_an_attempt_that_finds_the_result_ends_the_turn_and_asks_no_model() -> None:
    model = ScriptedModel(["seen"])
    world = TurnWorld(model)
    task = await start(world)
    first = world.process("w1")
    holding = await first.claim()
    opened = await first.runner._opener.open(
        holding.claim,
        first.runner._parts(
            holding.claim, world.agent, writer := first.runner._writer(holding.claim), first.feed
        ),
        writer,
    )
    assert opened.turn is not None
    result = BackgroundTaskResult(task=task.task_id, outcome="partial", text="half of it")
    await writer.commit([draft_of(result)])
    await writer.stop()
    await asyncio.sleep(LEASE_S + 1)
    await world.process("w2").run()
    kinds = [r.kind for r in records(world, task.task_id)]
    assert (kinds.count("task.result"), kinds[-1]) == (1, "turn.ended")
    assert len(model.requests) == 1
    view = await world.tasks.status(world.session, task.task_id, OWNER)
    assert (view.status, view.text) == ("partial", "half of it")
    assert "half of it" in told(world)[0][1]


@pytest.mark.behaviour("TSK-24", "TSK-36")
@virtual_time
async def test_a_task_that_the_host_refuses_fails_with_its_reason_and_its_notice_waits() -> None:
    class Closed:
        closed = False

        async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
            if self.closed:
                raise TurnRefused("the budget is spent", session=turn.session_id, reason="budget")
            await proceed()

    world = TurnWorld(ScriptedModel(["seen"]))
    world.admission = closed = Closed()
    task = await start(world)
    closed.closed = True
    await world.process().run()
    view = await world.tasks.status(world.session, task.task_id, OWNER)
    assert (view.status, view.code) == ("failed", "turn.refused")
    assert [item for item, _ in told(world)] == [f"task:{task.task_id}"]
    # The reaction is refused too: the notice waits, no attempt counted.
    await world.process().run()
    assert {i.id: i.attempts for i in await world.inbox.waiting(world.session, OWNER)} == {
        f"task:{task.task_id}": 0
    }


@pytest.mark.behaviour("TSK-01", "TSK-46")
@virtual_time
async def test_a_forks_prompt_has_the_conversation_up_to_the_last_closed_turn_and_no_more() -> None:
    model = ScriptedModel(["seen", "spoken", "one", "two", "three"])
    world = TurnWorld(model)
    await world.deliver("first")
    await world.process().run()
    await world.admit("my latest message")
    model.hold()
    speaking = world.process("w1")
    _, running = await speaking.start()
    await model.started(2)
    for mode in ("fork", "spawn"):
        await start(world, mode)
    model.release()
    await running
    while len(model.requests) < 5:  # both tasks, and what the parent makes of the first
        await world.process("w2").run()
    asked = [[m.text for m in request.messages[1:]] for request in model.requests[2:]]
    of_tasks = [texts for texts in asked if texts[-1] == "work"]
    assert sorted(of_tasks, key=len) == [["work"], ["content of first", "seen", "work"]]


@pytest.mark.behaviour("TSK-19", "TSK-20")
@pytest.mark.parametrize("point", ["task.owed", "task.told"])
def test_a_process_that_drains_between_end_and_bell_hands_no_turn_back(point: str) -> None:
    @virtual_time
    async def run() -> None:
        world = TurnWorld(ScriptedModel(["seen", "42"]))
        task = await start(world)
        reached = asyncio.Event()

        async def hang() -> None:
            reached.set()
            await asyncio.Event().wait()

        process = world.process(failpoints=Failpoints({point: hang}))
        _, running = await process.start()
        await reached.wait()
        running.cancel()
        await asyncio.wait([running])
        assert (running.cancelled(), process.runner.counts.handed_back) == (True, 0)
        view = await world.tasks.status(world.session, task.task_id, OWNER)
        assert (view.status, view.owed) == ("completed", point == "task.owed")

    run()
