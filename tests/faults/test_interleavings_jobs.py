"""Lost leases of background items: whose loss counts a try, whose is forgiven; with the mutation proofs."""

from __future__ import annotations

import pytest

from shared.domain.ids import OwnerId, WorkerId
from shared.jobs.postgres import PostgresJobQueue
from shared.jobs.queue import ALIVE_LOSSES_MAX, JobClaim
from tests.faults.world import World, world
from tests.support.mutations import Mutation, Scenario, mutation, prove

#: Silence of a lease says that a process is gone; the test's server has been up for longer.
LEASE_S = 0.2
HOLDER = WorkerId("holder")
LIVES = (
    "INSERT INTO workers (id, host, pid, queues, revisions, capacity, version, last_seen)"
    " VALUES (%s, 'h', 1, '{}', '{}', 1, '1', clock_timestamp() + interval '1 day')"
)


async def lose(w: World) -> list[JobClaim]:
    """Let the item's lease pass and claim."""
    await w.rows("UPDATE jobs SET expires_at = clock_timestamp() - interval '1 s' WHERE status = 'running'")
    jobs = PostgresJobQueue(w.database)
    return list(await jobs.claim("index", HOLDER, places=1, lease_s=LEASE_S))


async def held(w: World) -> None:
    """Owe an item and hold it."""
    jobs = PostgresJobQueue(w.database)
    await jobs.owe("index", "item", OwnerId("ann"))
    assert len(await jobs.claim("index", HOLDER, places=1, lease_s=60.0)) == 1


async def scenario_live_holder_that_always_loses(url: str) -> None:
    """Its database was away, or it was stopped: ten losses in a row are free, then each counts."""
    async with world(url) as w:
        await w.rows(LIVES, HOLDER)
        await held(w)
        for _ in range(ALIVE_LOSSES_MAX):
            [claim] = await lose(w)
            assert claim.attempts == 0
        [claim] = await lose(w)
        assert claim.attempts == 1


async def scenario_holder_that_is_gone(url: str) -> None:
    """Each of its losses counts, and the fifth parks the item."""
    async with world(url) as w:
        await held(w)
        for tries in range(1, 5):
            [claim] = await lose(w)
            assert claim.attempts == tries
        assert await lose(w) == []
        [row] = await w.rows("SELECT status, attempts, last_failure, token, lease_owner FROM jobs")
        assert row == {
            "status": "parked",
            "attempts": 5,
            "last_failure": "lease lost",
            "token": None,
            "lease_owner": None,
        }


async def scenario_renewal_under_way(url: str) -> None:
    """A renewal that has the row locked as a claim looks is neither waited for nor undone."""
    async with world(url) as w:
        await held(w)
        await w.rows("UPDATE jobs SET expires_at = clock_timestamp() - interval '1 s'")
        jobs = PostgresJobQueue(w.database)
        async with w.transaction() as renewal:
            await renewal.execute("UPDATE jobs SET expires_at = clock_timestamp() + interval '1 h'")
            assert await jobs.claim("index", WorkerId("other"), places=1, lease_s=LEASE_S) == []
        assert await jobs.claim("index", WorkerId("other"), places=1, lease_s=LEASE_S) == []
        [row] = await w.rows("SELECT lease_owner, epoch, attempts FROM jobs")
        assert row == {"lease_owner": HOLDER, "epoch": 1, "attempts": 0}


SCENARIOS = (
    scenario_live_holder_that_always_loses,
    scenario_holder_that_is_gone,
    scenario_renewal_under_way,
)
TAKE_OVER = "job_take_over_v1"
PROOFS: list[tuple[Scenario, Mutation]] = [
    (
        scenario_live_holder_that_always_loses,
        mutation("no loss is free", TAKE_OVER, ("(g.gone OR l.alive_losses >= 10)::int", "1")),
    ),
    (
        scenario_live_holder_that_always_loses,
        mutation("every loss of the living is free", TAKE_OVER, (" OR l.alive_losses >= 10", "")),
    ),
    (
        scenario_live_holder_that_always_loses,
        mutation(
            "whoever loses is gone",
            TAKE_OVER,
            ("WHERE w.id = l.lease_owner AND w.last_seen > v_silent_since", "WHERE false"),
        ),
    ),
    (
        scenario_holder_that_is_gone,
        mutation("nobody is ever gone", TAKE_OVER, ("pg_postmaster_start_time() < v_silent_since", "false")),
    ),
    (
        scenario_holder_that_is_gone,
        mutation("nothing is parked", TAKE_OVER, ("lost.attempts + lost.n >= p_attempts_max", "false")),
    ),
    (
        scenario_renewal_under_way,
        mutation(
            "a lease that has not passed is taken",
            TAKE_OVER,
            ("AND j.status = 'running' AND j.expires_at < v_now", "AND j.status = 'running'"),
        ),
    ),
]


@pytest.mark.behaviour("DST-13", "DST-20")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__.removeprefix("scenario_"))
async def test_lost_leases_of_items_are_judged_by_whether_their_holder_lives(
    database_url: str, scenario: Scenario
) -> None:
    await scenario(database_url)


@pytest.mark.mutation
@pytest.mark.parametrize(("scenario", "change"), PROOFS, ids=[change.name for _, change in PROOFS])
async def test_the_scenario_fails_without_its_rule(
    database_url: str, scenario: Scenario, change: Mutation
) -> None:
    await prove(database_url, scenario, change)
