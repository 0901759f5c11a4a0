"""The kit of the background pools' items on the twin in memory and on Postgres, and on twins that are broken."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from shared.conformance import ConformanceFailure, JobQueueSubject, job_queue_conformance
from shared.domain.ids import OwnerId, WorkerId
from shared.jobs.inproc import InprocJobQueue, JobTable
from shared.jobs.postgres import PostgresJobQueue
from shared.jobs.queue import How, JobClaim, JobQueue, JobRenewal, Pool, Settled
from shared.leases.fence import Fence
from tests.conformance.kits import cited_by, names_of, proved_by, run_check
from tests.conformance.subjects import InprocWorld, PostgresWorld


class InprocJobQueueSubject(InprocWorld):
    """One table in memory; ``adapter`` is what is put to the kit."""

    def __init__(self, adapter: type[InprocJobQueue] = InprocJobQueue) -> None:
        super().__init__(tick_s=1e-6)
        self.table = JobTable(self.clock)
        self._adapter = adapter

    async def open(self) -> JobQueue:
        return self._adapter(self.table)

    async def see(self, worker: WorkerId) -> None:
        self.table.seen[worker] = self.clock() + timedelta(days=1)


class PostgresJobQueueSubject(PostgresWorld):
    """One database; time passes for the items of this subject's owners."""

    async def open(self) -> JobQueue:
        return PostgresJobQueue(await self.database())

    async def see(self, worker: WorkerId) -> None:
        statement = (
            "INSERT INTO workers (id, host, pid, queues, revisions, capacity, version, last_seen)"
            " VALUES (%s, 'host', 1, '{}', '{}', 1, '1', clock_timestamp() + interval '1 day')"
        )
        await self._execute(statement, [worker])

    async def advance(self, seconds: float) -> None:
        statement = (
            "UPDATE jobs SET due_at = due_at - %s, expires_at = expires_at - %s WHERE owner = ANY (%s)"
        )
        by = timedelta(seconds=seconds)
        await self._execute(statement, [by, by, self.given["owners"]])


CHECKS = job_queue_conformance(InprocJobQueueSubject())


@pytest.fixture
async def job_queue_subject(backend_url: str | None) -> AsyncIterator[JobQueueSubject]:
    """A queue of background items to run a check on."""
    if backend_url is None:
        yield InprocJobQueueSubject()
        return
    async with PostgresJobQueueSubject(backend_url) as subject:
        yield subject


@pytest.mark.behaviour("DST-06", "DST-09", "DST-12", "DST-13", "DST-14", "DST-20")
@pytest.mark.parametrize("name", names_of(CHECKS))
async def test_the_job_queue_keeps_its_contract(name: str, job_queue_subject: JobQueueSubject) -> None:
    await run_check(job_queue_conformance(job_queue_subject), name)


def test_the_cited_rows_are_those_that_the_checks_prove() -> None:
    assert cited_by(test_the_job_queue_keeps_its_contract) == proved_by(CHECKS)


# --- a kit that passes everything proves nothing ---------------------------------------------------------------------


class Unfenced(InprocJobQueue):
    """Settles for whoever asks."""

    async def settle(self, claim: JobClaim, how: How, **given: Any) -> Settled:
        row = self._table.rows[claim.pool, claim.job_id]
        if row.token is not None:
            claim = replace(claim, fence=Fence(row.epoch, row.token))
        return await super().settle(claim, how, **given)


class Forgetful(InprocJobQueue):
    """Forgets what came while an item was held."""

    async def settle(self, claim: JobClaim, how: How, **given: Any) -> Settled:
        self._table.rows[claim.pool, claim.job_id].again = False
        return await super().settle(claim, how, **given)


class Greedy(InprocJobQueue):
    """Gives every place to whoever was owed first."""

    def _pick_due(self, pool: Pool, places: int, cursor: str, now: Any) -> list[Any]:
        ready = sorted(self._table.of(pool, "ready"), key=lambda row: (row.due_at, row.id))
        return [row for row in ready if row.due_at <= now][:places]


class Stubborn(InprocJobQueue):
    """Counts every wait as a try."""

    async def settle(self, claim: JobClaim, how: How, **given: Any) -> Settled:
        return await super().settle(claim, "retry" if how == "wait" else how, **given)


class Patient(InprocJobQueue):
    """Never parks what takes its workers with it."""

    def _take_lost(self, *given: Any) -> list[Any]:
        self._attempts_max = 1_000
        return super()._take_lost(*given)


class Strict(InprocJobQueue):
    """Counts a try for every lost lease, whoever lives."""

    def _is_gone(self, *given: Any) -> bool:
        return True


class Hasty(InprocJobQueue):
    """Takes over whatever it was told."""

    async def claim(self, pool: Pool, worker: WorkerId, **given: Any) -> Sequence[JobClaim]:
        return await super().claim(pool, worker, **given | {"takeovers": True})


class Late(InprocJobQueue):
    """Renews a lease that passed."""

    async def renew(self, pool: Pool, fences: Mapping[str, Fence], lease_s: float) -> JobRenewal:
        for job_id, fence in fences.items():
            row = self._table.rows.get((pool, job_id))
            if row is not None and row.token == fence.token:
                row.expires_at = max(row.expires_at, self._table.now() + timedelta(seconds=lease_s))
        return await super().renew(pool, fences, lease_s)


class Reviving(InprocJobQueue):
    """Takes an item that is owed for one that was put back."""

    async def owe(self, pool: Pool, job_id: str, owner: OwnerId) -> None:
        await self.retry(pool, job_id)
        await super().owe(pool, job_id, owner)


BROKEN: Sequence[tuple[type[InprocJobQueue], str]] = [
    (Unfenced, "an epoch alone or a token alone"),
    (Forgetful, "owed again"),
    (Greedy, "deep backlog"),
    (Greedy, "in rotation"),
    (Stubborn, "waiting for what is away"),
    (Patient, "takes its worker with it"),
    (Strict, "a holder that lives"),
    (Hasty, "takes over nothing"),
    (Late, "a lease that passed settles"),
    (Reviving, "a parked item stays parked"),
]


@pytest.mark.parametrize(("adapter", "about"), BROKEN, ids=[f"{a.__name__}-{b[:12]}" for a, b in BROKEN])
async def test_a_broken_queue_fails_the_check_that_is_about_its_fault(
    adapter: type[InprocJobQueue], about: str
) -> None:
    checks = job_queue_conformance(InprocJobQueueSubject(adapter))
    [check] = [check for check in checks if about in check.name]
    with pytest.raises(ConformanceFailure, match=about):
        await check.run()
