"""The background pools' items in this process's memory: the twin of the ones on Postgres, for tests and trials."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID, uuid4

from shared.domain.ids import OwnerId, WorkerId
from shared.jobs.queue import (
    ALIVE_LOSSES_MAX,
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
from shared.leases.inproc import Clock, utc_now

OWNERS_PER_CLAIM = 16


@dataclass(slots=True, kw_only=True)
class JobRow:
    """An item as stored."""

    id: str
    owner: OwnerId
    due_at: datetime
    status: Literal["ready", "running", "idle", "parked"] = "ready"
    again: bool = False
    attempts: int = 0
    waits: int = 0
    last_failure: str | None = None
    epoch: int = 0
    token: UUID | None = None
    holder: WorkerId | None = None
    alive_losses: int = 0
    expires_at: datetime = datetime.max
    settled_at: datetime = datetime.min

    def let_go(self, status: Literal["ready", "idle", "parked"], now: datetime) -> None:
        """End the holding; what came meanwhile is in ``status``."""
        self.status, self.again, self.token, self.settled_at = status, False, None, now
        self.holder, self.alive_losses = None, 0


@dataclass(slots=True)
class JobTable:
    """The rows that several :class:`InprocJobQueue` share, and the clock that judges them.

    ``seen``: when each worker process was last heard of.
    """

    now: Clock = utc_now
    rows: dict[tuple[Pool, str], JobRow] = field(default_factory=dict)
    seen: dict[WorkerId, datetime] = field(default_factory=dict)

    def of(self, pool: Pool, *statuses: str) -> list[JobRow]:
        """Return a pool's rows in some statuses."""
        return [row for (where, _), row in self.rows.items() if where == pool and row.status in statuses]


