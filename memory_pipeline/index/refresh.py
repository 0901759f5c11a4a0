"""One source's refresh: read it, embed its chunks, read it again, then swap them all at once (SEM-48 to 55)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from memory_pipeline.index.chunks import chunks_of
from memory_pipeline.index.limits import SemanticIndexLimits
from memory_pipeline.index.port import IndexedSource, IndexEntry, SemanticIndex, embedded
from memory_pipeline.store.documents import Document, MemoryKey
from memory_pipeline.store.port import MemoryReader
from shared.domain.errors import IndexUnavailable, MemoryCorrupt, ProcessingRefused, SourceChanged
from shared.domain.failpoints import Failpoints
from shared.jobs.queue import JobClaim
from shared.models.embeddings import Embedder, unit_vectors
from shared.models.types import Usage

RefreshStatus = Literal["replaced", "withdrawn", "missing", "retired", "unknown"]


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """What a refresh did. ``missing``: the source is not there; ``retired`` and ``unknown``: there was nothing to do."""

    status: RefreshStatus
    chunks: int = 0
    usage: Usage = field(default_factory=Usage)


async def refresh_source(
    claim: JobClaim,
    *,
    index: SemanticIndex,
    reader: MemoryReader,
    embedder: Embedder,
    limits: SemanticIndexLimits,
    failpoints: Failpoints,
) -> RefreshResult:
    """Bring what is indexed of a job's source up to the source as it is now; all or nothing.

    ``SourceChanged`` (try again) when it changed meanwhile, ``IndexUnavailable`` with reason ``timeout``, or ``profile``
    when the job is of a profile that this process has no embedder for. ``IndexBudget`` a source over the limits, before
    the embedder is called; ``EmbeddingInvalid`` vectors that do not fit; ``ProcessingRefused`` a source of unknown
    revision. ``FenceLost`` as from :meth:`SemanticIndex.replace`. What was indexed before stays in all of these.
    """
    try:
        async with asyncio.timeout(limits.timeout_s) as deadline:
            return await _refresh(claim, index, reader, embedder, limits, failpoints)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise IndexUnavailable("the refresh took too long", reason="timeout") from error


async def _refresh(
    claim: JobClaim,
    index: SemanticIndex,
    reader: MemoryReader,
    embedder: Embedder,
    limits: SemanticIndexLimits,
    failpoints: Failpoints,
) -> RefreshResult:
    entry = await index.load(claim.job_id)
    await failpoints.hit("index.claimed")
    if entry is None:
        return RefreshResult("unknown")
    if entry.withdrawn:
        return RefreshResult("withdrawn")
    if not entry.active:
        return RefreshResult("retired")
    if entry.profile.embedder != embedder.profile:
        raise IndexUnavailable("this process embeds for another profile", reason="profile")
    document = await _read(reader, entry.key)
    if document is None or document.content is None:
        return await _drop(claim, index, entry, document)
    text = document.content.text
    chunks = chunks_of(
        text, entry.profile, max_source_bytes=limits.max_source_bytes, max_chunks=limits.max_chunks
    )
    answer = await embedder.embed([chunk.text for chunk in chunks])
    vectors = unit_vectors(answer.vectors, count=len(chunks), profile=entry.profile.embedder)
    await failpoints.hit("index.embedded")
    again = await _read(reader, entry.key)
    await failpoints.hit("index.reread")
    if again is None or again.content is None:
        return await _drop(claim, index, entry, again)
    if _indexed(again) != _indexed(document) or again.content.text != text:
        raise SourceChanged("the source changed while it was being embedded", job=claim.job_id)
    await index.replace(claim, entry.profile, _indexed(document), embedded(chunks, vectors))
    await failpoints.hit("index.replaced")
    return RefreshResult("replaced", len(chunks), answer.usage)


async def _read(reader: MemoryReader, key: MemoryKey) -> Document | None:
    document = await reader.read(key)
    if document is not None and document.key != key:
        raise MemoryCorrupt("the store answered another document than asked for")
    if document is not None and document.source.revision is None:
        raise ProcessingRefused("a source of unknown revision is not indexed", reason="unknown-revision")
    return document


async def _drop(
    claim: JobClaim, index: SemanticIndex, entry: IndexEntry, document: Document | None
) -> RefreshResult:
    """Take a source out: for good when it was withdrawn; one that is missing may come back."""
    if document is None:
        await index.clear(claim, entry.profile, entry.key)
        return RefreshResult("missing")
    await index.withdraw(claim, entry.profile, _indexed(document))
    return RefreshResult("withdrawn")


def _indexed(document: Document) -> IndexedSource:
    return IndexedSource(document.key, document.source, document.generation)
