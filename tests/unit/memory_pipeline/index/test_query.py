"""Queries by meaning: candidates for recall, and those of them that still stand in their sources."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memory_pipeline.index.inproc import InprocSemanticIndex
from memory_pipeline.index.limits import SemanticQueryLimits
from memory_pipeline.index.query import MemoryAccess, query_semantic_memory, semantic_candidates
from memory_pipeline.recall.revalidate import revalidate
from memory_pipeline.recall.values import Found
from memory_pipeline.store.documents import MemoryKey, Passage, encode
from shared.domain.errors import (
    IndexUnavailable,
    ModelAuthFailed,
    ModelRefused,
    RecallFailed,
    TurnkeeperError,
)
from shared.models.scripted import ScriptedEmbedder
from shared.models.wordllama_embeddings import WordLlamaEmbedder
from tests.support.index_world import SCOPE, SPACE, SPACES, CountingReader, IndexWorld

LIMITS = SemanticQueryLimits()


async def filled(*texts: str) -> tuple[IndexWorld, InprocSemanticIndex]:
    """A world of documents a, b, …, each indexed."""
    index = InprocSemanticIndex()
    world = IndexWorld(index=index)
    for id_, text in zip("abcdefgh", texts, strict=False):
        await world.put(text, id_)
        await world.refresh(index.claim(await world.job(id_)))
    return world, index


async def candidates(world: IndexWorld, query: str, limits: SemanticQueryLimits = LIMITS) -> list[Passage]:
    return list(await semantic_candidates(world.index, world.profile, world.embedder, SPACE, query, limits))


@pytest.mark.behaviour("SEM-13", "SEM-47")
async def test_candidates_are_near_enough_best_first_and_carry_nothing_but_placeholders() -> None:
    world, _ = await filled("my dog is old\nmy cat is young\nthe sky was grey\n")
    found = await candidates(world, "my dog is old", replace(LIMITS, min_score=0.4))
    assert [p.content.text for p in found] == ["my dog is old\n", "my cat is young\n"]
    assert {a.speaker for p in found for a in p.content.attributions} == {"unknown"}
    assert len(await candidates(world, "my dog is old", replace(LIMITS, min_score=-1.0))) == 3
    assert len(await candidates(world, "my dog is old", replace(LIMITS, max_candidates=1))) == 1


@pytest.mark.behaviour("SEM-57")
async def test_revalidation_gives_candidates_the_documents_attribution_and_only_current_text() -> None:
    world, _ = await filled("my dog is old\n")
    found = await candidates(world, "my dog is old")
    lookup = await revalidate(found, world.store, SPACE, SCOPE)
    assert isinstance(lookup, Found)
    [passage] = lookup.passages
    assert [a.speaker for a in passage.content.attributions] == ["user"]
    assert (passage.content.text, passage.content.recorded_at) == ("my dog is old\n", 5)
    await world.put("my dog is called Rex\n")
    lookup = await revalidate(found, world.store, SPACE, SCOPE)
    assert isinstance(lookup, Found)
    assert "old" not in encode(lookup.passages[0])


@pytest.mark.behaviour("SEM-73")
@pytest.mark.parametrize("query", ["", " \n"])
async def test_a_blank_query_finds_nothing_and_embeds_nothing(query: str) -> None:
    world, _ = await filled("text")
    assert isinstance(world.embedder, ScriptedEmbedder)
    asked = len(world.embedder.requests)
    assert await candidates(world, query) == []
    assert len(world.embedder.requests) == asked


@pytest.mark.behaviour("SEM-T07", "SEM-36")
async def test_a_query_or_namespace_over_its_bound_fails_the_lookup_and_not_the_turn() -> None:
    world, _ = await filled("one\ntwo\n")
    exact = replace(LIMITS, max_query_bytes=4, max_scanned_chunks=2)
    await candidates(world, "éxx", exact)
    for limits, reason in (
        (replace(exact, max_query_bytes=3), "query-bytes"),
        (replace(exact, max_scanned_chunks=1), "scanned-chunks"),
    ):
        with pytest.raises(RecallFailed) as failed:
            await candidates(world, "éxx", limits)
        assert (failed.value.fields["reason"], failed.value.fields["limit"]) == ("budget", reason)


@pytest.mark.parametrize("failure", [ModelRefused("no"), ModelAuthFailed("no")])
async def test_an_embedder_that_refuses_makes_the_index_unavailable(failure: TurnkeeperError) -> None:
    world, _ = await filled("text")
    broken = replace(world, embedder=ScriptedEmbedder(failures=[failure]))
    with pytest.raises(IndexUnavailable) as unavailable:
        await candidates(broken, "text")
    assert unavailable.value.fields["reason"] == failure.code


@pytest.mark.behaviour("SEM-75")
async def test_a_query_over_its_time_is_interrupted_and_says_so() -> None:
    world, _ = await filled("text")
    assert isinstance(world.embedder, ScriptedEmbedder)
    world.embedder.hold()
    with pytest.raises(IndexUnavailable) as late:
        await candidates(world, "text", replace(LIMITS, timeout_s=0.01))
    assert late.value.fields["reason"] == "timeout"


@pytest.mark.behaviour("SEM-06")
async def test_an_embedder_of_another_revision_searches_nothing() -> None:
    world, _ = await filled("text")
    other = ScriptedEmbedder(revision="2")
    with pytest.raises(IndexUnavailable) as unavailable:
        await semantic_candidates(world.index, world.profile, other, SPACE, "text", LIMITS)
    assert unavailable.value.fields["reason"] == "profile"


@pytest.mark.behaviour("SEM-63", "SEM-T12", "SEM-56", "SEM-57", "SEM-62", "SEM-71")
async def test_each_source_is_read_once_and_the_indexs_order_is_kept() -> None:
    world, _ = await filled("x y z\nx q r s\n", "x y k\n")
    reader = CountingReader(world.store, {})
    result = await query_semantic_memory(
        world.index, world.profile, world.embedder, reader, MemoryAccess(SPACE, SCOPE), "x y z", LIMITS
    )
    assert [p.content.text for p in result.passages] == ["x y z\n", "x y k\n", "x q r s\n"][
        : len(result.passages)
    ]
    assert [p.source.id for p in result.passages][:2] == ["a", "b"]
    assert (reader.reads, result.scanned_chunks) == (2, 3)
    assert {p.authority for p in result.passages} == {SPACE}
    assert {p.content.recorded_at for p in result.passages} == {5}


@pytest.mark.behaviour("SEM-58", "SEM-59", "SEM-T01", "SEM-T11", "SEM-67", "SEM-71")
async def test_stale_withdrawn_and_revoked_candidates_are_dropped_counted_and_use_no_budget() -> None:
    world, index = await filled("tea first", "tea second", "tea third", "tea fourth")
    await world.put("tea corrected", "a")
    await world.withdraw("b")
    await world.put("tea third", "c", scopes=("other",))
    fourth = await world.store.read(MemoryKey(namespace=SPACE, id="d"))
    assert fourth is not None
    limits = replace(LIMITS, max_source_bytes=len(encode(fourth).encode()))

    async def ask(limits: SemanticQueryLimits) -> tuple[list[str], int, int]:
        result = await query_semantic_memory(
            world.index, world.profile, world.embedder, world.store, MemoryAccess(SPACE, SCOPE), "tea", limits
        )
        texts = [p.content.text for p in result.passages]
        return texts, result.stale_excluded, result.unauthorized_excluded

    assert await ask(limits) == (["tea fourth"], 1, 2)
    with pytest.raises(RecallFailed) as failed:
        await ask(replace(limits, max_source_bytes=limits.max_source_bytes - 1))
    assert failed.value.fields["reason"] == "budget"
    await world.refresh(index.claim(await world.job("a")))
    assert sorted((await ask(LIMITS))[0]) == ["tea corrected", "tea fourth"]


@pytest.mark.behaviour("SEM-24", "SEM-68", "SEM-T07")
async def test_passages_over_the_output_bound_fail_and_nothing_partial_is_given() -> None:
    world, _ = await filled("tea one\ntea two\n")
    access = MemoryAccess(SPACE, SCOPE)

    async def ask(limits: SemanticQueryLimits) -> list[Passage]:
        result = await query_semantic_memory(
            world.index, world.profile, world.embedder, world.store, access, "tea", limits
        )
        return list(result.passages)

    size = sum(len(encode(passage).encode()) for passage in await ask(LIMITS))
    assert len(await ask(replace(LIMITS, max_output_bytes=size))) == 2
    with pytest.raises(RecallFailed):
        await ask(replace(LIMITS, max_output_bytes=size - 1))


@pytest.mark.behaviour("SEM-62", "SEM-T11")
async def test_another_owners_namespace_is_never_searched() -> None:
    world, _ = await filled("my secret plan")
    bob = SPACES.make(owner="bob").address
    assert (
        await semantic_candidates(world.index, world.profile, world.embedder, bob, "my secret", LIMITS) == []
    )


async def test_a_question_finds_its_fact_among_others_with_the_shipped_local_model() -> None:
    index, embedder = InprocSemanticIndex(), WordLlamaEmbedder()
    world = IndexWorld(index=index, embedder=embedder)
    try:
        await world.put(
            "My favourite colour is teal.\nMy dog is called Rufus and he is six years old.\nI live in Lisbon.\n"
            "My sister's birthday is on the 4th of March.\nI drink my coffee black, no sugar.\n"
            "The project deadline was moved to Friday.\n"
        )
        await world.refresh(index.claim(await world.job()))
        limits = replace(LIMITS, timeout_s=60)
        for query, fact in (
            ("What is my favourite colour?", "teal"),
            ("what's the name of my dog", "Rufus"),
            ("When is my sister's birthday?", "March"),
            ("How do I take my coffee?", "black"),
            ("when is the deadline", "Friday"),
        ):
            assert fact in (await candidates(world, query, limits))[0].content.text
        assert await candidates(world, "Explain quicksort", limits) == []
    finally:
        await embedder.aclose()
