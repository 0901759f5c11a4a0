"""One owner's ten thousand beside another's ten: in the turns pool and in a background pool (DST-14)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shared.database.pool import Database
from shared.domain.ids import OwnerId, WorkerId
from shared.jobs.postgres import PostgresJobQueue
from shared.jobs.queue import JobClaim
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import ClaimRequest
from tests.faults.world import World, world
from workers.background.serving import JobServer, PoolPolicy
from workers.turns.claims import TurnClaimer
from workers.turns.holdings import Holdings

PLACES = 8
DEEP = 10_000
FEW = 10

FILL_TURNS = (
    "INSERT INTO owners (id) VALUES ('deep'), ('small')",
    """INSERT INTO sessions (id, owner, tail, next_position)
         SELECT 'deep ' || n, 'deep', sha256('x'), 2 FROM generate_series(1, 10000) n
       UNION ALL SELECT 'small ' || n, 'small', sha256('x'), 2 FROM generate_series(1, 10) n""",
    """INSERT INTO turns (id, session_id, owner, position, origin, status, fingerprint, message, run_id)
         SELECT gen_random_uuid(), id, owner, 1, 'user', 'ready', 'f', '{}', 'r' FROM sessions""",
)
FILL_JOBS = """INSERT INTO jobs (pool, id, owner)
    SELECT 'remember', 'deep ' || n, 'deep' FROM generate_series(1, 10000) n
  UNION ALL SELECT 'remember', 'small ' || n, 'small' FROM generate_series(1, 10) n"""


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[World]:
    async with world(database_url) as made:
        yield made


@pytest.mark.behaviour("DST-14")
async def test_ten_turns_beside_ten_thousand_of_another_owner_are_had_within_a_few_claims(
    store: World,
) -> None:
    """G10: each claim gives the small owner half of its places."""
    for statement in FILL_TURNS:
        await store.rows(statement)
    worker = WorkerId("w1")
    holdings = Holdings(store.queue, worker, lease_s=60.0, renew_s=20.0, poll_s=1.0)
    claimer = TurnClaimer(
        queue=store.queue,
        holdings=holdings,
        worker=worker,
        revisions=("1",),
        lease_s=60.0,
        attempts_max=3,
        suspects_max=8,
        running_per_owner=256,
        capacity=400,
    )
    had, claims = 0, 0
    while had < FEW:
        claims += 1
        held = await claimer.claim(PLACES, ())
        had += sum(one.claim.owner == "small" for one in held)
        for one in held:
            holdings.drop(one)
        assert claims <= FEW // (PLACES // 2) + 1
    assert claims == 3


@pytest.mark.behaviour("DST-14")
async def test_ten_items_of_a_background_pool_beside_ten_thousand_are_had_within_a_few_claims(
    store: World,
) -> None:
    await store.rows(FILL_JOBS)

    async def never(claim: JobClaim) -> None:
        raise AssertionError("no item is run here")

    jobs = PostgresJobQueue(store.database)
    server = JobServer(jobs, WorkerId("w1"), PoolPolicy("remember", 60.0, 60.0), never)
    had = 0
    for _ in range(3):
        held = await server.claim(PLACES, ())
        had += sum(one.claim.owner == OwnerId("small") for one in held)
        for one in held:
            server.keeper.drop(one.claim.job_id, one.claim.fence)
    assert had == FEW


@pytest.mark.behaviour("DST-14")
async def test_claim_does_not_wait_behind_the_statements_of_turns_that_run(database_url: str) -> None:
    async with world(database_url, connections=1) as w:
        await w.admit(await w.session())
        polls = Database(database_url, connections=1)
        await polls.open()
        try:
            queue = PostgresTurnQueue(w.database, polls=polls)
            async with w.database.connection("a turn that runs"):
                [claim] = await queue.claim(ClaimRequest(WorkerId("w1"), 1))
            assert claim.attempts == 0
        finally:
            await polls.close()
