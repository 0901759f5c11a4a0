"""The activity store in memory, for tests and trials without a server: the twin of the one on Postgres."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from memory_pipeline.activity.port import ActivityProgress, ActivityView
from memory_pipeline.activity.work import PreparedActivity, ProcessorKey, encode_pending
from memory_pipeline.remembering.intents import decode_value
from shared.domain.errors import FenceLost, ProcessingRefused
from shared.domain.ids import OwnerId, SessionId
from shared.jobs.queue import JobClaim
from shared.leases.fence import Fence


@dataclass(slots=True)
class _Row:
    job_id: str
    key: ProcessorKey
    session_id: SessionId
    owner: OwnerId
    through_seq: int = 0
    pending: str | None = None
    advanced_at: datetime | None = None
    status: str = "ready"
    again: bool = False
    fence: Fence | None = None
    epoch: int = 0


class InprocActivityStore:
    """Implements :class:`memory_pipeline.activity.port.ActivityStore`; ``owe``, ``claim`` and ``settle`` stand for the queue."""

    def __init__(self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._clock = clock
        self._active: set[ProcessorKey] = set()
        self._rows: dict[str, _Row] = {}
        self._jobs = itertools.count(1)

    def owe(self, session_id: SessionId, owner: OwnerId) -> Sequence[str]:
        """Say that a session has new records; return the job of every active processor."""
        owed: list[str] = []
        for key in sorted(self._active, key=lambda key: (key.processor, key.version)):
            found = [r for r in self._rows.values() if (r.key, r.session_id) == (key, session_id)]
            row = found[0] if found else _Row(f"job-{next(self._jobs)}", key, session_id, owner)
            self._rows[row.job_id] = row
            row.again = row.again or row.status == "running"
            row.status = "ready" if row.status == "idle" else row.status
            owed.append(row.job_id)
        return owed

    def claim(self, job_id: str) -> JobClaim:
        """Hand a job to a new holder; any earlier holder's fence is refused from now on."""
        row = self._rows[job_id]
        row.epoch += 1
        row.fence, row.status, row.again = Fence(row.epoch, uuid4()), "running", False
        return JobClaim("activity", job_id, row.owner, row.fence, attempts=0, lost=False)

    def settle(self, claim: JobClaim) -> str:
        """Let go of a job that is done for now; return its status."""
        row = self._rows[claim.job_id]
        row.status, row.again, row.fence = "ready" if row.again else "idle", False, None
        return row.status

    async def load(self, job_id: str) -> ActivityProgress | None:
        """See the port."""
        row = self._rows.get(job_id)
        if row is None:
            return None
        return ActivityProgress(job_id, row.key, row.session_id, row.owner, row.through_seq, _pending_of(row))

    async def pin(self, claim: JobClaim, through_seq: int, prepared: PreparedActivity) -> None:
        """See the port."""
        text = encode_pending(prepared)
        row = self._held(claim, through_seq)
        if row.pending not in (None, text):
            raise ProcessingRefused(
                "other work is pinned", reason="work-conflict", session=prepared.session_id, seq=prepared.seq
            )
        row.pending = text

    async def advance(
        self, claim: JobClaim, through_seq: int, to_seq: int, prepared: PreparedActivity | None
    ) -> None:
        """See the port."""
        row = self._held(claim, through_seq)
        if row.pending != (None if prepared is None else encode_pending(prepared)):
            raise FenceLost("the item is another worker's", job=claim.job_id)
        row.through_seq, row.pending, row.advanced_at = to_seq, None, self._clock()

    async def owe_again(self, claim: JobClaim) -> None:
        """See the port."""
        row = self._rows[claim.job_id]
        row.again = row.again or row.status == "running"

    async def register(self, key: ProcessorKey) -> None:
        """See the port."""
        self._active.add(key)

    async def retire(self, key: ProcessorKey) -> None:
        """See the port."""
        self._active.discard(key)

    async def inspect(self, owner: OwnerId, session_id: SessionId) -> Sequence[ActivityView]:
        """See the port."""
        rows = [r for r in self._rows.values() if (r.owner, r.session_id) == (owner, session_id)]
        rows.sort(key=lambda row: (row.key.processor, row.key.version))
        return [_view_of(row) for row in rows]

    def _held(self, claim: JobClaim, through_seq: int) -> _Row:
        row = self._rows[claim.job_id]
        if row.fence != claim.fence or row.through_seq != through_seq:
            raise FenceLost("the item is another worker's", job=claim.job_id)
        return row


def _pending_of(row: _Row) -> PreparedActivity | None:
    return None if row.pending is None else decode_value(PreparedActivity, row.pending)


def _view_of(row: _Row) -> ActivityView:
    pending = _pending_of(row)
    return ActivityView(
        key=row.key,
        session_id=row.session_id,
        through_seq=row.through_seq,
        pending_seq=None if pending is None else pending.seq,
        advanced_at=row.advanced_at,
        status=row.status,
        attempts=0,
        last_failure=None,
    )
