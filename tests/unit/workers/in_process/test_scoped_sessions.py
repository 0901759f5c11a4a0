"""Sessions that belong to one request: they are gone when its block is over, however it ends, and nobody else has them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from shared.agents import Agent, TurnOptions, open_application, to_turn_session_options
from shared.conversations import (
    CONVERSATIONS_MAX,
    Conversation,
    ConversationHistory,
    ConversationMessage,
    InMemoryConversations,
    in_memory_conversation_store,
    to_prompt,
)
from shared.domain.errors import (
    HistoryConflict,
    HistoryFenced,
    HistoryFull,
    HistoryMissing,
    InMemoryScopeError,
    SessionHistoryError,
)
from shared.domain.ids import SessionId, new_session_id
from shared.models.scripted import ScriptedModel
from shared.models.types import ModelRequest
from workers.in_process import InMemorySessions, in_memory_sessions

AGENT = Agent("a", "Be brief.")


def hi(request: ModelRequest) -> str:
    return "Hi."


def store_of(sessions: InMemorySessions) -> InMemoryConversations:
    store = sessions.conversation_store
    assert isinstance(store, InMemoryConversations)
    return store


@pytest.mark.behaviour("THR-24", "THR-26", "THR-27", "THR-35", "THR-32", "THR-34", "THR-T03")
async def test_a_request_has_its_history_until_its_end() -> None:
    model = ScriptedModel(hi)
    async with in_memory_sessions(model=model) as sessions:
        async with sessions.scoped() as scope:
            assert open_application() is scope
            first = await AGENT.run("hello")
            assert first.session_id is not None
            second = await AGENT.run("and?", session_id=first.session_id)
            exported = await scope.conversation_store.snapshot(first.session_id)
            assert len(model.requests[-1].messages) == 4
        assert open_application() is sessions
        assert (store_of(sessions).count, store_of(sessions).size_bytes) == (0, 0)
        with pytest.raises(HistoryMissing):
            await AGENT.run("more", session_id=first.session_id)
        with pytest.raises(HistoryFenced) as fenced:
            await scope.run(AGENT, "more", session_id=first.session_id)
        assert fenced.value.reason == "fenced"
        with pytest.raises(HistoryFenced):
            await scope.conversation_store.snapshot(first.session_id)
        assert second.reply == "Hi."
        assert [m.text for m in to_prompt(exported)] == ["hello", "Hi.", "and?", "Hi."]


@pytest.mark.behaviour("THR-27", "THR-T03")
@pytest.mark.parametrize("how", ["an error", "a cancellation", "a cancellation as it closes"])
async def test_a_request_that_does_not_end_well_leaves_nothing(how: str) -> None:
    async with in_memory_sessions(model=ScriptedModel(hi)) as sessions:
        begun, scopes = asyncio.Event(), list[InMemorySessions]()

        async def request() -> None:
            async with sessions.scoped() as scope:
                scopes.append(scope)
                await AGENT.run("hello")
                begun.set()
                if how == "an error":
                    raise KeyError("mine")
                if how == "a cancellation":
                    await asyncio.Event().wait()
                task = asyncio.current_task()
                assert task is not None
                task.cancel()  # it meets the next wait: that of the block's own end, if it had one
            await asyncio.sleep(0)

        task = asyncio.create_task(request())
        await begun.wait()
        if how == "a cancellation":
            assert store_of(sessions).count == 1
            task.cancel()
        [ended] = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, KeyError if how == "an error" else asyncio.CancelledError)
        assert (store_of(sessions).count, store_of(sessions).size_bytes) == (0, 0)
        with pytest.raises(HistoryFenced):
            await scopes[0].run(AGENT, "more")


@pytest.mark.behaviour("THR-28", "THR-39")
async def test_owners_share_one_store_and_what_a_request_held_is_free_again() -> None:
    async with in_memory_sessions(model=ScriptedModel(hi)) as sessions:
        kept = (await AGENT.run("hello")).session_id
        for _ in range(2):
            async with sessions.scoped():
                for _ in range(CONVERSATIONS_MAX - 1):
                    await AGENT.run("hello")
                with pytest.raises(HistoryFull) as full:
                    await AGENT.run("one too many")
                assert full.value.fields["field"] == "sessions"
        for _ in range(CONVERSATIONS_MAX - 1):
            await AGENT.run("hello")
        with pytest.raises(HistoryFull):
            await AGENT.run("one too many")
        await AGENT.run("and?", session_id=kept)


@pytest.mark.behaviour("THR-29", "THR-36", "THR-T04")
async def test_nobody_has_a_session_of_another_owner() -> None:
    model = ScriptedModel(hi)
    async with in_memory_sessions(model=model) as sessions:
        mine = (await AGENT.run("the application's")).session_id
        async with sessions.scoped() as first, sessions.scoped() as second:
            theirs = (await first.run(AGENT, "the first one's")).session_id
            asked = len(model.requests)
            for sessions_of, session in ((second, theirs), (first, mine), (sessions, theirs)):
                with pytest.raises(HistoryConflict) as refused:
                    await sessions_of.run(AGENT, "and?", session_id=session)
                assert refused.value.reason == "conflict"
                assert refused.value.fields == {"session": session}
                with pytest.raises(HistoryConflict):
                    await sessions_of.run(AGENT, "x", options=TurnOptions(session_id=session, history=()))
            assert len(model.requests) == asked
        assert (await AGENT.run("and?", session_id=mine)).reply == "Hi.", "it goes on across requests"


@pytest.mark.behaviour("THR-31")
async def test_a_turn_that_is_not_awaited_in_its_block_is_fenced() -> None:
    model = ScriptedModel(hi)
    async with in_memory_sessions(model=model) as sessions:
        model.hold()
        async with sessions.scoped():
            running = asyncio.create_task(AGENT.run("hello"))
            await model.started()
        model.release()
        with pytest.raises(HistoryFenced):
            await running
        assert store_of(sessions).count == 0


@pytest.mark.behaviour("THR-33", "THR-84")
async def test_options_made_in_a_block_keep_its_store() -> None:
    async with in_memory_sessions(model=ScriptedModel(hi)) as sessions:
        async with sessions.scoped():
            session = (await AGENT.run("hello")).session_id
            assert session is not None
            options = await to_turn_session_options(session)
            assert (await AGENT.run("and?", options=options)).session_id == session
        with pytest.raises(HistoryFenced):
            # A new session of this id could begin, but the options still write to the owner that has closed.
            await AGENT.run("more", options=options)
        with pytest.raises(HistoryMissing):
            await to_turn_session_options(new_session_id())


@pytest.mark.behaviour("THR-16", "THR-30")
async def test_the_end_of_the_application_fences_a_request_that_goes_on() -> None:
    async with in_memory_sessions(model=ScriptedModel(hi)) as sessions:
        scope = await (entered := sessions.scoped()).__aenter__()
        first = await scope.run(AGENT, "hello")
    assert first.session_id is not None
    with pytest.raises(HistoryFenced):
        await scope.run(AGENT, "and?", session_id=first.session_id)
    with pytest.raises(HistoryFenced):
        await scope.conversation_store.snapshot(first.session_id)
    await entered.__aexit__(None, None, None)


class HostStore:
    """A host's own conversation store, over the one in memory but without owners."""

    def __init__(self) -> None:
        self._store = in_memory_conversation_store()

    async def snapshot(self, session_id: SessionId) -> Conversation:
        return await self._store.snapshot(session_id)

    async def update(
        self, session_id: SessionId, messages: Sequence[ConversationMessage], *, create: bool = False
    ) -> Conversation:
        return await self._store.update(session_id, messages, create=create)


@pytest.mark.behaviour("THR-37")
async def test_a_store_without_owners_cannot_be_scoped() -> None:
    history = ConversationHistory(HostStore())
    async with in_memory_sessions(model=ScriptedModel(hi), history=history) as sessions:
        first = await AGENT.run("hello")
        with pytest.raises(InMemoryScopeError, match="HostStore"):
            async with sessions.scoped():
                pytest.fail("the block is not entered")
        assert (await AGENT.run("and?", session_id=first.session_id)).reply == "Hi."


def test_being_unable_to_scope_is_no_failure_of_a_history() -> None:
    assert not issubclass(InMemoryScopeError, SessionHistoryError)
