"""Agents without any server: turns of a session share one conversation, as long as the block that opened it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from shared.agents import Agent, Policy, ToolContext, Turn, TurnOptions, TurnOutcome, open_application, tool
from shared.conversations import (
    CONVERSATION_MAX_BYTES,
    Conversation,
    ConversationHistory,
    ConversationMessage,
    FilePart,
    InMemoryConversations,
    TextPart,
    in_memory_conversation_store,
    to_prompt,
)
from shared.domain.errors import (
    AttachmentRejected,
    ConfigError,
    HistoryFenced,
    HistoryFull,
    HistoryMissing,
    InputTooLarge,
    InvalidInput,
    ModelRefused,
    SessionHistoryDiverged,
    TurnTimeout,
)
from shared.domain.ids import SessionId, new_session_id
from shared.models.scripted import ScriptedModel, ScriptedReply
from shared.models.types import ToolCall, Usage
from shared.settings import Settings
from tests.support.scripted_tools import Bench, calls, quick
from tests.support.virtual_time import virtual_time
from workers.in_process import InMemorySessions, in_memory_session_history, in_memory_sessions

AGENT = Agent("a", "Be brief.")


def said(conversation: Conversation) -> list[tuple[str, str]]:
    """Who said what."""
    return [(message.role, message.text) for message in to_prompt(conversation)]


async def told(sessions: InMemorySessions, session_id: SessionId | None) -> list[tuple[str, str]]:
    assert session_id is not None
    return said(await sessions.conversation_store.snapshot(session_id))


@pytest.mark.behaviour("THR-04", "THR-05", "THR-07", "THR-41", "THR-44")
async def test_a_second_turn_reads_what_the_first_one_said() -> None:
    model = ScriptedModel([ScriptedReply("Hi.", usage=Usage(3, 2)), "Still here."])
    async with in_memory_sessions(model=model, model_name="m") as sessions:
        first = await AGENT.run("hello")
        second = await AGENT.run("and?", session_id=first.session_id)
        assert (first.outcome, first.reply, first.pending) == ("completed", "Hi.", 0)
        assert first.usage["output_tokens"] == 2
        assert (second.reply, second.session_id) == ("Still here.", first.session_id)
        assert [m.text for m in model.requests[1].messages] == ["Be brief.", "hello", "Hi.", "and?"]
        assert model.requests[1].model == "m"
        other = await asyncio.gather(AGENT.run("x"), return_exceptions=True)
        assert len(model.requests) == 3, "the script has two answers"
        assert isinstance(other[0], BaseException)
        assert await told(sessions, first.session_id) == [
            ("user", "hello"),
            ("assistant", "Hi."),
            ("user", "and?"),
            ("assistant", "Still here."),
        ]


@pytest.mark.behaviour("THR-07")
async def test_a_turn_without_a_session_begins_a_new_one() -> None:
    async with in_memory_sessions(model=ScriptedModel(lambda request: "Hi.")) as sessions:
        one, two = await AGENT.run("hello"), await AGENT.run("hello")
        assert one.session_id != two.session_id
        assert await told(sessions, one.session_id) == await told(sessions, two.session_id)


@pytest.mark.behaviour("THR-08", "THR-40")
async def test_a_conversation_takes_any_number_of_turns_and_no_end_of_one_releases_it() -> None:
    async with in_memory_sessions(model=ScriptedModel(lambda request: "Hi.")) as sessions:
        session = (await AGENT.run("turn 0")).session_id
        for n in range(1, 40):
            await AGENT.run(f"turn {n}", session_id=session)
        found = await told(sessions, session)
        assert [text for role, text in found if role == "user"] == [f"turn {n}" for n in range(40)]


@pytest.mark.behaviour("THR-06", "THR-16", "THR-42")
async def test_a_block_of_its_own_is_an_empty_store_and_its_end_releases_it() -> None:
    model = ScriptedModel(lambda request: "Hi.")
    async with in_memory_sessions(model=model) as outer:
        first = await AGENT.run("hello")
        assert first.session_id is not None
        async with in_memory_sessions(model=model) as inner:
            with pytest.raises(HistoryMissing):
                await AGENT.run("and?", session_id=first.session_id)
            with pytest.raises(HistoryMissing):
                await inner.conversation_store.snapshot(first.session_id)
        await AGENT.run("and?", session_id=first.session_id)
        store = outer.conversation_store
        assert isinstance(store, InMemoryConversations)
        assert (store.count, store.size_bytes > 0) == (1, True)
    assert (store.count, store.size_bytes) == (0, 0)
    with pytest.raises(HistoryFenced):
        await store.snapshot(first.session_id)
    with pytest.raises(HistoryFenced):
        await outer.run(AGENT, "and?", session_id=first.session_id)


async def test_without_an_open_application_it_says_what_to_open() -> None:
    with pytest.raises(ConfigError, match="in_memory_sessions") as refused:
        await AGENT.run("hello")
    assert refused.value.fields["field"] == "application"
    async with in_memory_sessions(model=ScriptedModel(["Hi."])) as sessions:
        assert open_application() is sessions
    with pytest.raises(ConfigError):
        open_application()


async def test_an_application_that_is_kept_runs_turns_by_itself() -> None:
    """A notebook's cells and a fixture share no context: there the object is what one has."""
    async with in_memory_sessions(model=ScriptedModel(["Hi.", "Still here."])) as sessions:

        async def elsewhere() -> str | None:
            first = await sessions.run(AGENT, "hello")
            return (await sessions.run(AGENT, "and?", session_id=first.session_id)).reply

        assert await elsewhere() == "Still here."


