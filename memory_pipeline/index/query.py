"""Queries by meaning: the index's candidates, and those of them that still stand in their sources (SEM-15, 56 to 73)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from memory_pipeline.index.limits import SemanticQueryLimits
from memory_pipeline.index.port import Hit, SearchResult, SemanticIndex
from memory_pipeline.index.profile import SemanticProfile
from memory_pipeline.store.documents import (
    Attribution,
    Content,
    Document,
    MemoryKey,
    NamespaceAddress,
    Passage,
    encode,
)
from memory_pipeline.store.port import MemoryReader
from shared.domain.errors import (
    EmbeddingInvalid,
    IndexBudget,
    IndexUnavailable,
    InvalidInput,
    ModelAuthFailed,
    ModelRefused,
    RecallFailed,
)
from shared.models.embeddings import Embedder, unit_vectors
from shared.models.types import Usage

#: Stands where an attribution has to stand in a candidate; nothing of it survives revalidation.
_UNATTRIBUTED = "candidate of the semantic index, not revalidated"


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """What a query may read: one namespace, and in it what this scope may recall."""

    namespace: NamespaceAddress
    scope: str


@dataclass(frozen=True, slots=True)
class SemanticQueryResult:
    """Passages in the index's order, and what became of its other candidates; no claim of completeness (SEM-71 to 73)."""

    passages: tuple[Passage, ...]
    scanned_chunks: int
    stale_excluded: int
    unauthorized_excluded: int
    usage: Usage = field(default_factory=Usage)


async def semantic_candidates(
    index: SemanticIndex,
    profile: SemanticProfile,
    embedder: Embedder,
    namespace: NamespaceAddress,
    query: str,
    limits: SemanticQueryLimits,
) -> Sequence[Passage]:
    """Find chunks near a text in meaning, best first; none for a blank text. For a recall source.

    What is returned has to be revalidated before it is shown. Its one attribution and its time of recording are
    placeholders that say so: the index holds no attribution (SEM-47), and revalidation takes both from the document, as
    it takes the text when the revision is no longer current. Raises members of the ``Unavailable`` family only:
    ``RecallFailed`` with reason ``budget`` (query or namespace too large), ``IndexUnavailable`` with reason ``timeout``
    or the embedder's code, and what the index raises. No error holds query or source text.
    """
    async with _recall_errors(limits):
        found, _ = await _search(index, profile, embedder, namespace, query, limits)
        return [_candidate(hit, namespace) for hit in found.hits]


async def query_semantic_memory(
    index: SemanticIndex,
    profile: SemanticProfile,
    embedder: Embedder,
    reader: MemoryReader,
    access: MemoryAccess,
    query: str,
    limits: SemanticQueryLimits,
) -> SemanticQueryResult:
    """Find chunks near a text in meaning and give those that stand in their sources now, each source read once.

    A candidate of another generation, revision, locator or text is dropped: corrected text never inherits its score
    (SEM-58). One whose source is missing, withdrawn or out of scope is dropped too. Errors as for
    :func:`semantic_candidates`, and ``RecallFailed`` with reason ``budget`` when the documents or the passages are larger
    than their bounds; nothing partial is given then.
    """
    async with _recall_errors(limits):
        found, usage = await _search(index, profile, embedder, access.namespace, query, limits)
        ids = list(dict.fromkeys(hit.source.id for hit in found.hits))
        documents = await reader.read_many([MemoryKey(namespace=access.namespace, id=i) for i in ids])
        sources = dict(zip(ids, documents, strict=True))
        checked = _Checking(access, limits)
        for hit in found.hits:
            checked.consider(hit, sources[hit.source.id])
        return checked.result(found.scanned_chunks, usage)


