"""Steering and follow-ups: where they enter a running turn, in which order, and that none is ever lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from shared.agents import (
    Agent,
    Policy,
    TurnCommand,
    TurnCommands,
    TurnOptions,
    TurnResult,
    to_turn_input_hook,
    tool,
)
from shared.conversations import (
    CONVERSATION_MAX_BYTES,
    ConversationMessage,
    HistoryUpdate,
    to_prompt,
)
from shared.domain.errors import HistoryFull, ModelRefused
from shared.domain.ids import SessionId, new_session_id
from shared.models.scripted import Script, ScriptedModel, ScriptedReply
from shared.models.types import ModelRequest
from tests.support.scripted_tools import Bench, calls, quick
from workers.in_process import InMemorySessions, in_memory_sessions


class Talk:
    """One session that is talked to with commands at hand."""

    def __init__(self, sessions: InMemorySessions, agent: Agent) -> None:
        self.commands = TurnCommands()
        self.session = new_session_id()
        self._sessions = sessions
        self._agent = agent

    async def run(
        self, text: str = "go", *, history: Sequence[ConversationMessage] | None = ()
    ) -> TurnResult:
        options = TurnOptions(
            session_id=self.session, history=history, input=to_turn_input_hook(self.commands)
        )
        return await self._agent.run(text, options=options)

    async def told(self) -> list[str]:
        """Who said what, calls and results by their role alone."""
        found = await self._sessions.conversation_store.snapshot(self.session)
        return [m.text or m.role for m in to_prompt(found)]

    def waiting(self) -> list[str]:
        return [command.text for command in self.commands.waiting]


@pytest.mark.behaviour("THR-79", "THR-90", "THR-92", "THR-T14")
async def test_steering_sent_while_a_tool_runs_enters_after_its_whole_batch() -> None:
    bench = Bench()
    agent = Agent("a", "Be brief.", tools=[bench.tool])
    model = ScriptedModel([calls("work", "work"), "Done."])
    async with in_memory_sessions(model=model) as sessions:
        talk = Talk(sessions, agent)
        running = asyncio.create_task(talk.run())
        await bench.has_begun(2)
        talk.commands.steer("shorter")
        talk.commands.steer("and in French")
        bench.let_go("0")
        await asyncio.sleep(0)
        assert (bench.cancelled, await talk.told()) == ([], ["go"]), "the work goes on as it was"
        bench.let_go("1")
        result = await running
        assert result.pending == 0
        assert await talk.told() == ["go", "assistant", "tool", "shorter", "and in French", "Done."]
        asked = [type(m).__name__ for m in model.requests[1].messages[2:]]
        assert asked == [*("AssistantMessage", "ToolMessage", "ToolMessage"), *("UserMessage", "UserMessage")]
        assert model.requests[0].messages == model.requests[1].messages[:2]


@pytest.mark.behaviour("THR-90", "THR-92")
async def test_steering_sent_while_the_model_answers_enters_after_the_answer() -> None:
    model = ScriptedModel(["A long answer.", "A short one."])
    async with in_memory_sessions(model=model) as sessions:
        talk = Talk(sessions, Agent("a", "Be brief."))
        model.hold()
        running = asyncio.create_task(talk.run())
        await model.started()
        talk.commands.steer("shorter")
        model.release()
        assert (await running).reply == "A short one."
        assert model.cancelled == 0
        assert await talk.told() == ["go", "A long answer.", "shorter", "A short one."]


@pytest.mark.behaviour("THR-91", "THR-T14")
async def test_a_follow_up_enters_only_where_the_agent_would_have_stopped() -> None:
    talks: list[Talk] = []

    def first(request: ModelRequest) -> Script:
        talks[0].commands.follow_up("one more")
        talks[0].commands.follow_up("and another")
        return calls("quick")

    model = ScriptedModel([first, "Done.", "One more.", "Another."])
    async with in_memory_sessions(model=model) as sessions:
        talks.append(talk := Talk(sessions, Agent("a", "Be brief.", tools=[quick()])))
        result = await talk.run()
        assert (result.reply, result.pending) == ("Another.", 0)
        assert await talk.told() == [
            *("go", "assistant", "tool", "Done."),
            *("one more", "One more.", "and another", "Another."),
        ]


@pytest.mark.behaviour("THR-90", "THR-91", "THR-T14")
async def test_a_follow_up_sent_in_the_last_step_enters_and_steering_goes_before_it() -> None:
    talks: list[Talk] = []

    def last(request: ModelRequest) -> Script:
        talks[0].commands.follow_up("later")
        talks[0].commands.steer("now")
        return "Done."

    model = ScriptedModel([last, "Now.", "Later."])
    async with in_memory_sessions(model=model) as sessions:
        talks.append(talk := Talk(sessions, Agent("a", "Be brief.")))
        await talk.run()
        assert await talk.told() == ["go", "Done.", "now", "Now.", "later", "Later."]


@pytest.mark.behaviour("THR-T14")
async def test_what_comes_too_late_waits_for_the_next_turn() -> None:
    talks: list[Talk] = []

    @tool
    async def send() -> str:
        """Send."""
        talks[0].commands.follow_up("after it")
        talks[0].commands.steer("at the cap")
        return "sent"

    agent = Agent("a", "Be brief.", tools=[send], policy=Policy(max_steps=1))
    model = ScriptedModel([calls("send"), "Hi.", "Never."])
    async with in_memory_sessions(model=model) as sessions:
        talks.append(talk := Talk(sessions, agent))
        result = await talk.run()
        assert (result.outcome, result.pending) == ("partial", 2)
        assert talk.waiting() == ["after it", "at the cap"], "a bound stops the turn, and keeps the order"
        assert await talk.told() == ["go", "assistant", "tool"]


@pytest.mark.behaviour("THR-91", "THR-T14")
@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_answer_that_was_cut_takes_nothing_up(reason: str) -> None:
    model = ScriptedModel([ScriptedReply("So far", finish_reason=reason)])
    async with in_memory_sessions(model=model) as sessions:
        talk = Talk(sessions, Agent("a", "Be brief."))
        talk.commands.follow_up("go on")
        result = await talk.run()
        assert (result.outcome, talk.waiting()) == ("partial", ["go on"])


@pytest.mark.behaviour("THR-T14")
@pytest.mark.parametrize("how", ["fails", "is interrupted"])
async def test_a_turn_that_does_not_end_well_loses_no_command(how: str) -> None:
    model = ScriptedModel([ModelRefused("no"), "Hi.", "Bye."])
    async with in_memory_sessions(model=model) as sessions:
        talk = Talk(sessions, Agent("a", "Be brief."))
        talk.commands.steer("first")
        talk.commands.follow_up("second")
        model.hold()
        running = asyncio.create_task(talk.run())
        await model.started()
        if how == "is interrupted":
            running.cancel()
        model.release()
        with pytest.raises((ModelRefused, asyncio.CancelledError)):
            await running
        assert talk.waiting() == ["first", "second"]


@pytest.mark.behaviour("THR-88", "THR-T14")
async def test_a_command_that_does_not_fit_waits_and_the_step_before_it_stays() -> None:
    room = ConversationMessage.user("x" * (CONVERSATION_MAX_BYTES - 1_000))
    async with in_memory_sessions(model=ScriptedModel(["Hi."])) as sessions:
        talk = Talk(sessions, Agent("a", "Be brief."))
        talk.commands.steer("y" * 1_000)
        talk.commands.steer("z")
        with pytest.raises(HistoryFull):
            await talk.run(history=[room])
        assert (await talk.told())[1:] == ["go", "Hi."]
        assert [text[0] for text in talk.waiting()] == ["y", "z"]


@pytest.mark.behaviour("THR-T14")
async def test_a_command_that_was_recorded_never_enters_a_second_time() -> None:
    async def observe(update: HistoryUpdate) -> None:
        if update.added[-1].text == "shorter":
            raise OSError("disk full")

    async with in_memory_sessions(model=ScriptedModel(["Hi."])) as sessions:
        talk = Talk(sessions, Agent("a", "Be brief."))
        talk.commands.steer("shorter")
        options = TurnOptions(
            session_id=talk.session,
            history=(),
            on_history=observe,
            input=to_turn_input_hook(talk.commands),
        )
        with pytest.raises(OSError, match="disk full"):
            await Agent("a", "Be brief.").run("go", options=options)
        assert (await talk.told(), talk.waiting()) == (["go", "Hi.", "shorter"], [])


@pytest.mark.behaviour("THR-T14")
async def test_two_turns_at_once_never_take_the_same_command() -> None:
    model = ScriptedModel(lambda request: f"Answer {len(request.messages)}")
    agent = Agent("a", "Be brief.")
    async with in_memory_sessions(model=model) as sessions:
        commands = TurnCommands()
        for n in range(6):
            commands.follow_up(f"command {n}")

        async def talk() -> SessionId | None:
            hook = to_turn_input_hook(commands)
            return (await agent.run("go", options=TurnOptions(input=hook))).session_id

        model.hold()
        running = [asyncio.create_task(talk()) for _ in range(2)]
        await model.started(2)
        model.release()
        entered: list[str] = []
        for session in await asyncio.gather(*running):
            assert session is not None
            prompt = to_prompt(await sessions.conversation_store.snapshot(session))
            entered += [m.text for m in prompt if m.text.startswith("command")]
        assert sorted(entered) == [f"command {n}" for n in range(6)]


async def test_a_hook_that_fails_fails_the_turn_as_itself() -> None:
    class Broken:
        def take_steering(self) -> Sequence[TurnCommand]:
            raise KeyError("mine")

        def take_follow_up(self) -> TurnCommand | None:
            return None

        def entered(self, commands: Sequence[TurnCommand]) -> None:
            raise AssertionError("nothing entered")

        def release(self) -> int:
            return 3

    async with in_memory_sessions(model=ScriptedModel(["Hi."])):
        with pytest.raises(KeyError, match="mine"):
            await Agent("a", "Be brief.").run("go", options=TurnOptions(input=Broken()))
