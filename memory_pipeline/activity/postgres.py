"""The activity store on Postgres: one statement, one transaction, one round trip an operation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memory_pipeline.activity.port import ActivityProgress, ActivityView
from memory_pipeline.activity.work import PreparedActivity, ProcessorKey, encode_pending
from memory_pipeline.remembering.intents import decode_value
from shared.database.pool import Database, Row
from shared.database.statements import load_statements
from shared.domain.errors import FenceLost, ProcessingRefused
from shared.domain.ids import OwnerId, SessionId
from shared.jobs.queue import JobClaim

_SQL = load_statements(Path(__file__).with_name("queries.sql"))


class PostgresActivityStore:
    """Implements :class:`memory_pipeline.activity.port.ActivityStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def load(self, job_id: str) -> ActivityProgress | None:
        """See the port."""
        rows = await self._db.read("activity.load", _SQL["load"], {"job": job_id})
        if not rows:
            return None
        [row] = rows
        return ActivityProgress(
            job_id,
            ProcessorKey(row["processor"], row["version"]),
            SessionId(row["session_id"]),
            OwnerId(row["owner"]),
            row["through_seq"],
            _pending_of(row),
        )

    async def pin(self, claim: JobClaim, through_seq: int, prepared: PreparedActivity) -> None:
        """See the port."""
        params = _fenced(claim) | {"through": through_seq, "pending": encode_pending(prepared)}
        [row] = await self._db.call("activity.pin", _SQL["pin"], params, repeatable=True)
        if row["result"] == "work-conflict":
            raise ProcessingRefused(
                "other work is pinned", reason="work-conflict", session=prepared.session_id, seq=prepared.seq
            )
        if row["result"] != "pinned":
            raise FenceLost("the item is another worker's", job=claim.job_id)

    async def advance(
        self, claim: JobClaim, through_seq: int, to_seq: int, prepared: PreparedActivity | None
    ) -> None:
        """See the port. Not repeated by itself: after a lost answer the next claim reads the new cursor."""
        pending = None if prepared is None else encode_pending(prepared)
        params = _fenced(claim) | {"through": through_seq, "to": to_seq, "pending": pending}
        [row] = await self._db.call("activity.advance", _SQL["advance"], params)
        if row["result"] != "advanced":
            raise FenceLost("the item is another worker's", job=claim.job_id)

    async def owe_again(self, claim: JobClaim) -> None:
        """See the port."""
        params = {"job": claim.job_id, "owner": claim.owner}
        await self._db.call("activity.owe", _SQL["owe_again"], params, repeatable=True)

    async def register(self, key: ProcessorKey) -> None:
        """See the port."""
        await self._db.call("activity.register", _SQL["register"], _named(key), repeatable=True)

    async def retire(self, key: ProcessorKey) -> None:
        """See the port."""
        await self._db.call("activity.retire", _SQL["retire"], _named(key), repeatable=True)

    async def inspect(self, owner: OwnerId, session_id: SessionId) -> Sequence[ActivityView]:
        """See the port."""
        params = {"owner": owner, "session": session_id}
        return [_view_of(row) for row in await self._db.read("activity.inspect", _SQL["inspect"], params)]


def _fenced(claim: JobClaim) -> dict[str, Any]:
    return {"job": claim.job_id, "epoch": claim.fence.epoch, "token": claim.fence.token}


def _named(key: ProcessorKey) -> dict[str, Any]:
    return {"processor": key.processor, "version": key.version}


def _pending_of(row: Row) -> PreparedActivity | None:
    return None if row["pending"] is None else decode_value(PreparedActivity, row["pending"])


def _view_of(row: Row) -> ActivityView:
    pending = _pending_of(row)
    return ActivityView(
        key=ProcessorKey(row["processor"], row["version"]),
        session_id=SessionId(row["session_id"]),
        through_seq=row["through_seq"],
        pending_seq=None if pending is None else pending.seq,
        advanced_at=row["advanced_at"],
        status=row["status"],
        attempts=row["attempts"],
        last_failure=row["last_failure"],
    )
