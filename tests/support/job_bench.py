"""One process of a background pool over a queue in memory, behind a line that is away when told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from shared.domain.errors import StoreUnavailable
from shared.domain.ids import OwnerId, WorkerId
from shared.jobs.inproc import InprocJobQueue, JobRow, JobTable
from shared.jobs.queue import How, JobClaim, JobRenewal, Pool, Settled
from shared.leases.fence import Fence
from shared.leases.watchdog import lease_trusted_for
from tests.support.virtual_time import loop_clock
from workers.background.serving import HeldJob, JobServer, Pass, PoolPolicy

ANN, BOB = OwnerId("ann"), OwnerId("bob")
POLICY = PoolPolicy("remember", lease_s=15.0, deadline_s=60.0, renew_s=5.0)
ACTIVITY = PoolPolicy("activity", lease_s=lease_trusted_for(31.0), deadline_s=30.0)


class LinedQueue(InprocJobQueue):
    """The twin behind a line that is away when told; it notes how items were settled."""

    def __init__(self, table: JobTable) -> None:
        super().__init__(table)
        self.table = table
        self.away: set[str] = set()
        self.settled: list[tuple[str, float, str | None]] = []
        self.cursors: list[str] = []

    async def claim(
        self, pool: Pool, worker: WorkerId, *, cursor: str = "", **how: Any
    ) -> Sequence[JobClaim]:
        self.cursors.append(cursor)
        self._look("claim")
        return await super().claim(pool, worker, cursor=cursor, **how)

    async def renew(self, pool: Pool, fences: Mapping[str, Fence], lease_s: float) -> JobRenewal:
        self._look("renew")
        return await super().renew(pool, fences, lease_s)

    async def settle(
        self, claim: JobClaim, how: How, *, due_in_s: float = 0.0, failure: str | None = None
    ) -> Settled:
        self._look("settle")
        self.settled.append((how, due_in_s, failure))
        return await super().settle(claim, how, due_in_s=due_in_s, failure=failure)

    def _look(self, what: str) -> None:
        if what in self.away:
            raise StoreUnavailable("the database cannot be reached")


class Bench:
    """One process of a pool over a queue in memory; ``does`` is what a pass does."""

    def __init__(self, does: Pass, *, policy: PoolPolicy = POLICY, queue: LinedQueue | None = None) -> None:
        self.policy = policy
        self.queue = queue or LinedQueue(JobTable(loop_clock))
        self.passes: list[str] = []
        self.does = does
        self.server = JobServer(self.queue, WorkerId("w"), policy, self.run_pass, rng=random.Random(1))

    async def run_pass(self, claim: JobClaim) -> None:
        self.passes.append(claim.job_id)
        await self.does(claim)

    async def owe(self, job_id: str = "job", owner: OwnerId = ANN) -> None:
        await self.queue.owe(self.policy.pool, job_id, owner)

    async def claim(self) -> HeldJob:
        """Claim the one item that is due."""
        [held] = await self.server.claim(1, ())
        return held

    async def run(self) -> None:
        """Claim the one item that is due and run it to its settlement."""
        await self.server.run(await self.claim())

    async def start(self) -> tuple[HeldJob, asyncio.Task[None]]:
        """Claim the one item and run it beside the caller, until its pass waits."""
        held = await self.claim()
        task = asyncio.create_task(self.server.run(held))
        await asyncio.sleep(0.01)
        return held, task

    def row(self, job_id: str = "job") -> JobRow:
        """How an item stands."""
        return self.queue.table.rows[self.policy.pool, job_id]

    @asynccontextmanager
    async def renewing(self) -> AsyncIterator[None]:
        loop = asyncio.create_task(self.server.keeper.renew_for_ever())
        try:
            yield
            assert not loop.done(), "the loop gave up"
        finally:
            loop.cancel()
            await asyncio.wait({loop})


def failing(*errors: Exception) -> Pass:
    """A pass that fails once with each error, then goes well."""
    left = list(errors)

    async def run(claim: JobClaim) -> None:
        if left:
            raise left.pop(0)

    return run
