"""The remembering store in memory, for tests and trials without a server: the twin of the one on Postgres."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import uuid4

from memory_pipeline.remembering.intents import (
    Checkpoint,
    Completed,
    Intent,
    Pending,
    Progress,
    check_checkpoint,
)
from memory_pipeline.remembering.port import INTENTS_PER_OWNER, LIST_MAX, Admitted, IntentView
from shared.domain.errors import FenceLost, IntentConflict, IntentMissing, IntentsFull
from shared.domain.ids import OwnerId
from shared.jobs.queue import JobClaim
from shared.leases.fence import Fence


@dataclass(slots=True)
class _Row:
    owner: OwnerId
    intent: Intent
    job_id: str
    created_at: datetime
    updated_at: datetime
    version: int = 0
    progress: Progress = field(default_factory=Pending)
    fence: Fence | None = None
    epoch: int = 0


class InprocRememberingStore:
    """Implements :class:`memory_pipeline.remembering.port.RememberingStore`; ``claim`` stands for the job queue."""

    def __init__(
        self,
        *,
        intents_per_owner: int = INTENTS_PER_OWNER,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._intents_per_owner = intents_per_owner
        self._clock = clock
        self._rows: dict[tuple[OwnerId, str], _Row] = {}
        self._by_job: dict[str, _Row] = {}
        self._jobs = itertools.count(1)

    def claim(self, job_id: str) -> JobClaim:
        """Hand a job to a new holder; any earlier holder's fence is refused from now on."""
        row = self._by_job[job_id]
        row.epoch += 1
        row.fence = Fence(row.epoch, uuid4())
        return JobClaim("remember", job_id, row.owner, row.fence, attempts=0, lost=False)

    async def admit(self, intent: Intent, owner: OwnerId) -> Admitted:
        """See the port."""
        known = self._rows.get((owner, intent.id))
        if known is not None:
            if known.intent != intent:
                raise IntentConflict("the intent's id was used with other content", intent=intent.id)
            return Admitted(intent.id, "duplicate", known.job_id)
        owed = [r for r in self._rows.values() if r.owner == owner and not isinstance(r.progress, Completed)]
        if len(owed) >= self._intents_per_owner:
            raise IntentsFull(
                f"{self._intents_per_owner} intents are unfinished", limit=self._intents_per_owner
            )
        now = self._clock()
        row = _Row(owner, intent, f"job-{next(self._jobs)}", now, now)
        self._rows[owner, intent.id] = self._by_job[row.job_id] = row
        return Admitted(intent.id, "queued", row.job_id)

    async def load(self, job_id: str) -> Checkpoint | None:
        """See the port."""
        row = self._by_job.get(job_id)
        if row is None:
            return None
        return check_checkpoint(Checkpoint(job_id, row.owner, row.intent, row.version, row.progress))

    async def save(self, claim: JobClaim, checkpoint: Checkpoint, progress: Progress) -> Checkpoint:
        """See the port."""
        row = self._by_job[checkpoint.job_id]
        if row.fence != claim.fence or row.version != checkpoint.version:
            raise FenceLost("the intent is another worker's", intent=row.intent.id)
        row.version, row.progress, row.updated_at = row.version + 1, progress, self._clock()
        return Checkpoint(row.job_id, row.owner, row.intent, row.version, progress)

    async def get(self, owner: OwnerId, intent_id: str) -> IntentView:
        """See the port."""
        row = self._rows.get((owner, intent_id))
        if row is None:
            raise IntentMissing("no such intent", intent=intent_id)
        return _view_of(row)

    async def list(
        self, owner: OwnerId, *, limit: int = 50, before: tuple[datetime, str] | None = None
    ) -> Sequence[IntentView]:
        """See the port."""
        rows = [row for row in self._rows.values() if row.owner == owner]
        rows = [row for row in rows if before is None or (row.created_at, row.intent.id) < before]
        rows.sort(key=lambda row: (row.created_at, row.intent.id), reverse=True)
        return [_view_of(row) for row in rows[: min(limit, LIST_MAX)]]


def _view_of(row: _Row) -> IntentView:
    done = row.progress if isinstance(row.progress, Completed) else None
    return IntentView(
        intent=row.intent,
        status="completed" if done is not None else "running" if row.fence is not None else "queued",
        outcome=done.outcome if done is not None else None,
        why=done.why if done is not None else None,
        attempts=0,
        last_failure=None,
        created_at=row.created_at,
        updated_at=row.updated_at,
        completed_at=row.updated_at if done is not None else None,
    )
