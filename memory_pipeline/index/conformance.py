"""The kit of the semantic index: what any adapter of :class:`memory_pipeline.index.port.SemanticIndex` must show."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol
from uuid import uuid4

from memory_pipeline.index.chunks import Chunk, passage_id
from memory_pipeline.index.port import EmbeddedChunk, Hit, IndexedSource, IndexProgress, SemanticIndex
from memory_pipeline.index.profile import SemanticProfile
from memory_pipeline.store.documents import (
    Attribution,
    Content,
    MemoryKey,
    NamespaceAddress,
    Put,
    SourceReference,
    Withdraw,
)
from memory_pipeline.store.port import MemoryWriter
from shared.conformance.check import ConformanceCheck, check, checks_of, refused, require, same
from shared.domain.errors import EmbeddingInvalid, FenceLost, IndexBudget, InvalidInput
from shared.domain.ids import OwnerId
from shared.jobs.queue import JobClaim

#: Vectors of three components that are easy to order: the nearer to the first axis, the better a match for it.
AXIS: Final = (1.0, 0.0, 0.0)
NEAR: Final = (0.9, 0.1, 0.0)
FAR: Final = (0.1, 0.9, 0.0)

Part = tuple[str, Sequence[float]]


class SemanticIndexSubject(Protocol):
    """An adapter under test, with the queue of its jobs and the store that it looks at."""

    async def open(self) -> SemanticIndex:
        """Return a new handle over the same data; the subject closes it in the end."""
        ...

    async def writer(self) -> MemoryWriter:
        """Return the store whose documents ``owe_missing`` looks at."""
        ...

    async def claim(self, job_id: str) -> JobClaim:
        """Hand a job to a new holder, whoever holds it now."""
        ...

    async def settle(self, claim: JobClaim) -> None:
        """Let go of a job that is done for now."""
        ...


def semantic_index_conformance(subject: SemanticIndexSubject) -> Sequence[ConformanceCheck]:
    """Return the checks of the semantic index for this subject. Each uses profiles, namespaces and owners of its own."""
    return [each.on(subject) for each in CHECKS]


@dataclass(slots=True)
class Stage:
    """One check's profile, namespace and owner, and short ways to fill the index."""

    subject: SemanticIndexSubject
    index: SemanticIndex
    profile: SemanticProfile
    namespace: NamespaceAddress
    owner: OwnerId

    @classmethod
    async def of(cls, subject: SemanticIndexSubject) -> Stage:
        index, name = await subject.open(), uuid4().hex
        profile = SemanticProfile("kit", name, "1", 3)
        await index.register(profile)
        return cls(subject, index, profile, NamespaceAddress(f"kit {name}"), OwnerId(name))

    def beside(
        self,
        *,
        profile: SemanticProfile | None = None,
        namespace: NamespaceAddress | None = None,
        owner: OwnerId | None = None,
    ) -> Stage:
        return replace(
            self,
            profile=profile or self.profile,
            namespace=namespace or self.namespace,
            owner=owner or self.owner,
        )

    def source(
        self, id_: str, generation: int = 1, *, revision: str | None = None, locator: str | None = None
    ) -> IndexedSource:
        reference = SourceReference(
            id=id_, locator=locator or f"at/{id_}", revision=revision or str(generation)
        )
        return IndexedSource(MemoryKey(namespace=self.namespace, id=id_), reference, generation)

    async def claim(self, id_: str) -> JobClaim:
        key = MemoryKey(namespace=self.namespace, id=id_)
        return await self.subject.claim(await self.index.owe(self.profile, key, self.owner))

    async def put(self, id_: str, *parts: Part, generation: int = 1) -> None:
        claim = await self.claim(id_)
        await self.index.replace(claim, self.profile, self.source(id_, generation), self.chunks(*parts))
        await self.subject.settle(claim)

    def chunks(self, *parts: Part) -> Sequence[EmbeddedChunk]:
        made: list[EmbeddedChunk] = []
        at = 0
        for ordinal, (text, vector) in enumerate(parts):
            end = at + len(text.encode())
            made.append(
                EmbeddedChunk(Chunk(passage_id(self.profile, ordinal), ordinal, at, end, text), vector)
            )
            at = end
        return made

    async def search(
        self, vector: Sequence[float] = AXIS, *, limit: int = 16, max_scanned: int = 64
    ) -> Sequence[Hit]:
        found = await self.index.search(
            self.profile, self.namespace, vector, limit=limit, max_scanned=max_scanned
        )
        return found.hits

    async def texts(self) -> list[str]:
        return [hit.chunk.text for hit in await self.search()]

    async def progress(self) -> IndexProgress:
        counted = await self.index.progress(self.owner)
        [mine] = [one for one in counted if one.profile == self.profile.digest]
        return mine


