"""A caller's own history: it begins a session or goes on with one, and hears of each update after it is recorded."""

from __future__ import annotations

import pytest

from shared.agents import Agent, TurnOptions, application_opened, to_turn_session_options
from shared.conversations import (
    ConversationMessage,
    HistoryUpdate,
    in_memory_conversation_store,
    in_memory_session_history,
    to_prompt,
)
from shared.domain.errors import HistoryMissing, InvalidInput, SessionHistoryDiverged
from shared.domain.ids import SessionId, new_session_id
from shared.models.scripted import ScriptedModel
from shared.models.types import ModelRequest
from tests.support.scripted_tools import calls, quick
from workers.in_process import InMemorySessions, in_memory_sessions

AGENT = Agent("a", "Be brief.", tools=[quick()])
BEFORE = (ConversationMessage.user("My cat is Ada."), ConversationMessage.assistant("Noted."))


def hi(request: ModelRequest) -> str:
    return "Hi."


async def texts(sessions: InMemorySessions, session: SessionId | None) -> list[str]:
    assert session is not None
    return [m.text for m in to_prompt(await sessions.conversation_store.snapshot(session))]


@pytest.mark.behaviour("THR-80")
async def test_a_history_begins_a_new_session() -> None:
    model = ScriptedModel(hi)
    async with in_memory_sessions(model=model) as sessions:
        first = await AGENT.run("And mine?", options=TurnOptions(history=BEFORE))
        shown = [m.text for m in model.requests[0].messages[1:]]
        assert shown == ["My cat is Ada.", "Noted.", "And mine?"]
        assert await texts(sessions, first.session_id) == [*shown, "Hi."]
        mine = new_session_id()
        second = await AGENT.run("x", session_id=mine, options=TurnOptions(history=BEFORE))
        assert second.session_id == mine


@pytest.mark.behaviour("THR-80", "THR-87")
async def test_a_history_extends_the_session_there_is_and_one_that_diverges_is_rejected() -> None:
    model = ScriptedModel(hi)
    async with in_memory_sessions(model=model) as sessions:
        session = (await AGENT.run("hello")).session_id
        assert session is not None
        recorded = to_prompt(await sessions.conversation_store.snapshot(session))
        longer = (*recorded, *BEFORE)
        await AGENT.run("And mine?", session_id=session, options=TurnOptions(history=longer))
        grown = await texts(sessions, session)
        assert grown == ["hello", "Hi.", "My cat is Ada.", "Noted.", "And mine?", "Hi."]
        asked = len(model.requests)
        for diverged in (recorded, BEFORE, ()):
            with pytest.raises(SessionHistoryDiverged):
                await AGENT.run("x", session_id=session, options=TurnOptions(history=diverged))
        assert (len(model.requests), await texts(sessions, session)) == (asked, grown)


@pytest.mark.behaviour("THR-81", "THR-86")
async def test_an_observer_hears_of_each_update_after_it_is_recorded() -> None:
    heard: list[list[str]] = []
    async with in_memory_sessions(model=ScriptedModel([calls("quick", text="So."), "Hi."])) as sessions:

        async def observe(update: HistoryUpdate) -> None:
            assert await texts(sessions, update.session_id) == [m.text for m in update.prompt]
            assert update.prompt[-len(update.added) :] == update.added
            heard.append([m.role for m in update.added])

        await AGENT.run("hello", options=TurnOptions(history=BEFORE, on_history=observe))
    assert heard == [["user", "assistant", "user"], ["assistant", "tool"], ["assistant"]]


@pytest.mark.behaviour("THR-81", "THR-89")
async def test_an_observer_that_fails_fails_the_turn_as_itself_and_takes_nothing_back() -> None:
    async def observe(update: HistoryUpdate) -> None:
        if update.prompt[-1].role == "assistant":
            raise OSError("disk full")

    async with in_memory_sessions(model=ScriptedModel(hi)) as sessions:
        session = new_session_id()
        with pytest.raises(OSError, match="disk full"):
            await AGENT.run("hello", options=TurnOptions(session_id=session, history=(), on_history=observe))
        assert await texts(sessions, session) == ["hello", "Hi."]


@pytest.mark.behaviour("THR-82", "THR-84")
async def test_a_stored_conversation_goes_on_elsewhere_and_is_recorded_in_its_own_store() -> None:
    store, session = in_memory_conversation_store(), new_session_id()
    await store.update(session, BEFORE, create=True)
    heard: list[int] = []

    async def observe(update: HistoryUpdate) -> None:
        assert (await store.snapshot(session)).messages == update.prompt
        heard.append(len(update.prompt))

    model = ScriptedModel(hi)
    async with in_memory_sessions(model=model) as sessions:
        options = await to_turn_session_options(session, store=store, on_history=observe)
        await AGENT.run("And mine?", options=options)
        assert [m.text for m in model.requests[0].messages[1:]] == [
            *("My cat is Ada.", "Noted."),
            "And mine?",
        ]
        assert await texts(sessions, session) == [m.text for m in (await store.snapshot(session)).messages]
        assert heard == [3, 4]
        await store.update(session, (await store.snapshot(session)).messages + BEFORE)
        with pytest.raises(SessionHistoryDiverged):
            await AGENT.run("stale", options=options)


@pytest.mark.behaviour("THR-82")
async def test_options_of_the_applications_own_store_write_nothing_twice() -> None:
    history = in_memory_session_history()
    async with in_memory_sessions(model=ScriptedModel(hi), history=history) as sessions:
        session = (await AGENT.run("hello")).session_id
        assert session is not None
        await AGENT.run("and?", options=await to_turn_session_options(session))
        assert await texts(sessions, session) == ["hello", "Hi.", "and?", "Hi."]
        with pytest.raises(HistoryMissing):
            await to_turn_session_options(new_session_id())


class Elsewhere:
    """An application that keeps no conversations, as one over a journal."""

    conversation_store = None

    def __init__(self, sessions: InMemorySessions) -> None:
        self.run = sessions.run
        self.scoped = sessions.scoped


async def test_an_application_without_conversations_has_no_session_options() -> None:
    async with in_memory_sessions(model=ScriptedModel(hi)) as sessions:
        with application_opened(Elsewhere(sessions)), pytest.raises(InvalidInput):
            await to_turn_session_options(new_session_id())