async def test_without_a_model_the_configured_endpoint_is_asked_for_its_key() -> None:
    with pytest.raises(ConfigError) as refused:
        async with in_memory_sessions(settings=Settings()):
            pass
    assert refused.value.fields["field"] == "OPENAI_API_KEY"


@pytest.mark.behaviour("THR-11", "THR-44", "THR-10")
async def test_the_history_alone_serves_a_hosts_own_assembly_and_stays_open_after_the_block() -> None:
    history = in_memory_session_history(in_memory_conversation_store())
    async with in_memory_sessions(model=ScriptedModel(["Hi."]), history=history) as sessions:
        first = await AGENT.run("hello")
        assert sessions.history is history
    assert first.session_id is not None
    assert [m.text for m in await history.load(first.session_id)] == ["hello", "Hi."]
    with pytest.raises(HistoryFenced):
        await sessions.run(AGENT, "the block is over", session_id=first.session_id)
    async with in_memory_sessions(model=ScriptedModel(["Still here."]), history=history):
        again = await AGENT.run("and?", session_id=first.session_id)
    assert again.reply == "Still here."
    assert len(await history.load(first.session_id)) == 4


@pytest.mark.behaviour("THR-12")
async def test_a_conversation_grows_with_each_whole_step() -> None:
    bench = Bench()
    agent = Agent("a", "Be brief.", tools=[bench.tool])
    model = ScriptedModel([calls("work", "work", text="I work."), "Done."])
    async with in_memory_sessions(model=model) as sessions:
        session = new_session_id()
        running = asyncio.create_task(agent.run("go", options=TurnOptions(session_id=session, history=())))
        await bench.has_begun(2)
        assert await told(sessions, session) == [("user", "go")], "no batch is there yet"
        bench.let_go("0")
        await asyncio.sleep(0)
        assert await told(sessions, session) == [("user", "go")], "nor half of one"
        bench.let_go("1")
        await running
        whole = await sessions.conversation_store.snapshot(session)
        assert [m.role for m in whole.messages] == ["user", "assistant", "tool", "assistant"]
        assert [call.name for call in whole.messages[1].calls] == ["work", "work"]
        assert [r.text for r in whole.messages[2].results] == ["done 0", "done 1"]


@pytest.mark.behaviour("THR-13", "THR-14", "THR-15", "THR-T05")
async def test_a_stream_that_is_cut_is_not_recorded_and_nothing_runs_again() -> None:
    ran: list[str] = []

    @tool
    async def note() -> str:
        """Note."""
        ran.append("note")
        return "noted"

    cut = ScriptedReply("I was about to say", fail_with=ModelRefused("no"), fail_after=2)
    model = ScriptedModel([calls("note"), cut, "What was that?"])
    agent = Agent("a", "Be brief.", tools=[note])
    async with in_memory_sessions(model=model) as sessions:
        session = new_session_id()
        options = TurnOptions(session_id=session, history=())
        with pytest.raises(ModelRefused):
            await agent.run("go", options=options)
        kept = await sessions.conversation_store.snapshot(session)
        assert [m.role for m in kept.messages] == ["user", "assistant", "tool"]
        await agent.run("and?", session_id=session)
        assert (ran, len(model.requests)) == (["note"], 3)
        assert [m.role for m in (await sessions.conversation_store.snapshot(session)).messages] == [
            *("user", "assistant", "tool"),
            *("user", "assistant"),
        ]


