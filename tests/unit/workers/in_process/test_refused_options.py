"""Options that persistent history has no place for: each refused by name, before any model or tool runs."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from shared.agents import Agent, TurnCommands, TurnOptions, to_turn_input_hook, tool
from shared.conversations import ConversationMessage, HistoryUpdate
from shared.domain.errors import ConfigError, InvalidInput
from shared.domain.ids import SessionId
from shared.models.scripted import ScriptedModel
from shared.models.types import ToolCall
from tests.support.whole_turn_world import Program
from workers.in_process import in_memory_sessions
from workers.in_process.whole_turn import REFUSED_OPTIONS


async def _observe(update: object) -> None:
    raise AssertionError("nothing is recorded as it goes")


GIVEN: dict[str, Any] = {
    "history": [ConversationMessage.user("before")],
    "on_history": _observe,
    "input": to_turn_input_hook(TurnCommands()),
    "durability": object(),
    "subagent": object(),
    "resume": 1,
    "resume_usage": {},
}


@pytest.mark.behaviour("THR-68", "THR-69", "THR-T08")
@pytest.mark.parametrize("option", REFUSED_OPTIONS)
async def test_an_option_of_another_history_is_refused_and_nothing_runs(option: str) -> None:
    ran: list[str] = []

    @tool()
    async def look() -> str:
        """Look."""
        ran.append("tool")
        return ""

    agent = Agent("a", "Look.", tools=[look])
    program = Program(ToolCall("c", "look", "{}"), "done")
    async with program.opened():
        with pytest.raises(ConfigError) as raised:
            await agent.run("hi", options=TurnOptions(**{option: GIVEN[option]}))
        assert raised.value.fields == {"field": f"options.{option}"}
        assert (program.model.requests, ran, program.steps) == ([], [], [])
        assert program.kinds == []


@pytest.mark.behaviour("THR-68")
def test_every_option_but_the_session_is_another_historys() -> None:
    assert {field.name for field in fields(TurnOptions)} == {*REFUSED_OPTIONS, "session_id"}


async def test_a_session_may_be_named_once() -> None:
    one, two = SessionId("one"), SessionId("two")
    agent, program = Agent("a", "Be brief."), Program("a", "b")
    async with program.opened():
        assert (await agent.run("hi", options=TurnOptions(session_id=one))).session_id == one
        with pytest.raises(InvalidInput, match="two sessions"):
            await agent.run("hi", session_id=one, options=TurnOptions(session_id=two))
        with pytest.raises(InvalidInput):
            await agent.run("hi", session_id=SessionId(" "))
    assert len(program.model.requests) == 1


@pytest.mark.behaviour("THR-67", "THR-68")
async def test_history_in_memory_grows_step_by_step_and_takes_what_whole_turns_refuse() -> None:
    @tool()
    async def look() -> str:
        """Look."""
        return "found"

    seen: list[int] = []

    async def observe(update: HistoryUpdate) -> None:
        seen.append(len(update.prompt))

    commands = TurnCommands()
    commands.follow_up("and now?")
    options = TurnOptions(on_history=observe, input=to_turn_input_hook(commands))
    model = ScriptedModel([ToolCall("c", "look", "{}"), "one", "two"])
    async with in_memory_sessions(model=model, model_name="m"):
        result = await Agent("a", "Look.", tools=[look]).run("hi", options=options)
    assert (result.reply, commands.waiting) == ("two", ())
    assert seen == [1, 3, 4, 5, 6]
