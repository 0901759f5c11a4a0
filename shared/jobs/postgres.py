"""The background pools' items on Postgres: one statement, one transaction, one round trip an operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from shared.database.pool import Database
from shared.database.statements import load_statements
from shared.domain.ids import OwnerId, WorkerId
from shared.jobs.queue import (
    ATTEMPTS_MAX,
    How,
    JobBacklog,
    JobClaim,
    JobRenewal,
    ParkedJob,
    Pool,
    Settled,
)
from shared.leases.fence import Fence

_SQL = load_statements(Path(__file__).with_name("queries.sql"))


class PostgresJobQueue:
    """Implements :class:`shared.jobs.queue.JobQueue`. ``polls`` is the small pool for renewals."""

    def __init__(
        self, database: Database, *, polls: Database | None = None, attempts_max: int = ATTEMPTS_MAX
    ) -> None:
        self._db = database
        self._polls = polls if polls is not None else database
        self._attempts_max = attempts_max

    async def owe(self, pool: Pool, job_id: str, owner: OwnerId) -> None:
        """See the port."""
        params = {"pool": pool, "id": job_id, "owner": owner}
        await self._db.call("job.owe", _SQL["owe"], params, repeatable=True)

    async def claim(
        self,
        pool: Pool,
        worker: WorkerId,
        *,
        places: int,
        lease_s: float,
        cursor: str = "",
        takeovers: bool = True,
    ) -> Sequence[JobClaim]:
        """See the port."""
        params = {
            "pool": pool,
            "worker": worker,
            "places": places,
            "lease_s": lease_s,
            "cursor": cursor,
            "attempts_max": self._attempts_max,
            "takeovers": takeovers,
        }
        rows = await self._db.call(f"{pool}.claim", _SQL["claim"], params)
        return [
            JobClaim(
                pool,
                row["job_id"],
                OwnerId(row["owner"]),
                Fence(row["epoch"], row["token"]),
                row["attempts"],
                row["lost"],
                row["waits"],
            )
            for row in rows
        ]

    async def renew(self, pool: Pool, fences: Mapping[str, Fence], lease_s: float) -> JobRenewal:
        """See the port."""
        params = {
            "pool": pool,
            "ids": list(fences),
            "tokens": [f.token for f in fences.values()],
            "lease_s": lease_s,
        }
        rows = await self._polls.call(f"{pool}.renew", _SQL["renew"], params)
        by_result: dict[str, set[str]] = {"renewed": set(), "skipped": set(), "lost": set()}
        for row in rows:
            by_result[row["result"]].add(row["job_id"])
        return JobRenewal(*(frozenset(by_result[name]) for name in ("renewed", "skipped", "lost")))

    async def settle(
        self, claim: JobClaim, how: How, *, due_in_s: float = 0.0, failure: str | None = None
    ) -> Settled:
        """See the port."""
        params = {
            "pool": claim.pool,
            "id": claim.job_id,
            "epoch": claim.fence.epoch,
            "token": claim.fence.token,
            "how": how,
            "due_in_s": due_in_s,
            "failure": failure,
            "attempts_max": self._attempts_max,
        }
        [row] = await self._db.call(f"{claim.pool}.settle", _SQL["settle"], params, repeatable=True)
        status: Settled = row["status"]
        return status

    async def backlog(self, pool: Pool) -> JobBacklog:
        """See the port."""
        [row] = await self._db.read("job.backlog", _SQL["backlog"], {"pool": pool})
        return JobBacklog(row["ready"], row["running"], row["parked"], float(row["oldest_due_s"]))

    async def has_overdue(self, pool: Pool, older_than_s: float) -> bool:
        """See the port."""
        [row] = await self._db.read("job.overdue", _SQL["overdue"], {"pool": pool, "older_s": older_than_s})
        return bool(row["overdue"])

    async def parked(self, pool: Pool, *, limit: int = 100) -> Sequence[ParkedJob]:
        """See the port."""
        rows = await self._db.read("job.parked", _SQL["parked"], {"pool": pool, "limit": limit})
        return [ParkedJob(pool, r["id"], OwnerId(r["owner"]), r["attempts"], r["last_failure"]) for r in rows]

    async def retry(self, pool: Pool, job_id: str) -> bool:
        """See the port."""
        rows = await self._db.call("job.retry", _SQL["retry"], {"pool": pool, "id": job_id}, repeatable=True)
        return bool(rows)
