"""The semantic index in memory: exact cosine with numpy, bounded; the twin of the one on Postgres (SEM-16, 34 to 46).

It starts empty, tombstones too, and is rebuilt from the sources (SEM-54).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from memory_pipeline.index.limits import InprocCapacity
from memory_pipeline.index.port import (
    OWE_BATCH,
    EmbeddedChunk,
    Hit,
    IndexedSource,
    IndexEntry,
    IndexProgress,
    OweBatch,
    SearchResult,
    check_replacement,
    check_search,
    check_vector,
)
from memory_pipeline.index.profile import SemanticProfile
from memory_pipeline.store.documents import Document, MemoryKey, NamespaceAddress
from shared.domain.canonical import canonical_json
from shared.domain.errors import FenceLost, IndexBudget, IndexUnavailable
from shared.domain.ids import OwnerId
from shared.jobs.queue import JobClaim
from shared.leases.fence import Fence

#: What is stored: half precision, as on Postgres.
Vectors = NDArray[np.float16]

Documents = Callable[[], Iterable[tuple[Document, OwnerId]]]


@dataclass(slots=True)
class _Row:
    job_id: str
    profile: SemanticProfile
    key: MemoryKey
    owner: OwnerId
    indexed: IndexedSource | None = None
    withdrawn: bool = False
    chunks: Sequence[EmbeddedChunk] = ()
    vectors: Vectors = field(default_factory=lambda: np.zeros((0, 0), np.float16))
    status: str = "ready"
    again: bool = False
    epoch: int = 0
    fence: Fence | None = None


class InprocSemanticIndex:
    """Implements :class:`memory_pipeline.index.port.SemanticIndex`; a context manager, closed for good at its end.

    ``claim``, ``settle`` and ``park`` stand for the queue; ``documents`` for the store that ``owe_missing`` looks at.
    Changes raise ``IndexBudget`` with reason ``chunks`` or ``identity-bytes`` and leave all as it was; sources are bounded
    when they are owed (reason ``sources``), tombstones counted.
    """

    def __init__(self, capacity: InprocCapacity | None = None, *, documents: Documents = lambda: ()) -> None:
        self._capacity = capacity or InprocCapacity()
        self._documents = documents
        self._profiles: dict[str, tuple[SemanticProfile, bool]] = {}
        self._rows: dict[str, _Row] = {}
        self._by_source: dict[tuple[str, str, str], _Row] = {}
        self._jobs = itertools.count(1)
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True

    def claim(self, job_id: str) -> JobClaim:
        """Hand a job to a new holder; any earlier holder's fence is refused from now on."""
        row = self._rows[job_id]
        row.epoch += 1
        row.fence, row.status, row.again = Fence(row.epoch, uuid4()), "running", False
        return JobClaim("index", job_id, row.owner, row.fence, attempts=0, lost=False)

    def settle(self, claim: JobClaim) -> str:
        """Let go of a job that is done for now; return its status."""
        row = self._rows[claim.job_id]
        row.status, row.again, row.fence = "ready" if row.again else "idle", False, None
        return row.status

    def park(self, claim: JobClaim) -> None:
        """Let go of a job that is given up."""
        row = self._rows[claim.job_id]
        row.status, row.again, row.fence = "parked", False, None

    async def register(self, profile: SemanticProfile) -> Sequence[str]:
        """See the port. Raises ``ConfigError`` for more components than the capacity may have (SEM-38)."""
        self._require_open()
        self._capacity.check_components(profile.dimensions)
        self._profiles[profile.digest] = (profile, True)
        return sorted(d for d, (_, active) in self._profiles.items() if active and d != profile.digest)

    async def retire(self, profile_digest: str) -> bool:
        """See the port."""
        self._require_open()
        known = self._profiles.get(profile_digest)
        if known is None or not known[1]:
            return False
        self._profiles[profile_digest] = (known[0], False)
        return True

    async def owe(self, profile: SemanticProfile, key: MemoryKey, owner: OwnerId) -> str:
        """See the port. Raises ``IndexBudget`` with reason ``sources`` for one source too many."""
        self._require_open()
        address = (profile.digest, key.namespace, key.id)
        row = self._by_source.get(address)
        if row is None:
            if len(self._rows) == self._capacity.max_sources:
                raise _full("sources", self._capacity.max_sources)
            row = _Row(f"job-{next(self._jobs)}", profile, key, owner)
            self._rows[row.job_id] = self._by_source[address] = row
        row.again = row.again or row.status == "running"
        row.status = "ready" if row.status == "idle" else row.status
        return row.job_id

    async def owe_missing(
        self, profile: SemanticProfile, *, after: MemoryKey | None = None, limit: int = OWE_BATCH
    ) -> OweBatch:
        """See the port."""
        self._require_open()
        documents = sorted(self._documents(), key=lambda one: _place(one[0].key))
        if after is not None:
            documents = [one for one in documents if _place(one[0].key) > _place(after)]
        looked_at, owed = documents[:limit], 0
        for document, owner in looked_at:
            row = self._by_source.get((profile.digest, document.key.namespace, document.key.id))
            if _lacks(row, document):
                await self.owe(profile, document.key, owner)
                owed += 1
        return OweBatch(owed, None if len(looked_at) < limit else looked_at[-1][0].key)

    async def load(self, job_id: str) -> IndexEntry | None:
        """See the port."""
        self._require_open()
        row = self._rows.get(job_id)
        if row is None:
            return None
        active = self._profiles.get(row.profile.digest, (row.profile, False))[1]
        return IndexEntry(
            job_id, row.profile, active, row.key, row.owner, row.indexed, row.withdrawn, len(row.chunks)
        )

    async def replace(
        self,
        claim: JobClaim,
        profile: SemanticProfile,
        source: IndexedSource,
        chunks: Sequence[EmbeddedChunk],
    ) -> None:
        """See the port."""
        vectors = check_replacement(profile, source, chunks)
        self._require_open()
        row = self._held(claim, profile, source.key, source.generation)
        if row.withdrawn:
            raise _fenced(claim, "withdrawn")
        if row.indexed and row.indexed.generation == source.generation and row.indexed != source:
            raise _fenced(claim, "identity")
        self._require_room(row, source, len(chunks))
        # All four together, without an await between: nobody sees a mixture.
        row.indexed, row.chunks = source, tuple(chunks)
        row.vectors = np.array(vectors, dtype=np.float16)

    async def withdraw(self, claim: JobClaim, profile: SemanticProfile, source: IndexedSource) -> None:
        """See the port."""
        self._require_open()
        row = self._held(claim, profile, source.key, source.generation)
        if row.withdrawn:
            return
        self._require_room(row, source, 0)
        row.indexed, row.withdrawn = source, True
        self._empty(row)

    async def clear(self, claim: JobClaim, profile: SemanticProfile, key: MemoryKey) -> None:
        """See the port."""
        self._require_open()
        row = self._held(claim, profile, key, None)
        if not row.withdrawn:
            row.indexed = None
            self._empty(row)

    async def search(
        self,
        profile: SemanticProfile,
        namespace: NamespaceAddress,
        vector: Sequence[float],
        *,
        limit: int,
        max_scanned: int,
    ) -> SearchResult:
        """See the port."""
        check_search(limit, max_scanned)
        query = np.array(check_vector(vector, profile), dtype=np.float16)
        self._require_open()
        rows = [
            row
            for row in self._rows.values()
            if row.chunks and row.profile.digest == profile.digest and row.key.namespace == namespace
        ]
        scanned = sum(len(row.chunks) for row in rows)
        if scanned > max_scanned:
            raise _full("scanned-chunks", max_scanned)
        if not rows:
            return SearchResult([], 0)
        scores = _cosines(np.concatenate([row.vectors for row in rows]), query)
        pairs = [(row.indexed, one.chunk) for row in rows if row.indexed for one in row.chunks]
        hits = [
            Hit(indexed.source, indexed.generation, chunk, score)
            for (indexed, chunk), score in zip(pairs, scores, strict=True)
        ]
        hits.sort(key=lambda h: (-h.score, h.source.id, h.source.revision or "", h.chunk.ordinal))
        return SearchResult(hits[:limit], scanned)

    async def progress(self, owner: OwnerId | None = None) -> Sequence[IndexProgress]:
        """See the port."""
        self._require_open()
        return [
            self._progress_of(digest, active, owner)
            for digest, (_, active) in sorted(
                self._profiles.items(), key=lambda item: (not item[1][1], item[0])
            )
        ]

    def _progress_of(self, digest: str, active: bool, owner: OwnerId | None) -> IndexProgress:
        rows = [
            row for row in self._rows.values() if row.profile.digest == digest and owner in (None, row.owner)
        ]
        return IndexProgress(
            profile=digest,
            active=active,
            sources=len(rows),
            ready=sum(r.status == "idle" and r.indexed is not None and not r.withdrawn for r in rows),
            owed=sum(r.status in ("ready", "running") for r in rows),
            parked=sum(r.status == "parked" for r in rows),
            withdrawn=sum(r.withdrawn for r in rows),
            chunks=sum(len(r.chunks) for r in rows),
        )

    def _require_open(self) -> None:
        if self._closed:
            raise IndexUnavailable("the index was closed", reason="closed")

    def _held(
        self, claim: JobClaim, profile: SemanticProfile, key: MemoryKey, generation: int | None
    ) -> _Row:
        """Return the entry that this claim may change to this generation; raise ``FenceLost`` with why not."""
        row = self._rows.get(claim.job_id)
        if row is None or row.fence != claim.fence:
            raise _fenced(claim, "lost")
        if row.profile.digest != profile.digest:
            raise _fenced(claim, "profile")
        if row.key != key:
            raise _fenced(claim, "source")
        if row.indexed is not None and generation is not None and row.indexed.generation > generation:
            raise _fenced(claim, "older")
        return row

    def _require_room(self, row: _Row, source: IndexedSource, chunks: int) -> None:
        """Raise ``IndexBudget`` unless this fits in place of what the source has now."""
        others = [other for other in self._rows.values() if other is not row]
        if sum(len(other.chunks) for other in others) + chunks > self._capacity.max_chunks:
            raise _full("chunks", self._capacity.max_chunks)
        kept = sum(_identity_bytes(other.indexed) for other in others if other.indexed is not None)
        if kept + _identity_bytes(source) > self._capacity.max_source_bytes:
            raise _full("identity-bytes", self._capacity.max_source_bytes)

    @staticmethod
    def _empty(row: _Row) -> None:
        row.chunks, row.vectors = (), np.zeros((0, 0), np.float16)


