"""The same turns in memory and over the journal: one conversation, one agent, and nothing written in both places."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shared.agents import Agent, Turn, TurnOutcome, TurnResult
from shared.conversations import InMemoryConversations
from shared.domain.ids import OwnerId, new_session_id
from shared.feed.inproc import InprocFeed
from shared.host.port import NewTurn, SessionAddress
from shared.models.scripted import ScriptedModel
from shared.models.types import Message
from shared.sessions.inproc import InprocStore
from shared.sessions.log import NewSession
from tests.support.scripted_tools import Bench, calls, quick
from tests.support.small_sessions import SmallSessions
from tests.support.virtual_time import loop_clock
from workers.executor import BoundedExecutor
from workers.in_process import in_memory_sessions
from workers.turns.body.in_process import TurnServices, run_turn


async def body(turn: Turn) -> TurnOutcome:
    if turn.user_message.text == "ping":
        return turn.reply("pong")
    await turn.run()
    await turn.context("Check it.")
    final = await turn.run()
    return TurnOutcome(final.outcome, final.text)


AGENT = Agent("a", "Be brief.", tools=[quick()], use=body)
TEXTS = ("ping", "look", "and?")


def scripted() -> ScriptedModel:
    return ScriptedModel([calls("quick", text="I look."), "Draft.", "Final.", "Draft 2.", "Final 2."])


class Journaled:
    """A host with a log."""

    def __init__(self, model: ScriptedModel) -> None:
        self.sessions = SmallSessions(InprocStore(loop_clock))
        self.address = SessionAddress(new_session_id(), OwnerId("o"))
        self._services = TurnServices(
            sessions=self.sessions,
            log=self.sessions.log,
            model=model,
            default_model="m",
            executor=BoundedExecutor(1),
            feed=InprocFeed(),
        )

    async def create(self) -> None:
        await self.sessions.log.create(NewSession(self.address.id, OwnerId("o")))

    async def run(self, agent: Agent, text: str) -> TurnResult:
        return await run_turn(agent, NewTurn({"text": text}), self._services, session=self.address)

    async def kinds(self) -> list[str]:
        return [record.kind for record in await self.sessions.log.read(self.address.id)]


async def talk(
    model: ScriptedModel, run: Callable[[str], Awaitable[TurnResult]]
) -> tuple[list[str | None], list[tuple[Message, ...]]]:
    """What the turns answered, and what the model was shown."""
    replies = [(await run(text)).reply for text in TEXTS]
    return replies, [request.messages for request in model.requests]


@pytest.mark.behaviour("THR-02", "THR-03")
async def test_a_conversation_is_the_same_in_memory_and_in_a_log() -> None:
    model = scripted()
    async with in_memory_sessions(model=model):
        results: list[TurnResult] = []

        async def in_memory(text: str) -> TurnResult:
            results.append(await AGENT.run(text, session_id=results[-1].session_id if results else None))
            return results[-1]

        remembered = await talk(model, in_memory)
    journaled = Journaled(other := scripted())
    await journaled.create()
    logged = await talk(other, lambda text: journaled.run(AGENT, text))
    assert remembered == logged
    assert remembered[0] == ["pong", "Final.", "Final 2."]
    assert len(remembered[1]) == 5


@pytest.mark.behaviour("THR-38", "THR-45", "THR-83", "THR-85")
async def test_a_durable_turn_in_a_scope_keeps_its_journal_and_writes_no_conversation() -> None:
    bench = Bench()
    agent = Agent("a", "Be brief.", tools=[bench.tool])
    model = ScriptedModel([calls("work"), calls("work"), "Done."])
    async with in_memory_sessions(model=model) as sessions, sessions.scoped() as scope:
        journaled = Journaled(model)
        await journaled.create()
        running = asyncio.create_task(journaled.run(agent, "go"))
        await bench.has_begun(1)
        assert "step.response" in await journaled.kinds(), "execution is stored, not only what was said"
        bench.let_go("0")
        await bench.has_begun(2)
        assert (await journaled.kinds()).count("memory.tool-result") == 1, "each step is committed"
        assert (await running).reply == "Done."
        store = scope.conversation_store
        assert isinstance(store, InMemoryConversations)
        assert (store.count, store.size_bytes) == (0, 0)
    kinds = await journaled.kinds()
    assert kinds[0] == "turn.started"
    assert kinds[-1] == "turn.ended"
