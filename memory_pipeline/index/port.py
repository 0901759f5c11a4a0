"""The port of the semantic index: what it holds of each source under each profile, and its exact search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from memory_pipeline.index.chunks import Chunk, check_chunks
from memory_pipeline.index.profile import SemanticProfile
from memory_pipeline.store.documents import MemoryKey, NamespaceAddress, SourceReference
from shared.domain.errors import EmbeddingInvalid, InvalidInput
from shared.domain.ids import OwnerId
from shared.jobs.queue import JobClaim
from shared.models.embeddings import unit_vectors

#: Documents that one call of ``owe_missing`` looks at.
OWE_BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class IndexedSource:
    """A document as an index stands for it: which one, and its revision, locator and generation then."""

    key: MemoryKey
    source: SourceReference
    generation: int


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What is indexed of one source under one profile. ``indexed`` is None until a refresh succeeded.

    ``active``: the profile is still being built. ``withdrawn`` is final.
    """

    job_id: str
    profile: SemanticProfile
    active: bool
    key: MemoryKey
    owner: OwnerId
    indexed: IndexedSource | None
    withdrawn: bool
    chunks: int


@dataclass(frozen=True, slots=True)
class EmbeddedChunk:
    """A chunk and its vector, which is in no ``repr``."""

    chunk: Chunk
    vector: Sequence[float] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that a search found; ``score`` is the cosine, -1 to 1."""

    source: SourceReference
    generation: int
    chunk: Chunk
    score: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Hits in order, and how many chunks of the namespace were compared."""

    hits: Sequence[Hit]
    scanned_chunks: int


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """How far a profile is: sources that it knows, those ready, owed and given up, and what was withdrawn.

    A source that is owed again counts as owed, although its former chunks are still found.
    """

    profile: str
    active: bool
    sources: int
    ready: int
    owed: int
    parked: int
    withdrawn: int
    chunks: int


@dataclass(frozen=True, slots=True)
class OweBatch:
    """How many sources a call owed, and where the next call goes on; None when every document was looked at."""

    owed: int
    next_after: MemoryKey | None


class SemanticIndex(Protocol):
    """Holds the chunks of sources with their vectors; never authoritative, and candidates only (SEM-47, 72).

    All may raise ``IndexUnavailable`` (with reason ``pgvector-missing`` or ``closed``), ``StoreBusy`` (nothing stored)
    and ``StoreUnavailable`` (a write's outcome is unknown). Profiles never mix: every operation names one (SEM-05).

    **Fencing.** ``replace``, ``withdraw`` and ``clear`` need the claim of the source's job, judged in the same
    transaction; ``FenceLost`` otherwise, with reason ``lost``, and nothing is changed.
    """

    async def register(self, profile: SemanticProfile) -> Sequence[str]:
        """Make a profile active: from now on every write of a document owes it a refresh. Idempotent.

        Returns the digests of other active profiles: theirs stay owed until the host retires them (SEM-07). Documents
        written before are owed by :meth:`owe_missing`, which misses none when called after this.
        """
        ...

    async def retire(self, profile_digest: str) -> bool:
        """Stop owing a profile; its chunks stay and are found by who still asks with it. False: it was not active."""
        ...

    async def owe(self, profile: SemanticProfile, key: MemoryKey, owner: OwnerId) -> str:
        """Owe one source's refresh and return its job; for sources that no store of ours writes (SEM-10)."""
        ...

    async def owe_missing(
        self, profile: SemanticProfile, *, after: MemoryKey | None = None, limit: int = OWE_BATCH
    ) -> OweBatch:
        """Owe what the profile lacks among the next ``limit`` documents of the store.

        That is: active documents not indexed at their generation, and withdrawn ones still indexed, unless they are owed
        or parked already. Documents go by namespace and id; the caller repeats until ``next_after`` is None.
        """
        ...

    async def load(self, job_id: str) -> IndexEntry | None:
        """Read what is indexed of a job's source; None for an unknown job."""
        ...

    async def replace(
        self,
        claim: JobClaim,
        profile: SemanticProfile,
        source: IndexedSource,
        chunks: Sequence[EmbeddedChunk],
    ) -> None:
        """Swap all of a source's chunks, atomically. The same generation and identity again is idempotent (SEM-49, 51).

        ``FenceLost`` also with reason ``profile`` or ``source`` (the job is another one's), ``older`` (a newer
        generation is indexed), ``identity`` (this generation with another revision or locator is) or ``withdrawn``.
        ``InvalidInput`` for chunks that are not one source's; ``EmbeddingInvalid`` for vectors that do not fit.
        """
        ...

    async def withdraw(self, claim: JobClaim, profile: SemanticProfile, source: IndexedSource) -> None:
        """Drop a source's chunks for good: a tombstone refuses every later replacement (SEM-52). Idempotent.

        ``FenceLost`` as for :meth:`replace`, but never with reason ``identity`` or ``withdrawn``.
        """
        ...

    async def clear(self, claim: JobClaim, profile: SemanticProfile, key: MemoryKey) -> None:
        """Drop a source's chunks because it is not there now; it may come back. A tombstone stays."""
        ...

    async def search(
        self,
        profile: SemanticProfile,
        namespace: NamespaceAddress,
        vector: Sequence[float],
        *,
        limit: int,
        max_scanned: int,
    ) -> SearchResult:
        """Compare every chunk of the namespace; best first, ties by source id, revision, ordinal in code point order.

        Raises ``IndexBudget`` (reason ``scanned-chunks``) when the namespace has more chunks: no part of them is ranked
        (SEM-36). ``EmbeddingInvalid`` for a vector that does not fit.
        """
        ...

    async def progress(self, owner: OwnerId | None = None) -> Sequence[IndexProgress]:
        """Count by profile, of all owners or of one; active profiles first, then by digest."""
        ...


def check_vector(vector: Sequence[float], profile: SemanticProfile) -> list[float]:
    """Return a vector at length 1; raise ``EmbeddingInvalid`` unless it fits the profile (SEM-32)."""
    [checked] = unit_vectors([list(vector)], count=1, profile=profile.embedder)
    return checked


def check_replacement(
    profile: SemanticProfile, source: IndexedSource, chunks: Sequence[EmbeddedChunk]
) -> list[list[float]]:
    """Return the chunks' vectors at length 1, after every check that needs no stored state."""
    if source.source.revision is None:
        raise InvalidInput("a source of unknown revision is not indexed", field="revision", bound="known")
    if source.source.id != source.key.id:
        raise InvalidInput("the reference is another source's", field="source", bound="the key's id")
    check_chunks([one.chunk for one in chunks], profile)
    return [check_vector(one.vector, profile) for one in chunks]


def check_search(limit: int, max_scanned: int) -> None:
    """Raise ``InvalidInput`` unless both bounds of a search are at least 1."""
    for name, value in (("limit", limit), ("max_scanned", max_scanned)):
        if value < 1:
            raise InvalidInput(f"{name} must be at least 1", field=name, bound=">= 1")


def embedded(chunks: Sequence[Chunk], vectors: Sequence[Sequence[float]]) -> Sequence[EmbeddedChunk]:
    """Pair chunks with their vectors; raise ``EmbeddingInvalid`` unless there is one for each."""
    if len(chunks) != len(vectors):
        raise EmbeddingInvalid(f"{len(chunks)} chunks got {len(vectors)} vectors", reason="count")
    return [EmbeddedChunk(chunk, vector) for chunk, vector in zip(chunks, vectors, strict=True)]