@check("a chunk is found with its source's identity, its place and its score", "SEM-30", "SEM-34")
async def found_whole(subject: SemanticIndexSubject) -> None:
    s = await Stage.of(subject)
    await s.put("a", ("één ", NEAR), ("two", FAR))
    result = await s.index.search(s.profile, s.namespace, (5.0, 0.0, 0.0), limit=1, max_scanned=2)
    [hit], source = result.hits, s.source("a")
    same((hit.source, hit.generation), (source.source, 1), "the hit names its source as it was indexed")
    same(hit.chunk, s.chunks(("één ", NEAR))[0].chunk, "and the excerpt with its bytes")
    require(abs(hit.score - 0.9 / 0.82**0.5) < 0.002, f"the score is the cosine, not {hit.score}")
    same(result.scanned_chunks, 2, "every chunk of the namespace was compared")
    [_, opposite] = await s.search((-0.9, -0.1, 0.0), max_scanned=2)
    require(-1.0 <= opposite.score < -0.99, "the opposite of a vector is last, at -1 and not below")


@check("chunks of another profile are never found, whatever part of it differs", "SEM-05", "SEM-06", "SEM-08")
async def profiles_apart(subject: SemanticIndexSubject) -> None:
    s = await Stage.of(subject)
    await s.put("a", ("mine", AXIS))
    for profile in (
        replace(s.profile, model_revision="2"),
        replace(s.profile, provider="other"),
        replace(s.profile, max_chunk_bytes=512),
        replace(s.profile, chunker="utf8-line@1"),
    ):
        other = s.beside(profile=profile)
        await s.index.register(other.profile)
        same(await other.texts(), [], "the other profile is empty")
        await other.put("a", ("theirs", AXIS))
        same(await other.texts(), ["theirs"], "it has what was put under it")
    same(await s.texts(), ["mine"], "and the first one is as it was")


@check("chunks of another namespace are never found, also for sources of the same id", "SEM-62")
async def namespaces_apart(subject: SemanticIndexSubject) -> None:
    s = await Stage.of(subject)
    other = s.beside(namespace=NamespaceAddress(f"{s.namespace} "))
    await s.put("a", ("mine", FAR))
    await other.put("a", ("theirs", AXIS))
    same((await s.texts(), await other.texts()), (["mine"], ["theirs"]), "each namespace has its own")
    same(len(await s.search(max_scanned=1)), 1, "another namespace's chunks are not scanned")


@check("equal scores go by source id in code points, then ordinal, in whatever order they came", "SEM-37")
async def ties(subject: SemanticIndexSubject) -> None:
    s = await Stage.of(subject)
    ids = ["b", "B", "é", "a", "\U0001f600", "\uff21"]
    for order in (ids, ids[::-1]):
        for id_ in order:
            await s.put(id_, (f"{id_}0", NEAR), (f"{id_}1", AXIS), (f"{id_}2", NEAR))
        best = [f"{id_}1" for id_ in sorted(ids)]
        rest = [f"{id_}{n}" for id_ in sorted(ids) for n in (0, 2)]
        same([h.chunk.text for h in await s.search(limit=18)], best + rest, "the order is total")
        same([h.chunk.text for h in await s.search(limit=8)], (best + rest)[:8], "and cut, not sampled")


