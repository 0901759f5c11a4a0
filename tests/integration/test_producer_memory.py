"""Memory over HTTP, over real Postgres: recall, corrections, withdrawals, intents, progress, and whose each of it is."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from memory_pipeline.index.limits import SemanticIndexLimits
from memory_pipeline.index.postgres import PostgresSemanticIndex
from memory_pipeline.index.profile import LINES, SemanticProfile
from memory_pipeline.index.refresh import refresh_source
from shared.agents import Agent, App, MemoryPolicy
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, SessionId
from shared.models.wordllama_embeddings import WordLlamaEmbedder
from shared.wakes.inproc import InprocWakes
from tests.support.memory_world import MemoryWorld, memory_world
from tests.support.producers import Producer, calling, create_session
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
class Place:
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
async def place(database_url: str, **options: Any) -> AsyncIterator[Place]:
    wakes = InprocWakes()
    async with (
        memory_world(database_url, ScriptedFacts(FACTS)) as world,
        calling(database_url, owner=ANN, wakes=wakes, **options) as (producer, ann),
        producer.client(await producer.key_for(BOB)) as bob,
    ):
        yield Place(producer, wakes, world, ann, bob)


def correction(text: str, expected: str | None, operation: str = "op-1", **fields: Any) -> dict[str, Any]:
    return {"text": text, "expected_revision": expected, "operation_id": operation} | fields


async def ask(client: httpx2.AsyncClient, query: str) -> dict[str, Any]:
    response = await client.post("/v1/memory/recall", json={"query": query})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def put(client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.put(path, json=body)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def assert_refused(response: httpx2.Response, status: int, code: str, **fields: Any) -> None:
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert {name: response.json()["fields"][name] for name in fields} == fields


def status_of(outcomes: list[dict[str, Any]]) -> dict[str, str]:
    return {one["id"]: one["status"] for one in outcomes}


# --- recall ---


@pytest.mark.behaviour("API-10", "RCL-40", "RCL-41")
async def test_what_was_said_in_one_session_is_recalled_with_its_provenance(database_url: str) -> None:
    async with place(database_url) as p:
        session = await p.tell(TEAL)
        answer = await ask(p.ann, "which colour do I like?")
        [passage] = answer["passages"]
        assert passage["citation"] == "memory:1"
        assert passage["source"] == {"id": "profile-1", "locator": "memory/profile-1", "revision": "1"}
        assert (passage["passage_id"], passage["text"]) == ("document", FACTS[TEAL][0].statement)
        [attribution] = passage["attributions"]
        assert (attribution["origin_id"], attribution["speaker"]) == (f"{session}:1", "user")
        assert attribution["locator"] == f"session/{session}/records/1"
        assert attribution["activity_at"] == passage["recorded_at"]
        assert '"citation":"memory:1"' in answer["text"]
        assert FACTS[TEAL][0].statement in answer["text"]
        outcomes = answer["outcomes"]
        assert [one["id"] for one in outcomes] == ["direct", "keyword", "semantic"]
        assert outcomes[0] | {"selected": 1} == outcomes[0]
        assert outcomes[1] | {"status": "found", "selected": 0, "deduplicated": 1} == outcomes[1]


@pytest.mark.behaviour("API-16", "MEM-06")
async def test_another_owner_recalls_nothing_of_it(database_url: str) -> None:
    async with place(database_url) as p:
        await p.tell(TEAL)
        answer = await ask(p.bob, "teal")
        assert (answer["text"], answer["passages"]) == ("", [])
        assert status_of(answer["outcomes"])["direct"] == "no-match"


@pytest.mark.behaviour("MEM-07")
async def test_a_document_of_another_scope_is_not_recalled(database_url: str) -> None:
    async with place(database_url) as p:
        await put(p.ann, PROFILE, correction("I like teal.", None, scopes=["team"]))
        await put(p.ann, f"{DOCUMENTS}/notes", correction("I like teal.", None, "op-2", scopes=[]))
        assert (await ask(p.ann, "teal"))["passages"] == []
        await put(p.ann, PROFILE, correction("I like teal.", "1", "op-3", scopes=["private"]))
        assert [one["text"] for one in (await ask(p.ann, "teal"))["passages"]] == ["I like teal."]


QUERIES = {
    "": 422,
    "x" * 8_192: 200,
    "é" * 4_096: 200,
    "x" * 8_193: 413,
    "é" * 4_097: 413,
    "' | !! & <-> :* \\ ) (": 200,
    "\u200b \t\n": 200,
    "%s {} \x1b[2J": 200,
}


@pytest.mark.behaviour("API-13")
async def test_queries_of_any_text_within_their_bound_are_answered(database_url: str) -> None:
    async with calling(database_url) as (_producer, client):
        for query, status in QUERIES.items():
            response = await client.post("/v1/memory/recall", json={"query": query})
            assert response.status_code == status, (query[:80], response.text)


async def index_all(world: MemoryWorld, embedder: WordLlamaEmbedder) -> None:
    """Do what the index pool does for every owed source."""
    for claim in await world.claims("index"):
        await refresh_source(
            claim,
            index=PostgresSemanticIndex(world.database),
            reader=world.documents,
            embedder=embedder,
            limits=SemanticIndexLimits(),
            failpoints=Failpoints(),
        )
        await world.settle(claim)


@pytest.mark.behaviour("API-10", "API-11")
async def test_a_document_is_found_by_meaning_once_the_index_has_it(database_url: str) -> None:
    patient = App([Agent(name="a", instructions="x")], memory=MemoryPolicy(recall_timeout_s=30.0))
    embedder = WordLlamaEmbedder()
    async with place(database_url, app=patient) as p:
        index = PostgresSemanticIndex(p.world.database)
        await index.register(SemanticProfile.of(embedder.profile, chunker=LINES))
        await put(p.ann, f"{DOCUMENTS}/pets", correction("The family dog is a beagle.", None))
        await put(p.bob, f"{DOCUMENTS}/pets", correction("The family dog is a poodle.", None))
        [owed] = (await p.ann.get("/v1/memory/progress")).json()["indexes"]
        assert (owed["ready"], owed["owed"]) == (0, 1)
        await index_all(p.world, embedder)
        [ready] = (await p.ann.get("/v1/memory/progress")).json()["indexes"]
        assert (ready["ready"], ready["owed"]) == (1, 0)
        answer = await ask(p.ann, "what puppy breed does my household own")
        assert status_of(answer["outcomes"]) == {
            "direct": "no-match",
            "keyword": "no-match",
            "semantic": "found",
        }
        [passage] = answer["passages"]
        assert passage["text"] == "The family dog is a beagle."
        assert passage["attributions"][0]["origin_id"] == "api:op-1"
    await embedder.aclose()


def test_a_starting_producer_loads_no_embedding_model() -> None:
    code = "import producer.compose, sys; sys.exit('wordllama' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# --- documents ---


@pytest.mark.behaviour("API-10", "MEM-26", "MEM-29")
async def test_an_owner_writes_a_document_and_reads_it_with_its_history(database_url: str) -> None:
    async with place(database_url) as p:
        first = await put(p.ann, PROFILE, correction("I like teal.", None))
        assert (first["id"], first["revision"], first["generation"]) == ("profile-1", "1", 1)
        assert (first["withdrawn"], first["reason"], first["scopes"]) == (False, None, ["private"])
        [attribution] = first["attributions"]
        assert (attribution["speaker"], attribution["origin_id"]) == ("user", "api:op-1")
        assert attribution["interpretation"] == "I like teal."
        second = await put(p.ann, PROFILE, correction("I like red.", "1", "op-2"))
        assert (await p.ann.get(PROFILE)).json() == second
        history = (await p.ann.get(PROFILE, params={"history": "true"})).json()
        assert history == {"generations": [second, first]}
        newest = (await p.ann.get(PROFILE, params={"history": "true", "limit": "1"})).json()
        assert newest == {"generations": [second]}
        assert p.wakes.rings == [("index", ())] * 2


@pytest.mark.behaviour("API-10", "MEM-32", "MEM-33", "MEM-35")
async def test_a_repeated_correction_answers_the_first_one_whatever_came_after(database_url: str) -> None:
    async with place(database_url) as p:
        made = [await put(p.ann, PROFILE, correction("a", None, "op-0"))]
        for n in range(1, 4):
            made.append(await put(p.ann, PROFILE, correction(f"a\nb{n}", str(n), f"op-{n}")))
        for n, first in enumerate(made):
            body = correction("a" if n == 0 else f"a\nb{n}", str(n) if n else None, f"op-{n}")
            assert await put(p.ann, PROFILE, body) == first
        assert (await p.ann.get(PROFILE)).json() == made[-1]


@pytest.mark.behaviour("API-10", "MEM-27", "MEM-34")
async def test_corrections_that_do_not_fit_are_refused_and_change_nothing(database_url: str) -> None:
    async with place(database_url) as p:
        await put(p.ann, PROFILE, correction("a", None, "op-1"))
        stands = await put(p.ann, PROFILE, correction("b", "1", "op-2"))
        refused = [
            (correction("c", "1", "op-3"), "memory.conflict", {"expected": "1", "actual": "2"}),
            (correction("c", None, "op-3"), "memory.conflict", {"expected": None, "actual": "2"}),
            (correction("c", "7", "op-3"), "memory.conflict", {"expected": "7", "actual": "2"}),
            (correction("c", "x", "op-3"), "memory.conflict", {"expected": "x", "actual": "2"}),
            (correction("c", "2", "op-1"), "memory.operation-conflict", {}),
            (correction("c", "1", "op-2"), "memory.operation-conflict", {}),
        ]
        for body, code, fields in refused:
            assert_refused(await p.ann.put(PROFILE, json=body), 409, code, **fields)
        missing = await p.ann.put(f"{DOCUMENTS}/nothing", json=correction("c", "1", "op-3"))
        assert_refused(missing, 409, "memory.conflict", expected="1", actual=None)
        assert (await p.ann.get(PROFILE)).json() == stands


OUT_OF_BOUNDS: list[tuple[dict[str, Any], str]] = [
    ({"text": ""}, "/text"),
    ({"text": "a\n\nb"}, "/text"),
    ({"text": "a\n"}, "/text"),
    ({"text": "x" * 4_097}, "/text"),
    ({"text": "\n".join("x" * 129)}, "/text"),
    ({"operation_id": ""}, "/operation_id"),
    ({"scopes": ["é"]}, "/scopes/0"),
    ({"scopes": ["s"] * 129}, "/scopes"),
    ({"scopes": ["s", "s"]}, "/scopes"),
    ({"expected_revision": 1}, "/expected_revision"),
    ({"namespace": "x"}, "/namespace"),
]


@pytest.mark.behaviour("API-13", "API-12")
async def test_corrections_out_of_bounds_are_refused_by_the_place_of_their_field(database_url: str) -> None:
    async with place(database_url) as p:
        for fields, pointer in OUT_OF_BOUNDS:
            response = await p.ann.put(PROFILE, json=correction("a", None) | fields)
            assert response.status_code == 422, response.text
            assert [one["pointer"] for one in response.json()["errors"]] == [pointer]
        without = {"text": "a", "operation_id": "x"}
        assert (await p.ann.put(PROFILE, json=without)).status_code == 422
        assert (await p.ann.get(PROFILE)).status_code == 404


@pytest.mark.behaviour("MEM-T03", "MEM-T04")
async def test_of_many_corrections_at_once_one_wins_and_the_same_one_is_answered_alike(
    database_url: str,
) -> None:
    async with place(database_url) as p:
        same = await asyncio.gather(*(put(p.ann, PROFILE, correction("a", None)) for _ in range(8)))
        assert all(one == same[0] for one in same)
        others = [p.ann.put(PROFILE, json=correction(f"b{n}", "1", f"op-b{n}")) for n in range(8)]
        answers = await asyncio.gather(*others)
        assert sorted(one.status_code for one in answers) == [200] + [409] * 7
        assert (await p.ann.get(PROFILE)).json()["generation"] == 2


@pytest.mark.behaviour("REM-26", "REM-41")
async def test_a_correction_keeps_who_said_the_other_lines_and_outlives_the_background(
    database_url: str,
) -> None:
    async with place(database_url) as p:
        session = await p.tell(TEAL, CAT)
        told = (await p.ann.get(PROFILE)).json()
        teal, cat = told["text"].split("\n")
        fixed = await put(p.ann, PROFILE, correction(f"{teal}\nThe cat is called Mia.", told["revision"]))
        origins = [one["origin_id"] for one in fixed["attributions"]]
        assert origins == [f"{session}:1", "api:op-1"]
        await p.tell(RED)
        after = (await p.ann.get(PROFILE)).json()
        assert after["text"].split("\n") == [FACTS[RED][0].statement, "The cat is called Mia."]
        assert after["scopes"] == told["scopes"]
        assert cat not in after["text"]


@pytest.mark.behaviour("API-10", "MEM-39", "MEM-40", "MEM-33")
async def test_a_withdrawn_document_is_gone_for_good(database_url: str) -> None:
    async with place(database_url) as p:
        made = await put(p.ann, PROFILE, correction("I like teal.", None))
        params = {"expected_revision": "1", "operation_id": "op-2", "reason": "wrong"}
        stale = await p.ann.delete(PROFILE, params=params | {"expected_revision": "3"})
        assert_refused(stale, 409, "memory.conflict", expected="3", actual="1")
        gone = await p.ann.delete(PROFILE, params=params)
        assert gone.status_code == 200
        document = gone.json()
        assert (document["withdrawn"], document["reason"], document["text"]) == (True, "wrong", None)
        assert (document["revision"], document["attributions"], document["scopes"]) == ("2", [], [])
        assert (await p.ann.delete(PROFILE, params=params)).json() == document
        assert (await p.ann.get(PROFILE)).json() == document
        assert (await p.ann.get(DOCUMENTS)).json()["documents"] == [document]
        assert (await ask(p.ann, "teal"))["passages"] == []
        for expected in (None, "1", "2"):
            revived = await p.ann.put(PROFILE, json=correction("again", expected, "op-3"))
            assert_refused(revived, 409, "memory.withdrawn", id="profile-1", revision="2")
        again = await p.ann.delete(PROFILE, params=params | {"operation_id": "op-4"})
        assert_refused(again, 409, "memory.withdrawn")
        assert await put(p.ann, PROFILE, correction("I like teal.", None)) == made


@pytest.mark.behaviour("API-12")
async def test_a_withdrawal_names_revision_and_operation(database_url: str) -> None:
    async with place(database_url) as p:
        await put(p.ann, PROFILE, correction("a", None))
        for params in ({}, {"expected_revision": "1"}, {"operation_id": "x"}):
            assert (await p.ann.delete(PROFILE, params=params)).status_code == 422
        named = {"expected_revision": "1", "operation_id": "x"}
        for bad in ({"reason": ""}, {"reason": "x" * 4_097}, {"reason": "a\x00b"}, {"owner": BOB}):
            assert (await p.ann.delete(PROFILE, params=named | bad)).status_code == 422
        assert (await p.ann.get(PROFILE)).json()["withdrawn"] is False


@pytest.mark.behaviour("API-10")
async def test_documents_are_listed_by_id_in_pages_without_gap_or_double(database_url: str) -> None:
    async with place(database_url) as p:
        made = [f"note-{n}" for n in range(7)]
        for n, name in enumerate(reversed(made)):
            await put(p.ann, f"{DOCUMENTS}/{name}", correction("a", None, f"op-{n}"))
        await put(p.bob, f"{DOCUMENTS}/other", correction("a", None))
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = (await p.ann.get(DOCUMENTS, params={"limit": "3"} | cursor)).json()
            seen += [one["id"] for one in page["documents"]]
            if page["next"] is None:
                break
            cursor = {"cursor": page["next"]}
        assert seen == made
        forged = base64.urlsafe_b64encode(json.dumps(["a\x00"]).encode()).decode()
        for params in ({"cursor": "nonsense"}, {"cursor": forged}, {"limit": "129"}, {"owner": BOB}):
            assert (await p.ann.get(DOCUMENTS, params=params)).status_code == 422


# --- intents and progress ---


@pytest.mark.behaviour("API-09", "REM-02", "REM-03", "REM-05")
async def test_a_statement_is_admitted_once_and_followed_to_its_end(database_url: str) -> None:
    async with place(database_url) as p:
        session = await p.world.session(OwnerId(ANN))
        await p.world.turn(session, TEAL, OwnerId(ANN))
        body = {"session_id": session, "seq": 1}
        admitted = await p.ann.post("/v1/memory/intents", json=body)
        assert (admitted.status_code, admitted.json()["status"]) == (202, "queued")
        where = admitted.headers["Location"]
        assert where == f"/v1/memory/intents/{admitted.json()['intent_id']}"
        again = await p.ann.post("/v1/memory/intents", json=body)
        assert (again.status_code, again.json()) == (202, admitted.json() | {"status": "duplicate"})
        [claim] = await p.world.claims("remember")
        assert p.wakes.rings == [("remember", (claim.job_id,))]
        assert (await p.ann.get(where)).json()["status"] == "running"
        await p.world.remembering().process(claim)
        await p.world.settle(claim)
        done = (await p.ann.get(where)).json()
        assert (done["status"], done["outcome"], done["why"]) == ("completed", "applied", None)
        assert (done["source"], done["document_id"]) == (body, "profile-1")
        assert (await p.ann.get(PROFILE)).json()["text"] == FACTS[TEAL][0].statement


@pytest.mark.behaviour("API-09", "REM-14", "REM-35")
async def test_what_is_no_statement_of_the_caller_is_refused_and_nothing_is_stored(database_url: str) -> None:
    async with place(database_url) as p:
        session = await p.world.session(OwnerId(ANN))
        await p.world.turn(session, TEAL, OwnerId(ANN))
        pending = await p.world.session(OwnerId(ANN))
        await p.world.open_turn(pending, TEAL, OwnerId(ANN))
        refused = [
            (p.ann, session, 2, 422, "memory.processing", {"reason": "no-statement"}),
            (p.ann, session, 99, 422, "memory.processing", {"reason": "no-statement"}),
            (p.ann, session, 2**63 - 1, 422, "memory.processing", {"reason": "no-statement"}),
            (p.ann, pending, 1, 422, "memory.processing", {"reason": "turn-unended"}),
            (p.ann, "ses_nobody", 1, 404, "session.missing", {}),
            (p.bob, session, 1, 404, "session.missing", {}),
            (p.bob, session, 99, 404, "session.missing", {}),
        ]
        for client, place_, seq, status, code, fields in refused:
            body = {"session_id": place_, "seq": seq}
            assert_refused(await client.post("/v1/memory/intents", json=body), status, code, **fields)
        for seq in (0, -1, 2**63, 1.5, "1", True):
            body = {"session_id": session, "seq": seq}
            assert (await p.ann.post("/v1/memory/intents", json=body)).status_code == 422
        assert await p.world.rows("SELECT 1 AS one FROM memory_intents") == []
        assert p.wakes.rings == []


@pytest.mark.behaviour("API-09", "REM-45")
async def test_more_intents_than_an_owner_may_have_are_refused_with_a_time_to_come_back(
    database_url: str,
) -> None:
    async with place(database_url, pending_intents_per_owner=1) as p:
        for owner, client in ((ANN, p.ann), (BOB, p.bob)):
            session = await p.world.session(OwnerId(owner))
            await p.world.turn(session, TEAL, OwnerId(owner), steps=1)
            await p.world.turn(session, CAT, OwnerId(owner), steps=1)
            first = await client.post("/v1/memory/intents", json={"session_id": session, "seq": 1})
            assert first.status_code == 202
            second = await client.post("/v1/memory/intents", json={"session_id": session, "seq": 5})
            assert_refused(second, 429, "memory.intents-full")
            assert int(second.headers["Retry-After"]) >= 1


@pytest.mark.behaviour("API-11", "ACT-49")
async def test_progress_shows_the_cursor_of_each_processor_in_the_session(database_url: str) -> None:
    async with place(database_url) as p:
        session = await p.world.session(OwnerId(ANN))
        await p.world.turn(session, TEAL, OwnerId(ANN))
        params = {"session_id": session}
        owed = (await p.ann.get("/v1/memory/progress", params=params)).json()
        assert (owed["session_id"], owed["seq"]) == (session, 4)
        [processor] = owed["processors"]
        assert (processor["processor"], processor["version"]) == ("user-statements", "1")
        assert (processor["through_seq"], processor["pending"], processor["advanced_at"]) == (0, None, None)
        assert processor["status"] == "ready"
        await p.world.drain()
        [done] = (await p.ann.get("/v1/memory/progress", params=params)).json()["processors"]
        assert (done["through_seq"], done["pending"], done["status"]) == (4, None, "idle")
        assert done["advanced_at"] is not None
        for other in (session, "ses_nobody"):
            answer = await p.bob.get("/v1/memory/progress", params={"session_id": other})
            assert_refused(answer, 404, "session.missing")
        assert (await p.bob.get("/v1/memory/progress")).json()["processors"] == []


# --- whose it is ---


@pytest.mark.behaviour("API-10")
async def test_an_app_without_a_policy_has_no_memory_on_any_of_its_routes(database_url: str) -> None:
    bare = App([Agent(name="a", instructions="x")])
    async with calling(database_url, app=bare) as (_producer, client):
        paths = (await client.get("/openapi.json")).json()["paths"]
        routes = [(m, path) for path, methods in paths.items() for m in methods if "/v1/memory" in path]
        assert len(routes) == 8
        for method, path in routes:
            where = path.replace("{document_id}", "profile-1").replace("{intent_id}", "x")
            assert_refused(await client.request(method.upper(), where), 404, "memory.off")


@pytest.mark.behaviour("API-15")
async def test_a_draining_producer_takes_no_changes_of_memory_and_still_answers(database_url: str) -> None:
    async with place(database_url) as p:
        made = await put(p.ann, PROFILE, correction("I like teal.", None))
        p.producer.parts.traffic.begin_drain()
        withdrawal = {"expected_revision": "1", "operation_id": "op-2"}
        for response in (
            await p.ann.put(PROFILE, json=correction("b", "1", "op-2")),
            await p.ann.delete(PROFILE, params=withdrawal),
            await p.ann.post("/v1/memory/intents", json={"session_id": "ses_1", "seq": 1}),
        ):
            assert_refused(response, 503, "turn.refused")
        assert (await p.ann.get(PROFILE)).json() == made
        assert len((await ask(p.ann, "teal"))["passages"]) == 1


async def every_request(client: httpx2.AsyncClient, session: str, intent: str, document: str) -> list[str]:
    """Ask every memory route about these ids; return the bodies of the answers."""
    where = f"{DOCUMENTS}/{document}"
    withdrawal = {"expected_revision": "1", "operation_id": "theft"}
    answers = [
        await client.post("/v1/memory/recall", json={"query": "teal colour Minka cat"}),
        await client.get(DOCUMENTS),
        await client.get(where),
        await client.get(where, params={"history": "true"}),
        await client.put(where, json=correction("stolen", "1", "theft")),
        await client.delete(where, params=withdrawal),
        await client.post("/v1/memory/intents", json={"session_id": session, "seq": 1}),
        await client.get(f"/v1/memory/intents/{intent}"),
        await client.get("/v1/memory/progress", params={"session_id": session}),
    ]
    return [one.text for one in answers]


def without_ids(bodies: list[str], *ids: str) -> list[dict[str, Any]]:
    """Answers with the given ids and what is each request's own taken out."""
    texts = bodies
    for value in ids:
        texts = [text.replace(value, "ID") for text in texts]
    return [{k: v for k, v in json.loads(text).items() if k != "request_id"} for text in texts]


