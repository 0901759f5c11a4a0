"""Index jobs on Postgres as a worker runs them: owed by writes, exact costs, killed at any point, never half."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import psycopg
import pytest

from memory_pipeline.index.limits import SemanticQueryLimits
from memory_pipeline.index.port import IndexProgress
from memory_pipeline.index.postgres import PostgresSemanticIndex
from memory_pipeline.index.query import semantic_candidates
from memory_pipeline.index.refresh import RefreshResult
from memory_pipeline.store.documents import MemoryKey
from memory_pipeline.store.postgres import PostgresMemoryStore
from shared.database.pool import Database
from shared.domain.errors import FenceLost, StoreUnavailable, Unavailable
from shared.domain.failpoints import FailpointError, Failpoints
from shared.domain.ids import WorkerId
from shared.jobs.postgres import PostgresJobQueue
from shared.jobs.queue import JobClaim
from shared.models.scripted import ScriptedEmbedder
from tests.support.index_world import SPACE, CountingReader, IndexWorld
from tests.support.waiting import await_until

#: Calls, statements, round trips and commits of a unit of work.
WRITE = (1, 1, 1, 1)
READ = (1, 1, 1, 0)
KEY = MemoryKey(namespace=SPACE, id="a")
BOTH = ["one old\n", "two old\n"]


@dataclass(slots=True)
class Worker:
    """One process's adapters, over a counted pool of its own."""

    url: str
    database: Database
    queue: PostgresJobQueue
    world: IndexWorld

    async def claim(self) -> JobClaim:
        [claim] = await self.queue.claim("index", WorkerId("w"), places=1, lease_s=60.0)
        return claim

    async def serve(self) -> RefreshResult:
        """Claim one item, refresh it, settle it."""
        claim = await self.claim()
        result = await self.world.refresh(claim)
        assert await self.queue.settle(claim, "done") in ("idle", "ready")
        return result

    async def abandon(self, claim: JobClaim) -> None:
        """What a killed holder leaves: a lease that passes."""
        await self.execute(
            "UPDATE jobs SET expires_at = clock_timestamp() - interval '1 s' WHERE id = %s", claim.job_id
        )

    async def execute(self, statement: str, *values: object) -> None:
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            await connection.execute(statement.encode(), values)

    async def rows(self, statement: str) -> list[tuple[object, ...]]:
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            return await (await connection.execute(statement.encode())).fetchall()

    async def texts(self) -> list[str]:
        return sorted(await self.world.texts("old"))

    async def progress(self) -> IndexProgress:
        [mine] = [p for p in await self.world.index.progress() if p.profile == self.world.profile.digest]
        return mine

    def spent(self) -> dict[str, tuple[int, int, int, int]]:
        counted = self.database.counters.snapshot()
        self.database.counters.reset()
        return {u: (c.calls, c.statements, c.round_trips, c.commits) for u, c in counted.items()}


@asynccontextmanager
async def worker(url: str, *, revision: str = "1") -> AsyncIterator[Worker]:
    database = Database(url, connections=4, name="index-worker")
    await database.open()
    try:
        world = IndexWorld(
            store=PostgresMemoryStore(database),
            index=PostgresSemanticIndex(database),
            embedder=ScriptedEmbedder(revision=revision),
        )
        await world.index.register(world.profile)
        yield Worker(url, database, PostgresJobQueue(database), world)
    finally:
        await database.close()


async def test_one_index_job_is_six_statements_of_one_round_trip_each(database_url: str) -> None:
    async with worker(database_url) as w:
        await w.world.put("one\ntwo\n")
        w.spent()
        assert (await w.serve()).chunks == 2
        reads = {"memory.read": (2, 2, 2, 0), "index.load": READ}
        writes = {unit: WRITE for unit in ("index.claim", "index.replace", "index.settle")}
        assert w.spent() == reads | writes
        await semantic_candidates(
            w.world.index, w.world.profile, w.world.embedder, SPACE, "one", SemanticQueryLimits()
        )
        assert w.spent() == {"index.search": READ}