@check("a namespace of more chunks than may be scanned is refused; nothing of it is ranked", "SEM-36")
async def scan_bound(subject: SemanticIndexSubject) -> None:
    s = await Stage.of(subject)
    await s.put("a", ("1", AXIS), ("2", AXIS))
    await s.put("b", ("3", AXIS))
    same(len(await s.search(max_scanned=3)), 3, "at the bound it is searched")
    async with refused(IndexBudget, "one over it is refused", reason="scanned-chunks", bound=2):
        await s.search(max_scanned=2)
    for limit, max_scanned in ((0, 1), (1, 0)):
        async with refused(InvalidInput, "bounds are at least 1"):
            await s.search(limit=limit, max_scanned=max_scanned)


@check("a replacement swaps all chunks of its source and no other's", "SEM-49")
async def swapped(subject: SemanticIndexSubject) -> None:
    s = await Stage.of(subject)
    await s.put("a", ("a0", AXIS), ("a1", AXIS), ("a2", AXIS))
    await s.put("b", ("b0", FAR))
    await s.put("a", ("new", AXIS), generation=2)
    same(await s.texts(), ["new", "b0"], "nothing of the former generation is left")
    same([h.generation for h in await s.search()], [2, 1], "each chunk is of its source's generation")


@check("an older generation, and another identity of the same one, are fenced off", "SEM-51")
async def fenced(subject: SemanticIndexSubject) -> None:
    s = await Stage.of(subject)
    await s.put("a", ("kept", AXIS), generation=3)
    claim, chunks = await s.claim("a"), s.chunks(("late", AXIS))
    for source, reason in (
        (s.source("a", 2), "older"),
        (s.source("a", 3, revision="other"), "identity"),
        (s.source("a", 3, locator="other"), "identity"),
    ):
        async with refused(FenceLost, f"{source.source} is refused", reason=reason):
            await s.index.replace(claim, s.profile, source, chunks)
    async with refused(FenceLost, "an older withdrawal is refused", reason="older"):
        await s.index.withdraw(claim, s.profile, s.source("a", 2))
    same(await s.texts(), ["kept"], "and nothing changed")
    await s.index.replace(claim, s.profile, s.source("a", 3), s.chunks(("kept", AXIS)))
    same(await s.texts(), ["kept"], "the same generation and identity again is fine")


@check("a withdrawal is final: later replacements are refused, also of later generations", "SEM-45", "SEM-52")
async def withdrawn(subject: SemanticIndexSubject) -> None:
    s = await Stage.of(subject)
    await s.put("a", ("gone", AXIS))
    claim = await s.claim("a")
    for _ in range(2):
        await s.index.withdraw(claim, s.profile, s.source("a", 2))
        same(await s.texts(), [], "nothing of it is found")
    again = await s.claim("a")
    for generation in (2, 3):
        async with refused(FenceLost, "no replacement follows", reason="withdrawn"):
            await s.index.replace(again, s.profile, s.source("a", generation), s.chunks(("back", AXIS)))
    await s.index.clear(again, s.profile, s.source("a").key)
    entry = await s.index.load(again.job_id)
    require(entry is not None and entry.withdrawn and entry.chunks == 0, "the tombstone stays")
    same((await s.texts(), (await s.progress()).withdrawn), ([], 1), "and is counted")


@check("a source that was not there may come back, at any generation")
async def cleared(subject: SemanticIndexSubject) -> None:
    s = await Stage.of(subject)
    await s.put("a", ("gone", AXIS), generation=7)
    await s.index.clear(await s.claim("a"), s.profile, s.source("a").key)
    same(await s.texts(), [], "nothing of a missing source is found")
    await s.put("a", ("back", AXIS), generation=1)
    same(await s.texts(), ["back"], "until it is indexed again")


