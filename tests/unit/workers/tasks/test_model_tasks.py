"""The model's tools for background tasks: off unless asked for, once a call, with the turn's own meta and run id."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from shared.agents import Agent, tool
from shared.domain.errors import ConfigError
from shared.domain.failpoints import Failpoints
from shared.domain.ids import SessionId
from shared.models.scripted import ScriptedModel
from shared.models.types import ToolCall
from shared.tasks.notice import NOTICE_CHARS
from shared.tasks.port import LIST_MAX_TASKS
from tests.support.turn_world import LEASE_S, OWNER, TurnWorld
from tests.support.virtual_time import virtual_time
from workers.tasks.tools import START_DESCRIPTION, UNKNOWN, describe_task, task_id_of


def starting(mode: str = "fork", n: int = 1) -> ToolCall:
    return ToolCall(f"c{n}", "start_task", json.dumps({"instructions": "find out", "mode": mode}))


def asking(task_id: str, n: int = 1) -> ToolCall:
    return ToolCall(f"s{n}", "task_status", json.dumps({"task_id": task_id}))


def results(world: TurnWorld) -> list[str]:
    return [d["text"] for d in world.data("memory.tool-result")]


def tools_of(model: ScriptedModel, n: int = -1) -> list[str]:
    return [one.name for one in model.requests[n].tools]


async def tasks_of(world: TurnWorld) -> list[Any]:
    return list(await world.tasks.list(world.session, OWNER, limit=LIST_MAX_TASKS))


@pytest.mark.behaviour("TSK-44")
@virtual_time
async def test_the_tools_are_off_unless_an_agent_asks_for_them() -> None:
    for wanted in (False, True):
        model = ScriptedModel(["hi"])
        world = TurnWorld(model, task_tools=wanted)
        await world.admit()
        await world.process().run()
        assert tools_of(model) == (["start_task", "task_status"] if wanted else [])
        [header] = world.data("request.prepared")
        assert [one["name"] for one in header["tools"]] == tools_of(model)


@pytest.mark.behaviour("TSK-02", "TSK-45", "TSK-14")
@virtual_time
async def test_a_started_task_has_the_turns_own_meta_run_id_and_agent() -> None:
    model = ScriptedModel([starting(), "I asked.", "42", "It is 42."])
    world = TurnWorld(model, task_tools=True)
    await world.admit(meta={"tenant": "a"})
    process = world.process()
    holding = await process.run()
    [started] = world.data("task.started")
    assert (started["run_id"], started["mode"], started["instructions"]) == (
        holding.claim.run_id,
        "fork",
        "find out",
    )
    assert json.loads(results(world)[0]) == {"task_id": started["task"], "status": "started"}
    child = await process.run()
    assert (child.claim.session_id, child.claim.origin) == (started["task"], "task")
    assert (dict(child.claim.meta or {}), child.claim.agent) == ({"tenant": "a"}, "agent")
    # A task starts no tasks: its model is not even shown the tools.
    assert tools_of(model) == []
    reaction = await process.run()
    assert (reaction.claim.origin, dict(reaction.claim.meta or {})) == ("inbox", {"tenant": "a"})


@pytest.mark.behaviour("TSK-46")
@virtual_time
async def test_the_model_is_told_what_a_fork_sees() -> None:
    model = ScriptedModel(["hi"])
    world = TurnWorld(model, task_tools=True)
    await world.admit()
    await world.process().run()
    [shown] = [one.description for one in model.requests[0].tools if one.name == "start_task"]
    assert shown == START_DESCRIPTION
    words = " ".join(shown.split())
    assert "sees this conversation up to, but without, the user's latest message" in words
    assert "neither that message nor anything that was said or done since" in words


@pytest.mark.behaviour("TSK-10", "BEY-01")
@virtual_time
async def test_a_call_that_is_repeated_after_a_crash_starts_one_task() -> None:
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    world = TurnWorld(ScriptedModel([starting(), "I asked."]), task_tools=True)
    await world.admit()
    dead = world.process("w1", failpoints=Failpoints({"task.unrung": hang}))
    holding, running = await dead.start()
    await reached.wait()
    assert len(await tasks_of(world)) == 1
    holding.lose("interrupted")  # the process is gone: nothing more of it is stored
    await asyncio.wait([running])
    await asyncio.sleep(LEASE_S + 1)
    successor = world.process("w2")
    while world.data("turn.ended") == []:
        await successor.run()
    [task] = await tasks_of(world)
    assert json.loads(results(world)[0])["task_id"] == task.task_id
    assert len(world.data("task.started")) == 1


@pytest.mark.behaviour("TSK-47", "TSK-39")
@virtual_time
async def test_a_string_that_is_no_id_is_answered_like_any_unknown_task() -> None:
    strings = ["no id at all!", "ses_" + "0" * 32, ""]
    model = ScriptedModel([*(asking(text, n) for n, text in enumerate(strings)), "done"])
    world = TurnWorld(model, task_tools=True)
    await world.admit()
    await world.process().run()
    assert results(world) == [UNKNOWN] * 3


@pytest.mark.behaviour("TSK-04", "TSK-44")
@virtual_time
async def test_a_refused_start_is_an_error_that_the_model_reads() -> None:
    calls = [starting(n=n) for n in range(3)]
    world = TurnWorld(ScriptedModel([*calls, "two it is"]), task_tools=True)
    await world.admit()
    await world.process().run()
    assert [d["status"] for d in world.data("memory.tool-result")] == ["ok", "ok", "error"]
    assert results(world)[-1].startswith("TasksFull: ")
    assert len(await tasks_of(world)) == 2


@pytest.mark.behaviour("TSK-39")
@virtual_time
async def test_the_model_reads_how_a_task_stands_and_what_it_returned() -> None:
    world = TurnWorld(ScriptedModel([starting("spawn"), "asked", "42", "seen"]), task_tools=True)
    await world.admit()
    process = world.process()
    await process.run()
    [view] = await tasks_of(world)
    assert describe_task(view) == {"task_id": view.task_id, "status": "pending"}
    await process.run()
    [view] = await tasks_of(world)
    assert describe_task(view) == {"task_id": view.task_id, "status": "completed", "result": "42"}
    long = describe_task(replace(view, text="x" * (NOTICE_CHARS + 1)))
    assert (len(long["result"]), "cut" in long) == (NOTICE_CHARS, True)


def test_an_id_follows_from_the_calls_token_alone() -> None:
    assert task_id_of("r:call:0") == task_id_of("r:call:0") != task_id_of("r:call:1")
    assert isinstance(task_id_of("r:call:0"), str) and task_id_of("x") != SessionId("x")


def test_an_agents_own_tool_may_not_have_the_name_of_one_of_these() -> None:
    @tool
    async def start_task() -> str:
        """Mine."""
        return ""

    assert Agent("a", "x", tools=[start_task]).tools
    with pytest.raises(ConfigError):
        Agent("a", "x", tools=[start_task], task_tools=True)