@pytest.mark.behaviour("THR-13", "THR-14", "THR-T05")
@pytest.mark.parametrize("how", ["interrupted", "out of time", "a defect of the body"])
async def test_of_a_batch_with_one_of_two_calls_settled_nothing_is_recorded(how: str) -> None:
    bench = Bench()

    async def body(turn: Turn) -> TurnOutcome:
        await turn.run()
        running = asyncio.create_task(turn.run())
        await bench.has_begun(2)
        bench.let_go("0")
        if how == "a defect of the body":
            running.cancel()
            await asyncio.wait([running])
            raise KeyError("mine")
        await running
        return turn.reply("never")

    limit_s = 0.2 if how == "out of time" else 600.0
    agent = Agent("a", "Be brief.", tools=[bench.tool], use=body, policy=Policy(max_duration_s=limit_s))
    model = ScriptedModel(["First.", calls("work", "work")])
    expected = {
        "interrupted": asyncio.CancelledError,
        "out of time": TurnTimeout,
        "a defect of the body": KeyError,
    }
    async with in_memory_sessions(model=model) as sessions:
        session = new_session_id()
        turn = asyncio.create_task(agent.run("go", options=TurnOptions(session_id=session, history=())))
        if how == "interrupted":
            await bench.has_begun(2)
            turn.cancel()
        with pytest.raises(expected[how]):
            await turn
        assert await told(sessions, session) == [("user", "go"), ("assistant", "First.")]


@virtual_time
@pytest.mark.behaviour("THR-13")
async def test_a_turn_has_the_time_of_its_agent() -> None:
    model = ScriptedModel(["never"])
    model.hold()
    agent = replace(AGENT, policy=Policy(max_duration_s=5.0))
    async with in_memory_sessions(model=model) as sessions:
        session = new_session_id()
        with pytest.raises(TurnTimeout, match="5 s"):
            await agent.run("go", options=TurnOptions(session_id=session, history=()))
        assert await told(sessions, session) == [("user", "go")]


async def test_a_failure_names_the_session_that_it_began() -> None:
    async with in_memory_sessions(model=ScriptedModel([ModelRefused("no")])) as sessions:
        with pytest.raises(ModelRefused) as failed:
            await AGENT.run("go")
        [note] = failed.value.__notes__
        session = SessionId(note.removeprefix("in session "))
        assert await told(sessions, session) == [("user", "go")]


@pytest.mark.behaviour("THR-22", "THR-T02")
async def test_of_two_turns_at_once_the_one_that_the_conversation_left_behind_conflicts() -> None:
    model = ScriptedModel(lambda request: f"Answer to {request.messages[-1]}")
    async with in_memory_sessions(model=model) as sessions:
        session = (await AGENT.run("hello")).session_id
        model.hold()
        one = asyncio.create_task(AGENT.run("one", session_id=session))
        await model.started(2)
        two = asyncio.create_task(AGENT.run("two", session_id=session))
        await model.started(3)
        model.release()
        with pytest.raises(SessionHistoryDiverged) as lost:
            await one
        assert lost.value.reason == "conflict"
        won = await two
        assert [text for _, text in (await told(sessions, session))[2:]] == ["one", "two", won.reply]


@pytest.mark.behaviour("THR-21", "THR-88")
async def test_a_turn_that_meets_a_bound_fails_and_keeps_what_it_had() -> None:
    agent = Agent("a", "Be brief.", tools=[quick()])
    room = ConversationMessage.user("x" * (CONVERSATION_MAX_BYTES - 400))
    model = ScriptedModel([calls("quick"), "y" * 1_000, "Hi."])
    async with in_memory_sessions(model=model) as sessions:
        session = new_session_id()
        with pytest.raises(HistoryFull) as full:
            await agent.run("go", options=TurnOptions(session_id=session, history=[room]))
        assert full.value.reason == "limit"
        kept = await sessions.conversation_store.snapshot(session)
        assert [m.role for m in kept.messages] == ["user", "user", "assistant", "tool"]


async def test_a_body_runs_here_as_it_does_in_a_worker() -> None:
    async def body(turn: Turn) -> TurnOutcome:
        if turn.user_message.text == "ping":
            return turn.reply("pong")
        await turn.run()
        await turn.context("Check it.")
        final = await turn.run(Policy(max_steps=4))
        assert await turn.write(lambda: asyncio.sleep(0, "written")) == "written"
        assert await turn.flush() == len(turn.memory) + 2, "what the turn was shown was cut"
        return TurnOutcome(final.outcome, final.text)

    agent = replace(AGENT, use=body, budget_tokens=20)
    async with in_memory_sessions(model=ScriptedModel(["Draft.", "Final."])) as sessions:
        first = await agent.run("ping")
        assert first.reply == "pong"
        second = await agent.run("write", session_id=first.session_id)
        assert second.reply == "Final."
        assert [text for _, text in await told(sessions, first.session_id)] == [
            *("ping", "pong"),
            *("write", "Draft.", "Check it.", "Final."),
        ]