@check("a claim that is no longer held, or is of another job, changes nothing")
async def claims(subject: SemanticIndexSubject) -> None:
    s = await Stage.of(subject)
    await s.put("a", ("kept", AXIS))
    lost = await s.claim("a")
    held = await s.claim("a")
    foreign = s.beside(profile=replace(s.profile, model_revision="2"))
    await s.index.register(foreign.profile)
    for stage, claim, reason in (
        (s, lost, "lost"),
        (s, replace(held, fence=replace(held.fence, epoch=held.fence.epoch + 1)), "lost"),
        (s, replace(held, job_id=str(uuid4())), "lost"),
        (s, await s.claim("b"), "source"),
        (s, await s.beside(namespace=NamespaceAddress(f"{s.namespace}2")).claim("a"), "source"),
        (foreign, held, "profile"),
    ):
        refusal = f"a {reason} claim is refused"
        async with refused(FenceLost, refusal, reason=reason):
            await s.index.replace(claim, stage.profile, s.source("a", 2), stage.chunks(("late", AXIS)))
        async with refused(FenceLost, refusal, reason=reason):
            await s.index.withdraw(claim, stage.profile, s.source("a", 2))
        async with refused(FenceLost, refusal, reason=reason):
            await s.index.clear(claim, stage.profile, s.source("a").key)
    same(await s.texts(), ["kept"], "and nothing changed")
    await s.index.replace(held, s.profile, s.source("a", 2), s.chunks(("new", AXIS)))
    same(await s.texts(), ["new"], "the holder's change is taken")


@check("chunks or vectors that do not fit are refused before anything changes", "SEM-32")
async def misfits(subject: SemanticIndexSubject) -> None:
    s = await Stage.of(subject)
    await s.put("a", ("kept", AXIS))
    claim, source = await s.claim("a"), s.source("a", 2)
    good = s.chunks(("one", AXIS), ("two", AXIS))
    for vector, reason in (
        ((1.0, 0.0), "dimensions"),
        ((1.0, 0.0, 0.0, 0.0), "dimensions"),
        ((float("nan"), 0.0, 0.0), "not-finite"),
        ((float("inf"), 0.0, 0.0), "not-finite"),
        ((0.0, 0.0, 0.0), "zero-norm"),
    ):
        async with refused(EmbeddingInvalid, f"{vector} is refused", reason=reason):
            await s.index.replace(claim, s.profile, source, [good[0], replace(good[1], vector=vector)])
        async with refused(EmbeddingInvalid, f"{vector} is no query", reason=reason):
            await s.search(vector)
    longer = replace(good[1], chunk=replace(good[1].chunk, end_byte=9))
    other = replace(good[1], chunk=replace(good[1].chunk, passage_id="chunk:x:1"))
    for chunks in ([], good[1:], [good[0], good[0]], [good[0], longer], [good[0], other]):
        async with refused(InvalidInput, "chunks are one source's, whole and in order"):
            await s.index.replace(claim, s.profile, source, chunks)
    unknown = replace(source, source=SourceReference(id="a", locator="x", revision=None))
    async with refused(InvalidInput, "an unknown revision is not indexed", field="revision"):
        await s.index.replace(claim, s.profile, unknown, good)
    same(await s.texts(), ["kept"], "and nothing changed")


@check("a job's entry says what is indexed, and progress counts it for its owner alone")
async def entries(subject: SemanticIndexSubject) -> None:
    s = await Stage.of(subject)
    same(await s.index.load(str(uuid4())), None, "an unknown job has no entry")
    claim = await s.claim("a")
    entry = await s.index.load(claim.job_id)
    require(entry is not None, "an owed source has an entry")
    if entry is not None:
        same((entry.profile, entry.active), (s.profile, True), "of its profile")
        same((entry.key, entry.owner, entry.indexed), (s.source("a").key, s.owner, None), "and source")
    same(((await s.progress()).sources, (await s.progress()).owed), (1, 1), "it is owed while it runs")
    await s.index.replace(claim, s.profile, s.source("a", 4), s.chunks(("x", AXIS), ("y", AXIS)))
    await s.subject.settle(claim)
    entry = await s.index.load(claim.job_id)
    same(entry and (entry.indexed, entry.chunks), (s.source("a", 4), 2), "then it is indexed")
    wanted = IndexProgress(s.profile.digest, True, 1, 1, 0, 0, 0, 2)
    same(await s.progress(), wanted, "and ready")
    same((await s.beside(owner=OwnerId("nobody")).progress()).sources, 0, "another owner sees none of it")


