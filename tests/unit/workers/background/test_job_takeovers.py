"""What a process of a background pool takes over from others, and when it leaves it alone."""

from __future__ import annotations

import asyncio

import pytest

from shared.domain.errors import StoreUnavailable
from shared.domain.ids import WorkerId
from shared.jobs.inproc import JobTable
from tests.support.job_bench import Bench, LinedQueue, failing
from tests.support.virtual_time import loop_clock, virtual_time


@pytest.mark.behaviour("DST-13")
@pytest.mark.parametrize("what", ["claim", "renew"])
@virtual_time
async def test_a_process_that_was_without_the_database_takes_nothing_over_for_one_lease(what: str) -> None:
    """Everyone looks gone to it; what its neighbours hold would be counted as their deaths."""
    queue = LinedQueue(JobTable(loop_clock))
    bench = Bench(failing(), queue=queue)
    await bench.owe()
    [lost] = await queue.claim(bench.policy.pool, WorkerId("other"), places=1, lease_s=1.0)
    await bench.owe("mine")
    await bench.claim()
    await asyncio.sleep(2.0)
    queue.away = {what}
    if what == "claim":
        with pytest.raises(StoreUnavailable):
            await bench.server.claim(1, ())
    else:
        renewing = asyncio.create_task(bench.server.keeper.renew_for_ever())
        await asyncio.sleep(5.1)
        renewing.cancel()
    queue.away = set()
    assert await bench.server.claim(1, ()) == []
    await asyncio.sleep(bench.policy.lease_s + 0.1)
    [held] = await bench.server.claim(1, ())
    assert (held.claim.job_id, held.claim.lost) == (lost.job_id, True)