async def test_a_model_is_shown_the_newest_messages_that_fit_and_no_call_without_its_result() -> None:
    agent = Agent("a", "Be brief.", tools=[quick()], budget_tokens=400)
    model = ScriptedModel([calls("quick"), "x" * 2_000, "Hi.", "Bye."])
    async with in_memory_sessions(model=model) as sessions:
        session = (await agent.run("first")).session_id
        await agent.run("second", session_id=session)
        await agent.run("third", session_id=session)
        shown = [message.text for message in model.requests[-1].messages[1:]]
        assert shown == ["second", "Hi.", "third"]
        assert len(await told(sessions, session)) == 8, "the conversation itself is whole"


async def test_tools_are_told_whose_call_it_is_and_no_two_calls_share_an_identity() -> None:
    told: list[ToolContext] = []

    @tool
    async def listen(context: ToolContext) -> None:
        """Listen."""
        told.append(context)

    agent = Agent("a", "Be brief.", tools=[listen])
    model = ScriptedModel([calls("listen", "listen"), "Done.", calls("listen"), "Done."])
    async with in_memory_sessions(model=model, owner="ann"):
        session = (await agent.run("go")).session_id
        await agent.run("again", session_id=session)
    assert {(context.session_id, context.owner) for context in told} == {(session, "ann")}
    assert len({context.invocation_id for context in told}) == 3
    assert len({context.idempotency_token for context in told}) == 3


@pytest.mark.parametrize(
    ("message", "error"),
    [("a\x00", InvalidInput), ("\ud800", InvalidInput), ("é" * 524_289, InputTooLarge)],
    ids=["NUL", "a surrogate", "too large"],
)
async def test_a_message_that_cannot_be_stored_begins_nothing(
    message: str, error: type[InvalidInput]
) -> None:
    model = ScriptedModel([])
    async with in_memory_sessions(model=model) as sessions:
        with pytest.raises(error) as refused:
            await AGENT.run(message)
        assert refused.value.field == "message"
        store = sessions.conversation_store
        assert isinstance(store, InMemoryConversations)
        assert (store.count, model.requests) == (0, [])


async def test_what_no_type_checker_saw_is_refused_by_its_place() -> None:
    untyped: Any = {"role": "user", "content": "hi"}
    async with in_memory_sessions(model=ScriptedModel([])):
        with pytest.raises(InvalidInput) as refused:
            await AGENT.run("hello", options=TurnOptions(history=[ConversationMessage.user("x"), untyped]))
        assert refused.value.field == "options.history/1"
        with pytest.raises(InvalidInput) as refused:
            await AGENT.run(untyped)
        assert refused.value.field == "message"


@pytest.mark.behaviour("THR-43")
async def test_a_file_in_the_history_is_kept_but_not_shown_to_a_model() -> None:
    store = in_memory_conversation_store()
    session = new_session_id()
    parts = (TextPart(text="look"), FilePart(media_type="image/png", data="aGk="))
    await store.update(session, [ConversationMessage(role="user", parts=parts)], create=True)
    model = ScriptedModel([])
    async with in_memory_sessions(model=model, history=ConversationHistory(store)):
        with pytest.raises(AttachmentRejected):
            await AGENT.run("and?", session_id=session)
    assert (await store.snapshot(session)).messages[0].parts == parts
    assert model.requests == []


@pytest.mark.parametrize("name", ["durability", "subagent", "resume", "resume_usage"])
async def test_an_option_that_belongs_to_a_journal_is_refused(name: str) -> None:
    model, given = ScriptedModel([]), dict[str, Any]({name: True})
    async with in_memory_sessions(model=model):
        with pytest.raises(ConfigError) as refused:
            await AGENT.run("go", options=TurnOptions(**given))
        assert refused.value.fields["field"] == f"options.{name}"
        with pytest.raises(InvalidInput):
            await AGENT.run(
                "go", session_id=new_session_id(), options=TurnOptions(session_id=new_session_id())
            )
    assert model.requests == []


@pytest.mark.behaviour("THR-25")
async def test_an_agent_that_a_tool_asks_has_a_session_of_its_own() -> None:
    helper = Agent("helper", "Help.")
    asked: list[SessionId] = []

    @tool
    async def ask(question: str) -> str | None:
        """Ask another agent."""
        result = await helper.run(question)
        assert result.session_id is not None
        asked.append(result.session_id)
        return result.reply

    agent = Agent("a", "Be brief.", tools=[ask])
    model = ScriptedModel([ToolCall("c", "ask", '{"question": "why?"}'), "Because.", "So."])
    async with in_memory_sessions(model=model) as sessions:
        async with sessions.scoped() as scope:
            first = await agent.run("go")
            assert await told(scope, asked[0]) == [("user", "why?"), ("assistant", "Because.")]
            assert asked[0] != first.session_id
        store = sessions.conversation_store
        assert isinstance(store, InMemoryConversations)
        assert store.count == 0