@check("an active profile is told of the others until they are retired", "SEM-07")
async def profiles(subject: SemanticIndexSubject) -> None:
    s = await Stage.of(subject)
    claim = await s.claim("a")
    other = replace(s.profile, model_revision="2")
    for _ in range(2):
        require(s.profile.digest in await s.index.register(other), "the older profile is still active")
    same(await s.index.retire(s.profile.digest), True, "it is retired")
    same(await s.index.retire(s.profile.digest), False, "once")
    require(s.profile.digest not in await s.index.register(other), "and no longer named")
    entry = await s.index.load(claim.job_id)
    require(entry is not None and not entry.active, "its entries say so")
    await s.index.register(s.profile)
    require((await s.progress()).active, "it can be made active again")


@check("what a profile lacks of the store is owed in bounded batches, and nothing else")
async def missing(subject: SemanticIndexSubject) -> None:
    s, writer = await Stage.of(subject), await subject.writer()
    await s.index.retire(s.profile.digest)
    for id_ in ("a", "b", "c"):
        await writer.write(_put(s, id_), owner=s.owner)
    await writer.write(_withdrawal(s, "b"), owner=s.owner)
    same((await s.progress()).sources, 0, "a profile that is not active is owed nothing")
    await s.index.register(s.profile)
    await _owe_missing(s)
    same(((await s.progress()).sources, (await s.progress()).owed), (2, 2), "active documents are owed")
    same(await _owe_missing(s), 0, "and once")
    for id_ in ("a", "c"):
        await s.put(id_, (id_, AXIS))
    same(await _owe_missing(s), 0, "what is indexed as it is now is not owed")
    await s.index.retire(s.profile.digest)
    await writer.write(_put(s, "a", expected="1"), owner=s.owner)
    await writer.write(_withdrawal(s, "c"), owner=s.owner)
    await s.index.register(s.profile)
    same(await _owe_missing(s), 2, "what changed meanwhile is")
    claim = await s.claim("c")
    await s.index.withdraw(claim, s.profile, s.source("c", 2))
    await s.subject.settle(claim)
    await s.subject.settle(await s.claim("c"))
    same(await _owe_missing(s), 0, "what was taken out is owed no more")


@check("a search beside replacements sees one generation of a source, whole", "SEM-49")
async def no_mixture(subject: SemanticIndexSubject) -> None:
    s, reader = await Stage.of(subject), await subject.open()
    await s.put("a", ("1", AXIS))
    claim = await s.claim("a")

    async def rebuild() -> None:
        for generation in range(2, 12):
            parts = [(f"{generation % 10}", AXIS)] * (generation % 4 + 1)
            await s.index.replace(claim, s.profile, s.source("a", generation), s.chunks(*parts))

    writing = asyncio.create_task(rebuild())
    try:
        while not writing.done():
            await asyncio.sleep(0)  # an index in memory waits for nothing by itself
            found = await reader.search(s.profile, s.namespace, AXIS, limit=16, max_scanned=16)
            [generation] = {hit.generation for hit in found.hits}
            whole = 1 if generation == 1 else generation % 4 + 1
            same(len(found.hits), whole, f"generation {generation} is whole")
        await writing
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def _owe_missing(s: Stage) -> int:
    batch = await s.index.owe_missing(s.profile, limit=2)
    owed = batch.owed
    while batch.next_after is not None:
        batch = await s.index.owe_missing(s.profile, after=batch.next_after, limit=2)
        owed += batch.owed
    return owed


def _put(s: Stage, id_: str, expected: str | None = None) -> Put:
    said = Attribution(origin_id="o", speaker="user", locator="l", interpretation="i")
    return Put(
        key=s.source(id_).key,
        operation_id=uuid4().hex,
        expected_revision=expected,
        locator=f"at/{id_}",
        content=Content(text=id_, attributions=(said,), recorded_at=0),
        scopes=("private",),
    )


def _withdrawal(s: Stage, id_: str) -> Withdraw:
    return Withdraw(key=s.source(id_).key, operation_id=uuid4().hex, expected_revision="1", reason="asked")


CHECKS: Final = checks_of(globals())
