"""A store, an index and an embedder around one source, for tests of refreshes and queries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from memory_pipeline.index.inproc import InprocSemanticIndex
from memory_pipeline.index.limits import SemanticIndexLimits
from memory_pipeline.index.port import SemanticIndex
from memory_pipeline.index.profile import Chunker, SemanticProfile
from memory_pipeline.index.refresh import RefreshResult, refresh_source
from memory_pipeline.namespaces.address import MemoryNamespace
from memory_pipeline.namespaces.owners import OwnerIdentity
from memory_pipeline.store.documents import Attribution, Content, Document, MemoryKey, Put, Withdraw
from memory_pipeline.store.inproc import InprocMemoryStore
from memory_pipeline.store.port import MemoryReader, MemoryStore
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId
from shared.jobs.queue import JobClaim
from shared.models.embeddings import Embedder
from shared.models.scripted import ScriptedEmbedder

ANN = OwnerId("ann")
SPACES = MemoryNamespace.define("tests", 1, OwnerIdentity)
SPACE = SPACES.make(owner=ANN).address
SCOPE = "private"


class CountingReader:
    """A reader that counts, and lets a test act before its n-th read (from 1)."""

    def __init__(self, reader: MemoryReader, before: dict[int, Callable[[], Awaitable[object]]]) -> None:
        self._reader = reader
        self._before = before
        self.reads = 0

    async def read(self, key: MemoryKey) -> Document | None:
        """Count, act, then read."""
        self.reads += 1
        if (act := self._before.get(self.reads)) is not None:
            await act()
        return await self._reader.read(key)

    async def read_many(self, keys: Sequence[MemoryKey]) -> Sequence[Document | None]:
        """Count the keys, then read."""
        self.reads += len(keys)
        return await self._reader.read_many(keys)


@dataclass(slots=True)
class IndexWorld:
    """One owner's documents and what is indexed of them."""

    store: MemoryStore = field(default_factory=InprocMemoryStore)
    index: SemanticIndex = field(default_factory=InprocSemanticIndex)
    embedder: Embedder = field(default_factory=ScriptedEmbedder)
    limits: SemanticIndexLimits = field(default_factory=SemanticIndexLimits)
    chunker: Chunker = "utf8-line@1"

    @property
    def profile(self) -> SemanticProfile:
        """The profile of the embedder's vectors."""
        return SemanticProfile.of(self.embedder.profile, chunker=self.chunker)

    async def put(self, text: str, id_: str = "a", *, scopes: tuple[str, ...] = (SCOPE,)) -> Document:
        """Write a document, whatever its revision is."""
        key = MemoryKey(namespace=SPACE, id=id_)
        before = await self.store.read(key)
        said = Attribution(origin_id="s:1", speaker="user", locator="session/s", interpretation=text[:99])
        put = Put(
            key=key,
            operation_id=uuid4().hex,
            expected_revision=before and before.source.revision,
            locator=f"memory/{id_}",
            content=Content(text=text, attributions=(said,), recorded_at=5),
            scopes=scopes,
        )
        return await self.store.write(put, owner=ANN)

    async def withdraw(self, id_: str = "a") -> Document:
        """Withdraw a document."""
        key = MemoryKey(namespace=SPACE, id=id_)
        before = await self.store.read(key)
        assert before is not None
        command = Withdraw(
            key=key, operation_id=uuid4().hex, expected_revision=before.source.revision, reason="asked"
        )
        return await self.store.write(command, owner=ANN)

    async def job(self, id_: str = "a") -> str:
        """Register the profile and owe a document; return its job."""
        await self.index.register(self.profile)
        return await self.index.owe(self.profile, MemoryKey(namespace=SPACE, id=id_), ANN)

    async def refresh(
        self, claim: JobClaim, *, reader: MemoryReader | None = None, failpoints: Failpoints | None = None
    ) -> RefreshResult:
        """Run one pass."""
        return await refresh_source(
            claim,
            index=self.index,
            reader=reader or self.store,
            embedder=self.embedder,
            limits=self.limits,
            failpoints=failpoints or Failpoints(),
        )

    async def texts(self, query: str) -> list[str]:
        """Return the chunks that the index has for a query, whatever their score, best first."""
        answer = await self.embedder.embed([query])
        found = await self.index.search(self.profile, SPACE, answer.vectors[0], limit=128, max_scanned=1_000)
        return [hit.chunk.text for hit in found.hits]
