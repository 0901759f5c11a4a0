"""A producer with memory, the background's passes over the same database, and clients of two owners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from shared.domain.ids import OwnerId, SessionId
from shared.wakes.inproc import InprocWakes
from tests.support.memory_world import MemoryWorld, memory_world
from tests.support.producers import Producer, calling
from tests.support.scripted_facts import ScriptedFacts, fact

ANN, BOB = "ann-5c1d", "bob-90ae"
TEAL, RED = "My favourite colour is teal.", "Now it is red."
CAT = "My cat is called Minka."
FACTS = {
    TEAL: [fact("favourite-colour", "The user's favourite colour is teal.", "teal")],
    RED: [fact("favourite-colour", "The user's favourite colour is red.", "red")],
    CAT: [fact("cat-name", "The user's cat is called Minka.", "Minka")],
}
DOCUMENTS = "/v1/memory/documents"
PROFILE = f"{DOCUMENTS}/profile-1"


@dataclass
class MemoryPlace:
    """A producer, the background's passes over the same database, and a client for each of two owners."""

    producer: Producer
    wakes: InprocWakes
    world: MemoryWorld
    ann: httpx2.AsyncClient
    bob: httpx2.AsyncClient

    async def tell(self, *texts: str, owner: str = ANN) -> SessionId:
        """Say something in a session of its own and remember it; return the session."""
        session = await self.world.session(OwnerId(owner))
        for text in texts:
            await self.world.turn(session, text, OwnerId(owner))
        await self.world.drain()
        return session


@asynccontextmanager
async def memory_place(database_url: str, **options: Any) -> AsyncIterator[MemoryPlace]:
    """Open the place over a migrated database."""
    wakes = InprocWakes()
    async with (
        memory_world(database_url, ScriptedFacts(FACTS)) as world,
        calling(database_url, owner=ANN, wakes=wakes, **options) as (producer, ann),
        producer.client(await producer.key_for(BOB)) as bob,
    ):
        yield MemoryPlace(producer, wakes, world, ann, bob)


def correction(text: str, expected: str | None, operation: str = "op-1", **fields: Any) -> dict[str, Any]:
    """The body of a correction."""
    return {"text": text, "expected_revision": expected, "operation_id": operation} | fields


async def ask(client: httpx2.AsyncClient, query: str) -> dict[str, Any]:
    """Recall over HTTP."""
    response = await client.post("/v1/memory/recall", json={"query": query})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def put(client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Write a document over HTTP."""
    response = await client.put(path, json=body)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def assert_refused(response: httpx2.Response, status: int, code: str, **fields: Any) -> None:
    """Assert that an answer is this problem, with these of its fields."""
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert {name: response.json()["fields"][name] for name in fields} == fields
