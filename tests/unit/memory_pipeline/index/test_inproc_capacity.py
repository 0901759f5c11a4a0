"""The bounds of the index in memory: sources, chunks, bytes of identities, components; and its end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from memory_pipeline.index.chunks import Chunk, passage_id
from memory_pipeline.index.inproc import InprocSemanticIndex
from memory_pipeline.index.limits import InprocCapacity
from memory_pipeline.index.port import EmbeddedChunk, IndexedSource
from memory_pipeline.index.profile import SemanticProfile
from memory_pipeline.store.documents import MemoryKey, NamespaceAddress, SourceReference
from shared.domain.errors import ConfigError, IndexBudget, IndexUnavailable
from shared.domain.ids import OwnerId
from shared.jobs.queue import JobClaim

PROFILE = SemanticProfile("p", "m", "1", 2)
ANN = OwnerId("ann")
SPACE = NamespaceAddress("n")


def source(id_: str, generation: int = 1, locator: str = "l") -> IndexedSource:
    reference = SourceReference(id=id_, locator=locator, revision=str(generation))
    return IndexedSource(MemoryKey(namespace=SPACE, id=id_), reference, generation)


def chunks(count: int) -> Sequence[EmbeddedChunk]:
    return [EmbeddedChunk(Chunk(passage_id(PROFILE, n), n, n, n + 1, "x"), (1.0, 0.0)) for n in range(count)]


async def claim(index: InprocSemanticIndex, id_: str) -> JobClaim:
    return index.claim(await index.owe(PROFILE, source(id_).key, ANN))


async def count(index: InprocSemanticIndex) -> int:
    return len((await index.search(PROFILE, SPACE, (1.0, 0.0), limit=99, max_scanned=99)).hits)


@pytest.mark.behaviour("SEM-35", "SEM-T07", "SEM-43")
async def test_chunks_are_bounded_and_a_refused_replacement_changes_nothing() -> None:
    index = InprocSemanticIndex(InprocCapacity(max_chunks=5))
    await index.register(PROFILE)
    await index.replace(await claim(index, "a"), PROFILE, source("a"), chunks(2))
    mine = await claim(index, "b")
    await index.replace(mine, PROFILE, source("b"), chunks(3))
    with pytest.raises(IndexBudget) as refused:
        await index.replace(mine, PROFILE, source("b", 2), chunks(4))
    assert refused.value.fields["reason"] == "chunks"
    assert await count(index) == 5
    await index.replace(mine, PROFILE, source("b", 2), chunks(3))


@pytest.mark.behaviour("SEM-35", "SEM-T07")
async def test_sources_are_bounded_and_tombstones_count() -> None:
    index = InprocSemanticIndex(InprocCapacity(max_sources=1))
    await index.register(PROFILE)
    await index.withdraw(await claim(index, "a"), PROFILE, source("a"))
    await claim(index, "a")
    with pytest.raises(IndexBudget) as refused:
        await claim(index, "b")
    assert refused.value.fields["reason"] == "sources"


@pytest.mark.behaviour("SEM-41", "SEM-42", "SEM-43", "SEM-44", "SEM-45", "SEM-T07")
async def test_identities_are_bounded_in_bytes_before_anything_changes() -> None:
    encoded = len('["n",{"id":"a","locator":"l","revision":"1"},1]')
    index = InprocSemanticIndex(InprocCapacity(max_source_bytes=2 * encoded + 3))
    await index.register(PROFILE)
    a, b = await claim(index, "a"), await claim(index, "b")
    await index.replace(a, PROFILE, source("a", locator="long"), chunks(1))
    await index.replace(b, PROFILE, source("b"), chunks(1))
    for change in (
        index.replace(b, PROFILE, source("b", 2, "ll"), chunks(2)),
        index.withdraw(b, PROFILE, source("b", 2, "ll")),
    ):
        with pytest.raises(IndexBudget) as refused:
            await change
        assert refused.value.fields["reason"] == "identity-bytes"
        assert await count(index) == 2
    await index.replace(a, PROFILE, source("a", 2), chunks(1))
    for _ in range(2):
        await index.withdraw(b, PROFILE, source("b", 2, "llll"))


@pytest.mark.behaviour("SEM-38", "SEM-39", "SEM-T08")
async def test_too_many_components_are_refused_before_anything_is_kept() -> None:
    wide = SemanticProfile("p", "m", "1", 4_096)
    await InprocSemanticIndex(InprocCapacity(max_chunks=4_096)).register(wide)
    index = InprocSemanticIndex(InprocCapacity(max_chunks=4_097))
    with pytest.raises(ConfigError):
        await index.register(wide)
    assert await index.progress() == []


@pytest.mark.behaviour("SEM-20", "SEM-T13")
async def test_a_method_captured_before_the_index_closed_fails_after() -> None:
    async with InprocSemanticIndex() as index:
        await index.register(PROFILE)
        search = index.search
    with pytest.raises(IndexUnavailable) as closed:
        await search(PROFILE, SPACE, (1.0, 0.0), limit=1, max_scanned=1)
    assert closed.value.fields["reason"] == "closed"


@pytest.mark.behaviour("SEM-54")
async def test_a_new_index_in_memory_is_empty_tombstones_too() -> None:
    first = InprocSemanticIndex()
    await first.register(PROFILE)
    await first.withdraw(await claim(first, "a"), PROFILE, source("a"))
    second = InprocSemanticIndex()
    await second.register(PROFILE)
    await second.replace(await claim(second, "a"), PROFILE, source("a"), chunks(1))
    assert await count(second) == 1
