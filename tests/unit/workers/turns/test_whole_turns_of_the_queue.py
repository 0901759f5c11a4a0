"""Admitted turns of an agent that keeps them whole: everything in the closing commit, and of a failed one start and end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from shared.agents import Agent, Policy, Turn, TurnOutcome, tool
from shared.domain.errors import ConfigError, CorruptRecord, ModelRefused
from shared.domain.failpoints import Failpoints
from shared.domain.ids import SessionId
from shared.host.port import NewTurn
from shared.models.scripted import ScriptedModel, ScriptedReply
from shared.models.types import AssistantMessage, SystemMessage, ToolCall, ToolMessage, UserMessage
from shared.sessions.inproc import InprocSessionLog
from shared.sessions.records import Record
from tests.support.turn_world import LEASE_S, OWNER, TurnWorld
from tests.support.virtual_time import virtual_time
from workers.in_process import persistent_sessions
from workers.turns.body.in_process import run_turn

CALL = ToolCall("c0", "look", "{}")


@tool()
async def look() -> str:
    """Look."""
    return "found"


def world_of(*script: Any, **given: Any) -> TurnWorld:
    return TurnWorld(ScriptedModel(script), look, history="whole-turn", **given)


@virtual_time
@pytest.mark.behaviour("THR-50", "THR-58")
async def test_a_whole_turn_is_its_start_and_one_closing_commit_whatever_it_did() -> None:
    world = world_of(CALL, CALL, "done")
    turn = await world.admit()
    await world.process().run()
    assert [(w.what, w.calls) for w in world.queue.writes] == [("open", {}), ("end", {})]
    assert world.queue.writes[0].kinds == ("turn.started",)
    assert world.data("turn.started")[0]["history"] == "whole-turn"
    kinds = world.kinds()
    assert [kinds.count(k) for k in ("memory.message", "memory.tool-result", "turn.reply", "turn.ended")] == [
        3,
        2,
        1,
        1,
    ]
    assert kinds[-2:] == ["turn.reply", "turn.ended"]
    assert await world.queue.calls(world.session, turn) == []
    assert (await world.view(turn)).outcome == "completed"


@virtual_time
@pytest.mark.behaviour("THR-53", "THR-47")
async def test_the_next_turn_reads_a_kept_whole_turn_as_any_other() -> None:
    world = world_of(CALL, "done", "again")
    await world.admit("one")
    await world.process().run()
    await world.admit("two")
    await world.process().run()
    assert world.model.requests[-1].messages == (
        SystemMessage("Be brief."),
        UserMessage("one"),
        AssistantMessage("", (CALL,)),
        ToolMessage("c0", "look", "found"),
        AssistantMessage("done"),
        UserMessage("two"),
    )


@virtual_time
@pytest.mark.behaviour("THR-58")
async def test_a_failed_whole_turn_leaves_its_start_and_end_and_no_later_turn_reads_it() -> None:
    world = world_of("kept", CALL, ModelRefused("no"), "after")
    await world.admit("one")
    await world.process().run()
    before = len(world.kinds())
    failed = await world.admit("two")
    await world.process().run()
    assert world.kinds()[before:] == ["turn.started", "turn.ended"]
    assert world.data("turn.ended")[-1]["code"] == "model.refused"
    assert ((await world.view(failed)).outcome, (await world.view(failed)).code) == (
        "failed",
        "model.refused",
    )
    await world.admit("three")
    await world.process().run()
    texts = [m.text for m in world.model.requests[-1].messages]
    assert texts == ["Be brief.", "one", "kept", "three"]


@virtual_time
@pytest.mark.behaviour("THR-58")
async def test_a_whole_turn_that_fails_before_it_opens_leaves_its_start_and_end_too() -> None:
    world = world_of("kept", "after")
    await world.admit("one")
    await world.process().run()
    before = len(world.kinds())
    failed = await world.admit("two")
    process = world.process()
    process.runner.log = UnreadableLog(world.store)
    await process.run()
    assert world.kinds()[before:] == ["turn.started", "turn.ended"]
    assert (await world.view(failed)).code == "session.decode"
    await world.admit("three")
    await world.process().run()
    texts = [m.text for m in world.model.requests[-1].messages]
    assert texts == ["Be brief.", "one", "kept", "three"]


class UnreadableLog(InprocSessionLog):
    """A log of which no record decodes."""

    async def read_back(self, session_id: SessionId, **_: Any) -> Sequence[Record]:
        raise CorruptRecord("a record does not decode", session=session_id)


@virtual_time
@pytest.mark.behaviour("THR-58")
async def test_a_body_that_fails_or_says_so_leaves_nothing_of_its_runs() -> None:
    outcomes: list[TurnOutcome | KeyError] = [KeyError("host"), TurnOutcome("failed", "sorry")]

    async def use(turn: Turn) -> TurnOutcome:
        await turn.context("By the way.")
        await turn.run()
        match outcomes.pop(0):
            case TurnOutcome() as outcome:
                return outcome
            case error:
                raise error

    world = world_of("one", "two", use=use)
    for _ in range(2):
        turn = await world.admit()
        await world.process().run()
        assert (await world.view(turn)).outcome == "failed"
    assert world.kinds() == ["turn.started", "turn.ended"] * 2


@virtual_time
@pytest.mark.behaviour("THR-58")
async def test_a_whole_turn_out_of_time_leaves_its_start_and_end() -> None:
    async def sleeps(turn: Turn) -> TurnOutcome:
        await turn.run()
        await asyncio.sleep(3_600)
        raise AssertionError("unreachable")

    world = world_of("one", use=sleeps, policy=Policy(max_duration_s=5))
    await world.admit()
    await world.process().run()
    assert world.kinds() == ["turn.started", "turn.ended"]
    assert world.data("turn.ended")[0]["code"] == "turn.timeout"


@virtual_time
@pytest.mark.behaviour("THR-58", "THR-60")
@pytest.mark.parametrize("point", ["turn.opened", "turn.requested", "turn.tool-done", "turn.reply-ready"])
async def test_a_whole_turn_whose_worker_is_lost_is_never_continued(point: str) -> None:
    reached = asyncio.Event()

    async def stop() -> None:
        reached.set()
        await asyncio.Event().wait()

    world = world_of(CALL, "never", "after")
    turn = await world.admit()
    _, task = await world.process(failpoints=Failpoints({point: stop})).start()
    await reached.wait()
    await asyncio.sleep(2 * LEASE_S)
    successor = world.process("w2")
    assert await successor.claimer.claim(1, ()) == []
    await world.queue.reap()
    view = await world.view(turn)
    assert (view.status, view.outcome, view.code) == ("ended", "interrupted", "turn.lease")
    assert world.kinds() == ["turn.started", "turn.ended"]
    task.cancel()
    await asyncio.wait({task})
    assert world.kinds() == ["turn.started", "turn.ended"]
    world.model = successor.runner.model = ScriptedModel(["after"])
    await world.admit("next")
    await successor.run()
    assert [m.text for m in world.model.requests[0].messages] == ["Be brief.", "next"]


@virtual_time
@pytest.mark.behaviour("THR-58")
async def test_a_drain_and_a_cancel_leave_start_and_end_too() -> None:
    world = world_of(CALL, "never", ScriptedReply("never"))
    world.model.hold()
    drained = await world.admit()
    _, task = await world.process().start()
    await world.model.started()
    task.cancel()
    await asyncio.wait({task})
    assert (await world.view(drained)).outcome == "interrupted"
    cancelled = await world.admit()
    _, task = await world.process("w2").start()
    await world.model.started(2)
    assert (await world.queue.cancel(cancelled, OWNER)).took_effect
    task.cancel()
    await asyncio.wait({task})
    assert world.kinds() == ["turn.started", "turn.ended"] * 2


@virtual_time
async def test_a_row_that_another_worker_may_go_on_with_is_kept_step_by_step() -> None:
    world = world_of(CALL, "done")
    turn = await world.admit(on_worker_loss="continue")  # as it was admitted before its agent was changed
    await world.process().run()
    assert [w.what for w in world.queue.writes] == ["open", "append", "append", "end"]
    assert "history" not in world.data("turn.started")[0]
    assert (await world.view(turn)).outcome == "completed"


def test_a_whole_turn_is_never_continued_whatever_its_agent_says() -> None:
    agent = Agent("a", "Be brief.", history="whole-turn", on_worker_loss="continue")
    assert agent.on_worker_loss == "interrupt"
    with pytest.raises(ConfigError) as raised:
        Agent("a", "Be brief.", history="sometimes")  # type: ignore[arg-type]  # a wrong word
    assert raised.value.fields == {"field": "agent.a.history"}


async def test_a_hosts_own_turn_is_not_kept_whole_in_silence() -> None:
    agent = Agent("a", "Be brief.", history="whole-turn")
    with pytest.raises(ConfigError):
        await run_turn(agent, NewTurn({"text": "hi"}), None)  # type: ignore[arg-type]  # nothing of it is reached
    async with persistent_sessions(
        log=TurnWorld(ScriptedModel([])).log, model=ScriptedModel(["hi"]), model_name="m"
    ):
        assert (await agent.run("hi")).reply == "hi"
