"""One source's refresh, on the twins in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from memory_pipeline.index.inproc import InprocSemanticIndex
from memory_pipeline.index.limits import SemanticIndexLimits
from memory_pipeline.store.documents import Document, MemoryKey
from shared.domain.errors import (
    EmbeddingInvalid,
    FenceLost,
    IndexBudget,
    IndexUnavailable,
    ModelUnavailable,
    ProcessingRefused,
    SourceChanged,
)
from shared.models.embeddings import Embeddings
from shared.models.scripted import ScriptedEmbedder
from tests.support.index_world import CountingReader, IndexWorld


class FixedEmbedder(ScriptedEmbedder):
    """Answers vectors that the port would not let through."""

    def __init__(self, vectors: list[list[float]]) -> None:
        super().__init__(dimensions=2)
        self._vectors = vectors

    async def embed(self, texts: object) -> Embeddings:
        return Embeddings(self._vectors)


class UnknownRevisions:
    """A reader of sources that have no revision."""

    def __init__(self, world: IndexWorld) -> None:
        self._world = world

    async def read(self, key: MemoryKey) -> Document | None:
        document = await self._world.store.read(key)
        assert document is not None
        return document.model_copy(update={"source": document.source.model_copy(update={"revision": None})})

    async def read_many(self, keys: object) -> list[Document | None]:
        raise NotImplementedError


def in_memory() -> tuple[IndexWorld, InprocSemanticIndex]:
    index = InprocSemanticIndex()
    return IndexWorld(index=index), index


@pytest.mark.behaviour("SEM-48", "SEM-55")
async def test_a_refresh_embeds_all_chunks_in_one_call_and_reads_the_source_twice() -> None:
    world, index = in_memory()
    await world.put("red is nice\nblue is cold\n")
    reader = CountingReader(world.store, {})
    result = await world.refresh(index.claim(await world.job()), reader=reader)
    assert (result.status, result.chunks, reader.reads) == ("replaced", 2, 2)
    assert isinstance(world.embedder, ScriptedEmbedder)
    assert world.embedder.requests == [("red is nice\n", "blue is cold\n")]
    assert await world.texts("cold and blue") == ["blue is cold\n", "red is nice\n"]


@pytest.mark.behaviour("SEM-50", "SEM-55")
async def test_a_source_that_changed_while_it_was_embedded_is_tried_again_and_the_old_index_stays() -> None:
    world, index = in_memory()
    await world.put("old")
    job = await world.job()
    await world.refresh(index.claim(job))
    await world.put("middle")
    reader = CountingReader(world.store, {2: lambda: world.put("new")})
    claim = index.claim(job)
    with pytest.raises(SourceChanged):
        await world.refresh(claim, reader=reader)
    assert await world.texts("x") == ["old"]
    assert (await world.refresh(claim)).status == "replaced"
    assert await world.texts("x") == ["new"]


@pytest.mark.behaviour("SEM-52")
async def test_a_source_withdrawn_before_or_meanwhile_is_taken_out_for_good() -> None:
    for at in (1, 2):
        world, index = in_memory()
        await world.put("secret")
        job = await world.job()
        await world.refresh(index.claim(job))
        reader = CountingReader(world.store, {at: world.withdraw})
        assert (await world.refresh(index.claim(job), reader=reader)).status == "withdrawn"
        assert await world.texts("secret") == []
        assert (await world.refresh(index.claim(job))).status == "withdrawn"


async def test_a_source_that_is_not_there_has_nothing_in_the_index_and_may_come_later() -> None:
    world, index = in_memory()
    job = await world.job()
    assert (await world.refresh(index.claim(job))).status == "missing"
    await world.put("here")
    assert (await world.refresh(index.claim(job))).status == "replaced"


@pytest.mark.behaviour("SEM-31", "SEM-50", "SEM-T07")
async def test_a_source_over_the_limits_never_reaches_the_embedder() -> None:
    world, index = in_memory()
    await world.put("one\ntwo\n")
    claim = index.claim(await world.job())
    for limits in (SemanticIndexLimits(max_source_bytes=7), SemanticIndexLimits(max_chunks=1)):
        with pytest.raises(IndexBudget):
            await replace(world, limits=limits).refresh(claim)
    assert isinstance(world.embedder, ScriptedEmbedder)
    assert world.embedder.requests == []
    exact = replace(world, limits=SemanticIndexLimits(max_source_bytes=8, max_chunks=2))
    assert (await exact.refresh(claim)).status == "replaced"


@pytest.mark.behaviour("SEM-32", "SEM-50", "SEM-T06")
@pytest.mark.parametrize(
    ("vectors", "reason"),
    [
        ([], "count"),
        ([[1.0, 0.0], [1.0, 0.0]], "count"),
        ([[1.0]], "dimensions"),
        ([[1.0, float("nan")]], "not-finite"),
        ([[float("inf"), 1.0]], "not-finite"),
        ([[0.0, 0.0]], "zero-norm"),
    ],
)
async def test_vectors_that_do_not_fit_leave_the_index_as_it_was(
    vectors: list[list[float]], reason: str
) -> None:
    index = InprocSemanticIndex()
    world = IndexWorld(index=index, embedder=FixedEmbedder([[1.0, 0.0]]))
    await world.put("old")
    job = await world.job()
    await world.refresh(index.claim(job))
    await world.put("new")
    with pytest.raises(EmbeddingInvalid) as refused:
        await replace(world, embedder=FixedEmbedder(vectors)).refresh(index.claim(job))
    assert refused.value.fields["reason"] == reason
    assert await world.texts("x") == ["old"]


@pytest.mark.behaviour("SEM-50")
async def test_an_embedder_that_is_away_leaves_the_index_as_it_was() -> None:
    world, index = in_memory()
    await world.put("old")
    job = await world.job()
    await world.refresh(index.claim(job))
    away = replace(world, embedder=ScriptedEmbedder(failures=[ModelUnavailable("away")]))
    await world.put("new")
    with pytest.raises(ModelUnavailable):
        await away.refresh(index.claim(job))
    assert await world.texts("x") == ["old"]


@pytest.mark.behaviour("SEM-07")
async def test_a_job_of_another_embedders_profile_is_left_to_who_has_that_one() -> None:
    world, index = in_memory()
    await world.put("text")
    claim = index.claim(await world.job())
    with pytest.raises(IndexUnavailable) as refused:
        await replace(world, embedder=ScriptedEmbedder(revision="2")).refresh(claim)
    assert refused.value.fields["reason"] == "profile"
    await world.index.retire(world.profile.digest)
    assert (await world.refresh(claim)).status == "retired"


@pytest.mark.behaviour("SEM-11")
async def test_a_source_of_unknown_revision_is_not_indexed() -> None:
    world, index = in_memory()
    await world.put("text")
    with pytest.raises(ProcessingRefused) as refused:
        await world.refresh(index.claim(await world.job()), reader=UnknownRevisions(world))
    assert refused.value.fields["reason"] == "unknown-revision"


@pytest.mark.behaviour("SEM-75", "SEM-50")
async def test_a_refresh_over_its_time_is_interrupted_and_says_so() -> None:
    embedder, index = ScriptedEmbedder(), InprocSemanticIndex()
    world = IndexWorld(embedder=embedder, index=index, limits=SemanticIndexLimits(timeout_s=0.01))
    await world.put("text")
    claim = index.claim(await world.job())
    embedder.hold()
    with pytest.raises(IndexUnavailable) as late:
        await world.refresh(claim)
    assert late.value.fields["reason"] == "timeout"
    assert len(asyncio.all_tasks()) == 1
    embedder.release()
    assert await world.texts("text") == []


@pytest.mark.behaviour("SEM-T02")
async def test_a_slow_refresh_that_lost_its_claim_to_a_withdrawal_brings_nothing_back() -> None:
    world, index = in_memory()
    document = await world.put("secret")
    job = await world.job()
    slow = index.claim(job)

    async def overtake() -> None:
        await world.withdraw()
        await world.refresh(index.claim(job))

    reader = CountingReader(StaleReader(document), {2: overtake})
    with pytest.raises(FenceLost):
        await world.refresh(slow, reader=reader)
    assert await world.texts("secret") == []


class StaleReader:
    """A reader whose answers are as old as its document."""

    def __init__(self, document: Document) -> None:
        self._document = document

    async def read(self, key: MemoryKey) -> Document | None:
        return self._document

    async def read_many(self, keys: object) -> list[Document | None]:
        raise NotImplementedError