async def test_a_write_owes_every_active_profile_in_its_own_transaction(database_url: str) -> None:
    async with worker(database_url) as w, worker(database_url, revision="2") as other:
        await w.world.put("one old")
        assert ((await w.progress()).owed, (await other.progress()).owed) == (1, 1)
        await other.world.index.retire(w.world.profile.digest)
        await w.world.put("b", "b")
        assert ((await w.progress()).owed, (await other.progress()).owed) == (1, 2)


@pytest.mark.behaviour("SEM-05", "SEM-06", "SEM-T10")
async def test_two_profiles_over_one_database_never_see_each_others_chunks(database_url: str) -> None:
    async with worker(database_url) as w:
        await w.world.put("one old\ntwo old\n")
        await w.serve()
        async with worker(database_url, revision="2") as other:
            assert await other.texts() == []
            assert (await other.world.index.owe_missing(other.world.profile)).owed == 1
            await w.world.index.retire(w.world.profile.digest)
            await other.world.put("three old\n")
            await other.serve()
            assert (await other.texts(), await w.texts()) == (["three old\n"], BOTH)


@pytest.mark.behaviour("SEM-T04", "SEM-50")
@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("index.claimed", BOTH),
        ("index.embedded", BOTH),
        ("index.reread", BOTH),
        ("index.replaced", ["new\n"]),
    ],
)
async def test_a_worker_that_dies_at_any_point_leaves_all_old_or_all_new_chunks(
    database_url: str, point: str, left: list[str]
) -> None:
    async with worker(database_url) as w, worker(database_url) as next_one:
        await w.world.put("one old\ntwo old\n")
        await w.serve()
        await w.world.put("new\n")
        claim = await w.claim()
        with pytest.raises(FailpointError):
            await w.world.refresh(claim, failpoints=Failpoints.parse(f"{point}=raise"))
        assert await w.texts() == left
        await w.abandon(claim)
        assert (await next_one.serve()).status == "replaced"
        assert await next_one.texts() == ["new\n"]
        with pytest.raises(FenceLost):
            await w.world.refresh(claim)


@pytest.mark.behaviour("SEM-T04", "SEM-49", "SEM-50")
async def test_a_backend_that_dies_inside_the_swap_leaves_all_old_chunks(database_url: str) -> None:
    async with worker(database_url) as w, worker(database_url) as next_one:
        await w.world.put("one old\ntwo old\n")
        await w.serve()
        await w.world.put("new a\nnew b\nnew c\n")
        claim = await w.claim()
        async with await psycopg.AsyncConnection.connect(database_url) as blocker:
            # An uncommitted row where the third new chunk goes: the old ones are deleted by then, two are inserted.
            await blocker.execute(
                "INSERT INTO memory_chunks SELECT profile, namespace, source_id, 2, generation, locator, passage_id,"
                " start_byte, end_byte, text, embedding FROM memory_chunks WHERE ordinal = 0"
            )
            refresh = asyncio.create_task(w.world.refresh(claim))
            async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as killer:
                waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%index_replace%'"
                pid = await _first_row(killer, waiting)
                assert await next_one.texts() == BOTH
                await killer.execute("SELECT pg_terminate_backend(%s)", [pid])
            with pytest.raises(StoreUnavailable):
                await refresh
            await blocker.rollback()
        assert await w.texts() == BOTH
        await w.abandon(claim)
        assert (await next_one.serve()).chunks == 3
        assert await w.texts() == ["new a\n", "new b\n", "new c\n"]


async def _first_row(connection: psycopg.AsyncConnection, statement: str) -> int:
    found: list[int] = []

    async def look() -> None:
        while not found:
            row = await (await connection.execute(statement.encode())).fetchone()
            if row is not None:
                found.append(row[0])

    looking = asyncio.create_task(look())
    await await_until(looking.done, what="the swap waiting in the database")
    await looking
    return found[0]