@pytest.mark.behaviour("API-16", "NSP-43", "RCL-T08")
async def test_nothing_of_an_owner_shows_in_anothers_answers_in_logs_or_in_metrics(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with place(database_url) as p:
        session = await p.tell(TEAL, CAT)
        await p.tell(RED, owner=BOB)
        [intent] = await p.world.rows("SELECT id FROM memory_intents WHERE owner = %s LIMIT 1", ANN)
        await put(p.ann, f"{DOCUMENTS}/notes", correction("I hid it under the oak.", None))
        stolen = await every_request(p.bob, session, intent["id"], "notes")
        nothing = await every_request(p.bob, "ses_nobody", "f" * 64, "none")
        # Another owner's ids read as ids that nobody has, word for word.
        assert without_ids(stolen, session, intent["id"], "notes") == without_ids(
            nothing, "ses_nobody", "f" * 64, "none"
        )
        own = await every_request(p.ann, session, intent["id"], "notes")
        assert "teal" in own[0] and "oak" in own[1]
        assert "stolen" in own[4]
        metrics = (await p.ann.get("/metrics")).text
        namespaces = [p.world.namespace(OwnerId(owner)) for owner in (ANN, BOB)]
    secrets = [ANN, BOB, *namespaces, *(json.dumps(one)[1:-1] for one in namespaces), '"profile",1']
    said = ["teal", "Minka", "under the oak"]
    logged = [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
    assert any("document corrected" in line for line in logged)
    for text in (*stolen, *nothing, *own, metrics, *logged):
        assert [secret for secret in secrets if secret in text] == []
    # The query itself holds some of the words; what was remembered is in none of the other owner's answers.
    for text in (*stolen, *nothing, metrics, *logged):
        assert [word for word in said if word in text] == []


@pytest.mark.behaviour("API-16")
async def test_two_owners_may_use_the_same_ids_and_never_meet(database_url: str) -> None:
    async with place(database_url) as p:
        mine = await put(p.ann, PROFILE, correction("I like teal.", None, "same"))
        yours = await put(p.bob, PROFILE, correction("I like red.", None, "same"))
        assert (mine["revision"], yours["revision"]) == ("1", "1")
        assert [one["text"] for one in (await ask(p.ann, "like"))["passages"]] == ["I like teal."]
        assert [one["text"] for one in (await ask(p.bob, "like"))["passages"]] == ["I like red."]
        withdrawal = {"expected_revision": "1", "operation_id": "gone"}
        assert (await p.bob.delete(PROFILE, params=withdrawal)).status_code == 200
        assert (await p.ann.get(PROFILE)).json() == mine
        session = await create_session(p.ann)
        assert_refused(
            await p.bob.get("/v1/memory/progress", params={"session_id": session}), 404, "session.missing"
        )
