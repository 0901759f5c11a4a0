"""The semantic index's kit on the twin in memory and on Postgres with pgvector, and what a server without it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from uuid import UUID

import pytest
from psycopg import AsyncConnection

from memory_pipeline.index.conformance import SemanticIndexSubject, semantic_index_conformance
from memory_pipeline.index.inproc import InprocSemanticIndex
from memory_pipeline.index.port import EmbeddedChunk, IndexedSource, SearchResult, SemanticIndex
from memory_pipeline.index.postgres import PostgresSemanticIndex
from memory_pipeline.index.profile import SemanticProfile
from memory_pipeline.store.documents import (
    Attribution,
    Content,
    MemoryKey,
    NamespaceAddress,
    Put,
    SourceReference,
    decode_document,
)
from memory_pipeline.store.inproc import InprocMemoryStore
from memory_pipeline.store.port import MemoryWriter
from memory_pipeline.store.postgres import PostgresMemoryStore
from shared.conformance.check import ConformanceFailure, outcomes
from shared.database.pool import Database
from shared.domain.errors import IndexUnavailable
from shared.domain.ids import OwnerId
from shared.jobs.postgres import PostgresJobQueue
from shared.jobs.queue import JobClaim
from shared.leases.fence import Fence
from tests.conformance.kits import cited_by, names_of, proved_by, run_check
from tests.conformance.subjects import PostgresWorld


class InprocSemanticIndexSubject:
    """One index and one store in memory; every handle is that one."""

    def __init__(self, kind: type[InprocSemanticIndex] = InprocSemanticIndex) -> None:
        self.store = InprocMemoryStore()
        self.index = kind(
            documents=lambda: [
                (decode_document(stored.versions[-1]), stored.owner)
                for stored in self.store.documents.values()
            ]
        )

    async def open(self) -> SemanticIndex:
        return self.index

    async def writer(self) -> MemoryWriter:
        return self.store

    async def claim(self, job_id: str) -> JobClaim:
        return self.index.claim(job_id)

    async def settle(self, claim: JobClaim) -> None:
        self.index.settle(claim)


class PostgresSemanticIndexSubject(PostgresWorld):
    """One database; every handle has a pool of its own."""

    _pool: Database | None = None

    async def open(self) -> SemanticIndex:
        return PostgresSemanticIndex(await self.database())

    async def writer(self) -> MemoryWriter:
        return PostgresMemoryStore(await self.database())

    async def claim(self, job_id: str) -> JobClaim:
        """As a claim does, but of this very job, whoever holds it."""
        async with await AsyncConnection.connect(self._url) as connection:
            cursor = await connection.execute(
                "UPDATE jobs SET status = 'running', again = false, epoch = epoch + 1, token = gen_random_uuid(),"
                " lease_owner = 'kit', expires_at = clock_timestamp() + interval '60 s'"
                " WHERE pool = 'index' AND id = %s RETURNING owner, epoch, token",
                [job_id],
            )
            row = await cursor.fetchone()
        assert row is not None
        return JobClaim("index", job_id, OwnerId(row[0]), Fence(row[1], row[2]), 0, False)

    async def settle(self, claim: JobClaim) -> None:
        self._pool = self._pool or await self.database()
        await PostgresJobQueue(self._pool).settle(claim, "done")


CHECKS = semantic_index_conformance(InprocSemanticIndexSubject())


@pytest.fixture(params=["inproc", "postgres"])
async def semantic_index_subject(request: pytest.FixtureRequest) -> AsyncIterator[SemanticIndexSubject]:
    """A semantic index to run a check on."""
    if request.param == "inproc":
        yield InprocSemanticIndexSubject()
        return
    async with PostgresSemanticIndexSubject(request.getfixturevalue("embedded_url")) as subject:
        yield subject


@pytest.mark.behaviour(
    "SEM-05",
    "SEM-06",
    "SEM-07",
    "SEM-08",
    "SEM-30",
    "SEM-32",
    "SEM-34",
    "SEM-36",
    "SEM-37",
    "SEM-45",
    "SEM-49",
    "SEM-51",
    "SEM-52",
    "SEM-62",
)
@pytest.mark.parametrize("name", names_of(CHECKS))
async def test_the_semantic_index_keeps_its_contract(
    name: str, semantic_index_subject: SemanticIndexSubject
) -> None:
    await run_check(semantic_index_conformance(semantic_index_subject), name)


def test_the_cited_rows_are_those_that_the_checks_prove() -> None:
    assert cited_by(test_the_semantic_index_keeps_its_contract) == proved_by(CHECKS)


@pytest.mark.second_matrix
@pytest.mark.behaviour("SEM-02")
async def test_without_pgvector_the_schema_and_the_store_work_and_the_index_says_unavailable(
    machine_url: str,
) -> None:
    database = Database(machine_url, connections=1)
    await database.open()
    try:
        async with database.connection("test") as connection:
            cursor = await connection.execute("SELECT to_regclass('memory_chunks') IS NULL AS missing")
            if (await cursor.fetchone()) != {"missing": True}:
                pytest.skip("the machine's own PostgreSQL has pgvector")
        key = MemoryKey(namespace=NamespaceAddress("kit none"), id="a")
        said = Attribution(origin_id="o", speaker="user", locator="l", interpretation="i")
        put = Put(
            key=key,
            operation_id="op",
            expected_revision=None,
            locator="at/a",
            content=Content(text="hello", attributions=(said,), recorded_at=0),
            scopes=("private",),
        )
        written = await PostgresMemoryStore(database).write(put, owner=OwnerId("ann"))
        assert written.generation == 1
        for answer in await outcomes(_every_operation(PostgresSemanticIndex(database), key)):
            assert isinstance(answer, IndexUnavailable)
            assert answer.fields["reason"] == "pgvector-missing"
    finally:
        await database.close()


def _every_operation(index: SemanticIndex, key: MemoryKey) -> list[Awaitable[object]]:
    profile = SemanticProfile("kit", "m", "1", 3)
    claim = JobClaim("index", "job", OwnerId("ann"), Fence(1, UUID(int=1)), 0, False)
    source = IndexedSource(key, SourceReference(id=key.id, locator="l", revision="1"), 1)
    return [
        index.register(profile),
        index.retire(profile.digest),
        index.owe(profile, key, OwnerId("ann")),
        index.owe_missing(profile),
        index.load("job"),
        index.withdraw(claim, profile, source),
        index.clear(claim, profile, key),
        index.search(profile, key.namespace, (1.0, 0.0, 0.0), limit=1, max_scanned=1),
        index.progress(),
    ]


class Fenceless(InprocSemanticIndex):
    """Takes any claim of the job."""

    async def replace(
        self,
        claim: JobClaim,
        profile: SemanticProfile,
        source: IndexedSource,
        chunks: Sequence[EmbeddedChunk],
    ) -> None:
        await super().replace(self.claim(claim.job_id), profile, source, chunks)


class Prefixed(InprocSemanticIndex):
    """Ranks what it may scan, and says nothing of the rest."""

    async def search(
        self,
        profile: SemanticProfile,
        namespace: NamespaceAddress,
        vector: Sequence[float],
        *,
        limit: int,
        max_scanned: int,
    ) -> SearchResult:
        return await super().search(profile, namespace, vector, limit=limit, max_scanned=10_000)


class Resurrecting(InprocSemanticIndex):
    """Takes a withdrawal for a source that is missing."""

    async def withdraw(self, claim: JobClaim, profile: SemanticProfile, source: IndexedSource) -> None:
        await self.clear(claim, profile, source.key)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Fenceless, "a claim that is no longer held, or is of another job, changes nothing"),
        (
            Prefixed,
            "a namespace of more chunks than may be scanned is refused; nothing of it is ranked",
        ),
        (
            Resurrecting,
            "a withdrawal is final: later replacements are refused, also of later generations",
        ),
    ],
)
async def test_a_broken_index_fails_the_check_of_its_fault_by_name(
    broken: type[InprocSemanticIndex], check: str
) -> None:
    with pytest.raises(ConformanceFailure) as failure:
        await run_check(semantic_index_conformance(InprocSemanticIndexSubject(broken)), check)
    assert str(failure.value).startswith(check)
