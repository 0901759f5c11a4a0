"""Cases seen in the field: recall that feeds on itself, and forgetting one owner of many."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from memory_pipeline.index.embedding import profile_of, search_by_meaning
from memory_pipeline.index.limits import SemanticIndexLimits
from memory_pipeline.index.postgres import PostgresSemanticIndex
from memory_pipeline.index.refresh import refresh_source
from memory_pipeline.recall.compose import recall
from memory_pipeline.recall.render import PREAMBLE
from memory_pipeline.recall.sources import OwnerMemory, limits_of, sources_of
from memory_pipeline.store.forget import forget_namespace
from shared.agents import Agent, App
from shared.database.pool import Row
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, SessionId, WorkerId, new_run_id, new_turn_id
from shared.inbox.postgres import PostgresInbox
from shared.models.scripted import ScriptedEmbedder, ScriptedModel
from shared.models.structured import StructuredAnswer
from shared.models.types import ModelRequest, UserMessage
from shared.turns.queue import Admission, AdmissionLimits, ClaimRequest
from tests.support.memory_world import OWNER, POLICY, MemoryWorld, memory_world
from tests.support.scripted_facts import ScriptedFacts, T, fact
from tests.support.turn_world import NotedFeed, NotedHints
from workers.executor import BoundedExecutor
from workers.turns.holdings import Holdings
from workers.turns.runner import TurnRunner

BOB = OwnerId("bob")
TEAL = "My favourite colour is teal."
STATEMENT = "The user's favourite colour is teal."
RED = "My favourite colour is red."
QUESTION = "What is my favourite colour?"
TURNS = 100


class Eager(ScriptedFacts):
    """Finds a fact of a new subject in every text that speaks of teal: a copy can hide behind no subject."""

    async def complete(self, request: ModelRequest, schema: type[T]) -> StructuredAnswer[T]:
        last, asked = request.messages[-1], len(self.asked)
        if isinstance(last, UserMessage) and "teal" in last.text:
            self.facts[last.text] = [fact(f"colour-{asked}", f"Seen {asked}: teal.", "teal")]
        return await super().complete(request, schema)


class Place:
    """The world with an index, and one worker process whose turns recall by all three sources."""

    def __init__(self, world: MemoryWorld, model: ScriptedModel) -> None:
        self.world = world
        self.embedder = ScriptedEmbedder()
        self.index = PostgresSemanticIndex(world.database)
        by_meaning = search_by_meaning(self.index, self.embedder, timeout_s=5.0)
        self.memory = OwnerMemory(POLICY, world.documents, world.documents, by_meaning)
        self.holdings = Holdings(world.turns, WorkerId("turns"), lease_s=60.0, renew_s=20.0, poll_s=1.0)
        self.executor = BoundedExecutor(1)
        self.runner = TurnRunner(
            queue=world.turns,
            log=world.log,
            inbox=PostgresInbox(world.database),
            app=App([Agent(name="agent", instructions="Be brief.")]),
            model=model,
            default_model="m",
            holdings=self.holdings,
            executor=self.executor,
            failpoints=Failpoints(),
            feed=NotedFeed(),
            hints=NotedHints(),
            ring=lambda ids: None,
            recall=self.recall,
        )

    async def recall(self, owner: OwnerId, query: str) -> str:
        return (await recall(sources_of(self.memory, owner, query), limits_of(POLICY))).text

    async def run_turn(self, session: SessionId, text: str) -> None:
        """Admit a turn and run it as a worker does, recall and model included."""
        admission = Admission(new_turn_id(), new_run_id(), session, OWNER, {"text": text}, agent="agent")
        await self.world.turns.admit(admission, AdmissionLimits())
        sent_at = self.holdings.begin_claim()
        [claim] = await self.world.turns.claim(
            ClaimRequest(worker=WorkerId("turns"), places=1, revisions=("1",), lease_s=60.0)
        )
        holding = self.holdings.take(claim, sent_at)
        self.holdings.end_claim()
        await self.runner.run(holding)

    async def drain(self) -> None:
        """Run what every background pool owes."""
        await self.world.drain()
        while claims := await self.world.claims("index"):
            for claim in claims:
                await refresh_source(
                    claim,
                    index=self.index,
                    reader=self.world.documents,
                    embedder=self.embedder,
                    limits=SemanticIndexLimits(),
                    failpoints=Failpoints(),
                )
                await self.world.settle(claim)

    async def chunks(self, owner: OwnerId) -> list[Row]:
        return await self.world.rows(
            "SELECT source_id, ordinal, generation, text, embedding::text FROM memory_chunks"
            " WHERE namespace = %s ORDER BY source_id, ordinal",
            self.world.namespace(owner),
        )


@asynccontextmanager
async def memory_place(url: str, facts: ScriptedFacts, model: ScriptedModel) -> AsyncIterator[Place]:
    async with memory_world(url, facts) as world:
        place = Place(world, model)
        await place.index.register(profile_of(place.embedder))
        try:
            yield place
        finally:
            place.executor.close()


@pytest.mark.behaviour("ACT-29", "ACT-30", "RCL-02", "RCL-52", "REM-10")
async def test_a_fact_recalled_into_a_hundred_turns_makes_no_copy_of_itself(database_url: str) -> None:
    facts, model = Eager(), ScriptedModel(lambda request: f"You said so: {STATEMENT}")
    async with memory_place(database_url, facts, model) as at:
        await at.run_turn(await at.world.session(), TEAL)
        await at.drain()
        first, chunks = await at.world.profile(), await at.chunks(OWNER)
        assert await at.world.facts() == ["Seen 0: teal."] and len(chunks) == 1
        session = await at.world.session()
        for n in range(TURNS):
            await at.run_turn(session, QUESTION)
            if n % 10 == 9:
                await at.drain()
        shown = [r.messages[-2] for r in model.requests[1:]]
        assert len(shown) == TURNS
        assert all(
            isinstance(m, UserMessage) and m.text.startswith(PREAMBLE) and "teal" in m.text for m in shown
        )
        assert len(set(shown)) == 1, "the hundredth turn is shown what the first one was"
        assert facts.asked == [TEAL, *[QUESTION] * TURNS], "only what the user said was ever a source"
        assert await at.world.profile() == first, "not one more generation"
        assert await at.chunks(OWNER) == chunks


@pytest.mark.behaviour("MEM-39", "MEM-40", "SEM-45", "SEM-52", "SEM-60")
async def test_forgetting_one_owner_leaves_documents_vectors_and_recall_of_the_others(
    database_url: str,
) -> None:
    facts = ScriptedFacts(
        {TEAL: [fact("colour", STATEMENT, "teal")], RED: [fact("colour", "The user's colour is red.", "red")]}
    )
    async with memory_place(database_url, facts, ScriptedModel([])) as at:
        world = at.world
        await world.turn(await world.session(), TEAL)
        await world.turn(await world.session(BOB), RED, BOB)
        await at.drain()
        kept, vectors = await world.profile(BOB), await at.chunks(BOB)
        recalled = await at.recall(BOB, QUESTION)
        assert len(vectors) == 1 and "red" in recalled and "teal" in await at.recall(OWNER, QUESTION)
        assert await forget_namespace(world.documents, world.namespace(), owner=OWNER, reason="asked") == 1
        assert await at.recall(OWNER, QUESTION) == "", "gone at once, before the index knows"
        await at.drain()
        assert await at.chunks(OWNER) == []
        assert (await world.profile(BOB), await at.chunks(BOB)) == (kept, vectors)
        assert await at.recall(BOB, QUESTION) == recalled