@pytest.mark.behaviour("SEM-52", "SEM-T02")
async def test_a_withdrawal_beside_a_slow_refresh_is_final_also_for_a_new_process(database_url: str) -> None:
    async with worker(database_url) as w:
        await w.world.put("one old\ntwo old\n")
        await w.serve()
        await w.world.put("one secret\n")
        slow = await w.claim()
        embedder = w.world.embedder
        assert isinstance(embedder, ScriptedEmbedder)
        embedder.hold()
        refresh = asyncio.create_task(w.world.refresh(slow))
        await embedder.started(2)
        await w.world.withdraw()
        await w.abandon(slow)
        async with worker(database_url) as quick:
            assert (await quick.serve()).status == "withdrawn"
        embedder.release()
        with pytest.raises(FenceLost) as lost:
            await refresh
        assert lost.value.fields["reason"] == "lost"
    async with worker(database_url) as restarted:
        assert await restarted.texts() == []
        job = await restarted.world.index.owe(restarted.world.profile, KEY, slow.owner)
        assert (await restarted.serve()).status == "withdrawn"
        entry = await restarted.world.index.load(job)
        assert entry is not None and entry.withdrawn


@pytest.mark.behaviour("SEM-55", "SEM-T01")
async def test_a_correction_after_the_second_read_is_owed_again_and_then_found(database_url: str) -> None:
    async with worker(database_url) as w:
        await w.world.put("one old\n")
        claim = await w.claim()
        await w.world.refresh(claim)
        await w.world.put("one new\n")
        assert await w.queue.settle(claim, "done") == "ready"
        assert (await w.serve()).status == "replaced"
        assert await w.texts() == ["one new\n"]


async def test_whoever_writes_while_a_profile_becomes_active_is_not_missed(database_url: str) -> None:
    async with worker(database_url) as w:
        other = replace(w.world, embedder=ScriptedEmbedder(revision="2"))
        async with await psycopg.AsyncConnection.connect(database_url) as writing:
            # A write that looked for active profiles before there was this one, and has not committed yet.
            await writing.execute(
                "INSERT INTO memory_documents (namespace, id, owner, generation, status, locator, modified_at)"
                " VALUES ('n', 'late', 'ann', 1, 'active', 'l', clock_timestamp())"
            )
            registering = asyncio.create_task(w.world.index.register(other.profile))
            waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%index_register%'"
            async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as looker:
                await _first_row(looker, waiting)
            await writing.commit()
        await registering
        assert (await w.world.index.owe_missing(other.profile)).owed == 1


@pytest.mark.behaviour("SEM-36")
async def test_a_search_reads_its_namespace_through_the_primary_key(database_url: str) -> None:
    async with worker(database_url) as w:
        await w.world.put("one old\n")
        await w.serve()
        await w.execute(
            "INSERT INTO memory_chunks SELECT profile, 'other ' || mod(n, 500), 'x' || n, 0, 1, locator, passage_id,"
            " start_byte, end_byte, text, embedding FROM memory_chunks, generate_series(1, 20000) n"
        )
        await w.execute("ANALYZE memory_chunks")
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            await connection.execute("SET plan_cache_mode = force_generic_plan")
            before = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'memory_chunks'"
            vector = f"[{','.join(['1'] * 64)}]"
            for _ in range(2):
                cursor = await connection.execute(
                    "SELECT scanned FROM index_search_v1(%s, %s, %s, 16, 100)",
                    [w.world.profile.digest, SPACE, vector],
                )
                assert await cursor.fetchall() == [(1,)]
            assert await (await connection.execute(before)).fetchone() == (0,)


async def test_a_source_that_changed_meanwhile_is_retried_and_not_parked(database_url: str) -> None:
    async with worker(database_url) as w:
        await w.world.put("one old\n")
        claim = await w.claim()
        reader = CountingReader(w.world.store, {2: lambda: w.world.put("one new\n")})
        with pytest.raises(Unavailable) as changed:
            await w.world.refresh(claim, reader=reader)
        assert changed.value.code == "memory.source-changed"
        assert await w.queue.settle(claim, "retry", failure=changed.value.code) == "ready"
        assert (await w.serve()).status == "replaced"