class InprocJobQueue:
    """Implements :class:`shared.jobs.queue.JobQueue` over a :class:`JobTable`.

    It shows results, order and fences, not locks. Every operation lets other tasks run once before it acts, as one
    over a network would, and is then atomic.
    """

    def __init__(self, table: JobTable, *, attempts_max: int = ATTEMPTS_MAX) -> None:
        self._table = table
        self._attempts_max = attempts_max

    async def owe(self, pool: Pool, job_id: str, owner: OwnerId) -> None:
        """See the port."""
        now = await self._now()
        row = self._table.rows.setdefault((pool, job_id), JobRow(id=job_id, owner=owner, due_at=now))
        if row.status == "idle":
            row.status, row.due_at, row.attempts = "ready", now, 0
        row.again = row.again or row.status == "running"

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
        now = await self._now()
        lost = self._take_lost(pool, places, now, lease_s) if takeovers else []
        due = self._pick_due(pool, places - len(lost), cursor, now)
        for row in due:
            row.status, row.again = "running", False
        for row in (*lost, *due):
            row.epoch, row.token, row.holder = row.epoch + 1, uuid4(), worker
            row.expires_at = now + timedelta(seconds=lease_s)
        return [
            JobClaim(pool, row.id, row.owner, _fence(row), row.attempts, n < len(lost), row.waits)
            for n, row in enumerate((*lost, *due))
        ]

    def _take_lost(self, pool: Pool, places: int, now: datetime, lease_s: float) -> list[JobRow]:
        """Take over what was lost: a try for each holder that is gone; the last try parks its item."""
        passed = sorted(
            (row for row in self._table.of(pool, "running") if row.expires_at < now),
            key=lambda row: row.expires_at,
        )
        taken = []
        for row in passed[:places]:
            gone = self._is_gone(row.holder, now - timedelta(seconds=lease_s))
            counted = gone or row.alive_losses >= ALIVE_LOSSES_MAX
            row.attempts += counted
            row.alive_losses = 0 if gone else row.alive_losses + 1
            if counted and row.attempts >= self._attempts_max:
                row.last_failure = row.last_failure or "lease lost"
                row.let_go("parked", now)
            else:
                taken.append(row)
        return taken

    def _is_gone(self, holder: WorkerId | None, silent_since: datetime) -> bool:
        heard = None if holder is None else self._table.seen.get(holder)
        return heard is None or heard <= silent_since

    def _pick_due(self, pool: Pool, places: int, cursor: str, now: datetime) -> list[JobRow]:
        """Return an even share of each owner in rotation, then whatever fills the places."""
        due: dict[str, list[JobRow]] = {}
        for row in sorted(self._table.of(pool, "ready"), key=lambda row: (row.due_at, row.id)):
            if row.due_at <= now:
                due.setdefault(row.owner, []).append(row)
        owners = sorted(due, key=lambda owner: (owner <= cursor, owner))[:OWNERS_PER_CLAIM]
        picked: list[JobRow] = []
        for share in (True, False):
            for n, owner in enumerate(owners):
                left = places - len(picked)
                quota = -(-left // (len(owners) - n)) if share else left
                picked += due[owner][:quota]
                del due[owner][:quota]
        return picked

    async def renew(self, pool: Pool, fences: Mapping[str, Fence], lease_s: float) -> JobRenewal:
        """See the port."""
        now = await self._now()
        held = {
            job_id: row
            for job_id, fence in fences.items()
            if (row := self._held(pool, job_id, now)) is not None and row.token == fence.token
        }
        for row in held.values():
            row.expires_at = now + timedelta(seconds=lease_s)
        return JobRenewal(frozenset(held), frozenset(), frozenset(fences.keys() - held.keys()))

    async def settle(
        self, claim: JobClaim, how: How, *, due_in_s: float = 0.0, failure: str | None = None
    ) -> Settled:
        """See the port."""
        now = await self._now()
        row = self._held(claim.pool, claim.job_id, now)
        if row is None or _fence(row) != claim.fence:
            return "lost"
        status = self._status_after(row, how)
        row.attempts += how in ("retry", "park")
        if how == "done":
            row.attempts = 0
        if how != "release":
            row.waits = row.waits + 1 if how == "wait" else 0
        row.last_failure = row.last_failure if failure is None else failure
        row.due_at = now + timedelta(seconds=due_in_s if status == "ready" else 0)
        row.let_go(status, now)
        return status

    def _status_after(self, row: JobRow, how: How) -> Literal["ready", "idle", "parked"]:
        if how == "done":
            return "ready" if row.again else "idle"
        spent = how == "retry" and row.attempts + 1 >= self._attempts_max
        return "parked" if spent or how == "park" else "ready"

    async def backlog(self, pool: Pool) -> JobBacklog:
        """See the port."""
        now = await self._now()
        ready, running, parked = (self._table.of(pool, s) for s in ("ready", "running", "parked"))
        oldest = max(((now - row.due_at).total_seconds() for row in ready), default=0.0)
        return JobBacklog(len(ready), len(running), len(parked), max(0.0, oldest))

    async def has_overdue(self, pool: Pool, older_than_s: float) -> bool:
        """See the port."""
        before = await self._now() - timedelta(seconds=older_than_s)
        return any(row.due_at < before for row in self._table.of(pool, "ready"))

    async def parked(self, pool: Pool, *, limit: int = 100) -> Sequence[ParkedJob]:
        """See the port."""
        await self._now()
        rows = sorted(self._table.of(pool, "parked"), key=lambda row: row.settled_at, reverse=True)
        return [ParkedJob(pool, r.id, r.owner, r.attempts, r.last_failure) for r in rows[:limit]]

    async def retry(self, pool: Pool, job_id: str) -> bool:
        """See the port."""
        now = await self._now()
        row = self._table.rows.get((pool, job_id))
        if row is None or row.status != "parked":
            return False
        row.status, row.attempts, row.alive_losses, row.due_at = "ready", 0, 0, now
        return True

    async def _now(self) -> datetime:
        await asyncio.sleep(0)
        return self._table.now()

    def _held(self, pool: Pool, job_id: str, now: datetime) -> JobRow | None:
        row = self._table.rows.get((pool, job_id))
        return row if row is not None and row.status == "running" and row.expires_at >= now else None


def _fence(row: JobRow) -> Fence:
    return Fence(row.epoch, row.token or UUID(int=0))
