"""Recall and an owner's documents over HTTP, over real Postgres."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from typing import Any

import pytest

from memory_pipeline.index.embedding import profile_of
from memory_pipeline.index.limits import SemanticIndexLimits
from memory_pipeline.index.postgres import PostgresSemanticIndex
from memory_pipeline.index.refresh import refresh_source
from shared.agents import Agent, App, MemoryPolicy
from shared.domain.failpoints import Failpoints
from shared.models.wordllama_embeddings import WordLlamaEmbedder
from tests.support.memory_place import (
    BOB,
    CAT,
    DOCUMENTS,
    FACTS,
    PROFILE,
    RED,
    TEAL,
    ask,
    assert_refused,
    correction,
    memory_place,
    put,
)
from tests.support.memory_world import MemoryWorld
from tests.support.producers import calling


def status_of(outcomes: list[dict[str, Any]]) -> dict[str, str]:
    return {one["id"]: one["status"] for one in outcomes}


# --- recall ---


@pytest.mark.behaviour("API-10", "RCL-40", "RCL-41")
async def test_what_was_said_in_one_session_is_recalled_with_its_provenance(database_url: str) -> None:
    async with memory_place(database_url) as p:
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
    async with memory_place(database_url) as p:
        await p.tell(TEAL)
        answer = await ask(p.bob, "teal")
        assert (answer["text"], answer["passages"]) == ("", [])
        assert status_of(answer["outcomes"])["direct"] == "no-match"


@pytest.mark.behaviour("MEM-07")
async def test_a_document_of_another_scope_is_not_recalled(database_url: str) -> None:
    async with memory_place(database_url) as p:
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
    async with memory_place(database_url, app=patient) as p:
        index = PostgresSemanticIndex(p.world.database)
        await index.register(profile_of(embedder))
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
    async with memory_place(database_url) as p:
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
    async with memory_place(database_url) as p:
        made = [await put(p.ann, PROFILE, correction("a", None, "op-0"))]
        for n in range(1, 4):
            made.append(await put(p.ann, PROFILE, correction(f"a\nb{n}", str(n), f"op-{n}")))
        for n, first in enumerate(made):
            body = correction("a" if n == 0 else f"a\nb{n}", str(n) if n else None, f"op-{n}")
            assert await put(p.ann, PROFILE, body) == first
        assert (await p.ann.get(PROFILE)).json() == made[-1]


@pytest.mark.behaviour("API-10", "MEM-27", "MEM-34")
async def test_corrections_that_do_not_fit_are_refused_and_change_nothing(database_url: str) -> None:
    async with memory_place(database_url) as p:
        await put(p.ann, PROFILE, correction("a", None, "op-1"))
        stands = await put(p.ann, PROFILE, correction("b", "1", "op-2"))
        refused: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
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
    async with memory_place(database_url) as p:
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
    async with memory_place(database_url) as p:
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
    async with memory_place(database_url) as p:
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
    async with memory_place(database_url) as p:
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
    async with memory_place(database_url) as p:
        await put(p.ann, PROFILE, correction("a", None))
        incomplete: list[dict[str, str]] = [{}, {"expected_revision": "1"}, {"operation_id": "x"}]
        for params in incomplete:
            assert (await p.ann.delete(PROFILE, params=params)).status_code == 422
        named = {"expected_revision": "1", "operation_id": "x"}
        for bad in ({"reason": ""}, {"reason": "x" * 4_097}, {"reason": "a\x00b"}, {"owner": BOB}):
            assert (await p.ann.delete(PROFILE, params=named | bad)).status_code == 422
        assert (await p.ann.get(PROFILE)).json()["withdrawn"] is False


@pytest.mark.behaviour("API-10")
async def test_documents_are_listed_by_id_in_pages_without_gap_or_double(database_url: str) -> None:
    async with memory_place(database_url) as p:
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
