"""The semantic index on Postgres with pgvector: durable rows and tombstones, one statement an operation (decisions 28, 32)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memory_pipeline.index.chunks import Chunk
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
from memory_pipeline.index.profile import SemanticProfile, decode_profile
from memory_pipeline.store.documents import MemoryKey, NamespaceAddress, SourceReference
from shared.database.pool import Database, Row
from shared.database.statements import load_statements
from shared.domain.errors import FenceLost, IndexBudget, IndexUnavailable
from shared.domain.ids import OwnerId
from shared.jobs.queue import JobClaim

_SQL = load_statements(Path(__file__).with_name("queries.sql"))

PGVECTOR_MISSING = "pgvector-missing"


class PostgresSemanticIndex:
    """Implements :class:`memory_pipeline.index.port.SemanticIndex`; the first operation of a process asks for pgvector."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._available = False

    async def register(self, profile: SemanticProfile) -> Sequence[str]:
        """See the port."""
        await self._require()
        params = {"profile": profile.digest, "description": profile.encoding}
        rows = await self._db.call("index.register", _SQL["register"], params, repeatable=True)
        return [row["other"] for row in rows]

    async def retire(self, profile_digest: str) -> bool:
        """See the port."""
        await self._require()
        return bool(await self._db.call("index.retire", _SQL["retire"], {"profile": profile_digest}))

    async def owe(self, profile: SemanticProfile, key: MemoryKey, owner: OwnerId) -> str:
        """See the port."""
        await self._require()
        params = {"profile": profile.digest, "namespace": key.namespace, "id": key.id, "owner": owner}
        [row] = await self._db.call("index.owe", _SQL["owe"], params, repeatable=True)
        job_id: str = row["job_id"]
        return job_id

    async def owe_missing(
        self, profile: SemanticProfile, *, after: MemoryKey | None = None, limit: int = OWE_BATCH
    ) -> OweBatch:
        """See the port."""
        await self._require()
        params = {
            "profile": profile.digest,
            "namespace": None if after is None else after.namespace,
            "id": None if after is None else after.id,
            "limit": limit,
        }
        [row] = await self._db.call("index.owe-missing", _SQL["owe_missing"], params, repeatable=True)
        if row["next_id"] is None:
            return OweBatch(row["owed"], None)
        return OweBatch(row["owed"], MemoryKey(namespace=row["next_namespace"], id=row["next_id"]))

    async def load(self, job_id: str) -> IndexEntry | None:
        """See the port."""
        await self._require()
        rows = await self._db.read("index.load", _SQL["load"], {"job": job_id})
        return _entry_of(job_id, rows[0]) if rows else None

    async def replace(
        self,
        claim: JobClaim,
        profile: SemanticProfile,
        source: IndexedSource,
        chunks: Sequence[EmbeddedChunk],
    ) -> None:
        """See the port. Not repeated by itself: after a lost answer the next claim does all of it again."""
        vectors = check_replacement(profile, source, chunks)
        await self._require()
        params = _change(claim, profile, source.key, source) | {
            "passages": [one.chunk.passage_id for one in chunks],
            "starts": [one.chunk.start_byte for one in chunks],
            "ends": [one.chunk.end_byte for one in chunks],
            "texts": [one.chunk.text for one in chunks],
            "vectors": [_vector_text(vector) for vector in vectors],
        }
        _require_done(await self._db.call("index.replace", _SQL["replace"], params), claim)

    async def withdraw(self, claim: JobClaim, profile: SemanticProfile, source: IndexedSource) -> None:
        """See the port."""
        await self._require()
        params = _change(claim, profile, source.key, source)
        _require_done(await self._db.call("index.withdraw", _SQL["drop"], params), claim)

    async def clear(self, claim: JobClaim, profile: SemanticProfile, key: MemoryKey) -> None:
        """See the port."""
        await self._require()
        params = _change(claim, profile, key, None)
        _require_done(await self._db.call("index.clear", _SQL["drop"], params), claim)

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
        checked = check_vector(vector, profile)
        await self._require()
        params = {
            "profile": profile.digest,
            "namespace": namespace,
            "vector": _vector_text(checked),
            "limit": limit,
            "max_scanned": max_scanned,
        }
        rows = await self._db.read("index.search", _SQL["search"], params)
        if rows and rows[0]["scanned"] > max_scanned:
            raise IndexBudget(
                f"the namespace has more than {max_scanned} chunks",
                reason="scanned-chunks",
                bound=max_scanned,
            )
        return SearchResult([_hit_of(row) for row in rows], rows[0]["scanned"] if rows else 0)

    async def progress(self, owner: OwnerId | None = None) -> Sequence[IndexProgress]:
        """See the port."""
        await self._require()
        rows = await self._db.read("index.progress", _SQL["progress"], {"owner": owner})
        return [IndexProgress(**row) for row in rows]

    async def _require(self) -> None:
        """Ask once whether the schema was made with pgvector; a no is asked again each time."""
        if not self._available:
            [row] = await self._db.read("index.available", _SQL["available"], {})
            self._available = row["available"]
        if not self._available:
            raise IndexUnavailable("the database has no pgvector", reason=PGVECTOR_MISSING)


def _change(
    claim: JobClaim, profile: SemanticProfile, key: MemoryKey, source: IndexedSource | None
) -> dict[str, Any]:
    """Return the parameters that every change of an entry has; ``source`` None is a source that is not there."""
    return {
        "job": claim.job_id,
        "epoch": claim.fence.epoch,
        "token": claim.fence.token,
        "profile": profile.digest,
        "namespace": key.namespace,
        "id": key.id,
        "generation": None if source is None else source.generation,
        "revision": None if source is None else source.source.revision,
        "locator": None if source is None else source.source.locator,
    }


def _require_done(rows: Sequence[Row], claim: JobClaim) -> None:
    answer = rows[0]["answer"]
    if answer != "done":
        raise FenceLost("the index entry may not be changed", job=claim.job_id, reason=answer)


def _vector_text(vector: Sequence[float]) -> str:
    return f"[{','.join(f'{number:.8g}' for number in vector)}]"


def _entry_of(job_id: str, row: Row) -> IndexEntry:
    key = MemoryKey(namespace=row["namespace"], id=row["id"])
    indexed = None
    if row["generation"] is not None:
        reference = SourceReference(id=row["id"], locator=row["locator"], revision=row["revision"])
        indexed = IndexedSource(key, reference, row["generation"])
    return IndexEntry(
        job_id=job_id,
        profile=decode_profile(row["description"]),
        active=row["active"],
        key=key,
        owner=OwnerId(row["owner"]),
        indexed=indexed,
        withdrawn=row["withdrawn"],
        chunks=row["chunks"],
    )


def _hit_of(row: Row) -> Hit:
    chunk = Chunk(row["passage_id"], row["ordinal"], row["start_byte"], row["end_byte"], row["chunk"])
    reference = SourceReference(id=row["source_id"], locator=row["locator"], revision=row["revision"])
    # Adding zero makes -0.0 the one zero.
    score = min(1.0, max(-1.0, row["score"])) + 0.0
    return Hit(reference, row["generation"], chunk, score)