async def _search(
    index: SemanticIndex,
    profile: SemanticProfile,
    embedder: Embedder,
    namespace: NamespaceAddress,
    query: str,
    limits: SemanticQueryLimits,
) -> tuple[SearchResult, Usage]:
    """Return the hits at or above the least score, with the embedder's usage."""
    if profile.embedder != embedder.profile:
        raise IndexUnavailable("the embedder is not this index's", reason="profile")
    if not query.strip():
        return SearchResult([], 0), Usage()
    if len(query.encode()) > limits.max_query_bytes:
        raise IndexBudget(
            f"the query is larger than {limits.max_query_bytes} bytes",
            reason="query-bytes",
            bound=limits.max_query_bytes,
        )
    answer = await embedder.embed([query])
    [vector] = unit_vectors(answer.vectors, count=1, profile=profile.embedder)
    found = await index.search(
        profile, namespace, vector, limit=limits.max_candidates, max_scanned=limits.max_scanned_chunks
    )
    near = [hit for hit in found.hits if hit.score >= limits.min_score]
    return SearchResult(near, found.scanned_chunks), answer.usage


@asynccontextmanager
async def _recall_errors(limits: SemanticQueryLimits) -> AsyncIterator[None]:
    """Bound the time, and say what refuses a query in the words of recall, whose caller may go on without it."""
    try:
        async with asyncio.timeout(limits.timeout_s) as deadline:
            yield
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise IndexUnavailable("the query took too long", reason="timeout") from error
    except IndexBudget as error:
        raise RecallFailed(error.message, reason="budget", limit=error.fields["reason"]) from error
    except (InvalidInput, EmbeddingInvalid, ModelRefused, ModelAuthFailed) as error:
        raise IndexUnavailable("the query cannot be embedded", reason=error.code) from error


def _candidate(hit: Hit, namespace: NamespaceAddress) -> Passage:
    placeholder = Attribution(
        origin_id=hit.chunk.passage_id,
        speaker="unknown",
        locator=hit.source.locator,
        interpretation=_UNATTRIBUTED,
    )
    return Passage(
        authority=namespace,
        source=hit.source,
        passage_id=hit.chunk.passage_id,
        content=Content(text=hit.chunk.text, attributions=(placeholder,), recorded_at=0),
    )


@dataclass(slots=True)
class _Checking:
    """The candidates of one query against their sources, in the index's order."""

    access: MemoryAccess
    limits: SemanticQueryLimits
    passages: list[Passage] = field(default_factory=list)
    counted: set[str] = field(default_factory=set)
    source_bytes: int = 0
    output_bytes: int = 0
    stale: int = 0
    unauthorized: int = 0

    def consider(self, hit: Hit, document: Document | None) -> None:
        if document is None or document.content is None or self.access.scope not in document.scopes:
            self.unauthorized += 1
            return
        if document.key != MemoryKey(namespace=self.access.namespace, id=hit.source.id):
            self.unauthorized += 1
            return
        if (document.source, document.generation) != (hit.source, hit.generation):
            self.stale += 1
            return
        self._count_source(document)
        text = document.content.text.encode()[hit.chunk.start_byte : hit.chunk.end_byte]
        if text != hit.chunk.text.encode():
            self.stale += 1
            return
        self._keep(
            Passage(
                authority=self.access.namespace,
                source=document.source,
                passage_id=hit.chunk.passage_id,
                content=document.content.model_copy(update={"text": hit.chunk.text}),
            )
        )

    def _count_source(self, document: Document) -> None:
        if document.key.id in self.counted:
            return
        self.counted.add(document.key.id)
        self.source_bytes += len(encode(document).encode())
        if self.source_bytes > self.limits.max_source_bytes:
            raise RecallFailed("the documents are larger than their bound", reason="budget")

    def _keep(self, passage: Passage) -> None:
        self.output_bytes += len(encode(passage).encode())
        if self.output_bytes > self.limits.max_output_bytes:
            raise RecallFailed("the passages are larger than their bound", reason="budget")
        self.passages.append(passage)

    def result(self, scanned: int, usage: Usage) -> SemanticQueryResult:
        return SemanticQueryResult(tuple(self.passages), scanned, self.stale, self.unauthorized, usage)