def _place(key: MemoryKey) -> tuple[str, str]:
    return key.namespace, key.id


def _lacks(row: _Row | None, document: Document) -> bool:
    """Whether a document is to be owed: it is not indexed as it is now, and nobody owes or gave it up."""
    if row is None:
        return not document.withdrawn
    if row.withdrawn or row.status != "idle":
        return False
    return document.withdrawn or row.indexed is None or row.indexed.generation != document.generation


def _cosines(vectors: Vectors, query: Vectors) -> list[float]:
    """Return the cosine of each row with the query, in single precision as on Postgres; never outside -1 to 1."""
    rows, one = vectors.astype(np.float32), query.astype(np.float32)
    norms = np.sqrt((rows * rows).sum(axis=1, dtype=np.float64) * float(np.dot(one, one)))
    # Row by row, not as one product: that would round equal rows differently by their place.
    scores = (rows * one).sum(axis=1, dtype=np.float64) / norms
    return [float(score) + 0.0 for score in np.clip(scores, -1.0, 1.0)]


def _identity_bytes(source: IndexedSource) -> int:
    identity = [source.key.namespace, source.source.model_dump(mode="json"), source.generation]
    return len(canonical_json(identity).encode())


def _fenced(claim: JobClaim, reason: str) -> FenceLost:
    return FenceLost("the index entry may not be changed", job=claim.job_id, reason=reason)


def _full(reason: str, bound: int) -> IndexBudget:
    return IndexBudget(f"the index takes at most {bound}", reason=reason, bound=bound)
