"""The remembering store on Postgres: one statement, one transaction, one round trip an operation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from memory_pipeline.remembering.intents import (
    Checkpoint,
    Completed,
    Intent,
    Pending,
    Prepared,
    Progress,
    Proposal,
    Proposed,
    check_checkpoint,
    decode_value,
)
from memory_pipeline.remembering.port import (
    INTENTS_PER_OWNER,
    LIST_MAX,
    Admitted,
    IntentView,
    Status,
)
from memory_pipeline.store.documents import Put, Value, decode_document, encode
from shared.database.pool import Database, Row
from shared.database.statements import load_statements
from shared.domain.errors import (
    FenceLost,
    IntentConflict,
    IntentMissing,
    IntentsFull,
    MemoryCorrupt,
    StoreDefect,
)
from shared.domain.ids import OwnerId
from shared.jobs.queue import JobClaim

_SQL = load_statements(Path(__file__).with_name("queries.sql"))

_STATUS_OF_JOB: dict[str | None, Status] = {"running": "running", "parked": "parked"}


class PostgresRememberingStore:
    """Implements :class:`memory_pipeline.remembering.port.RememberingStore`."""

    def __init__(self, database: Database, *, intents_per_owner: int = INTENTS_PER_OWNER) -> None:
        self._db = database
        self._intents_per_owner = intents_per_owner

    async def admit(self, intent: Intent, owner: OwnerId) -> Admitted:
        """See the port."""
        params = {
            "owner": owner,
            "id": intent.id,
            "intent": encode(intent),
            "owner_max": self._intents_per_owner,
        }
        [row] = await self._db.call("intent.admit", _SQL["admit"], params, repeatable=True)
        match row["result"]:
            case "queued" | "duplicate" as status:
                return Admitted(intent.id, status, row["job_id"])
            case "conflict":
                raise IntentConflict("the intent's id was used with other content", intent=intent.id)
            case "full":
                raise IntentsFull(
                    f"{self._intents_per_owner} intents are unfinished", limit=self._intents_per_owner
                )
            case other:
                raise StoreDefect("unknown answer of an admission", answer=other)

    async def load(self, job_id: str) -> Checkpoint | None:
        """See the port."""
        rows = await self._db.read("intent.load", _SQL["load"], {"job": job_id})
        if not rows:
            return None
        [row] = rows
        intent = decode_value(Intent, row["intent"])
        if intent.id != row["id"]:
            raise MemoryCorrupt("a stored intent has another id", intent=row["id"])
        checkpoint = Checkpoint(job_id, OwnerId(row["owner"]), intent, row["version"], _progress_of(row))
        return check_checkpoint(checkpoint)

    async def save(self, claim: JobClaim, checkpoint: Checkpoint, progress: Progress) -> Checkpoint:
        """See the port. Not repeated by itself: after a lost answer the next claim reads what was saved."""
        params = {
            "job": checkpoint.job_id,
            "epoch": claim.fence.epoch,
            "token": claim.fence.token,
            "version": checkpoint.version,
            **_columns_of(progress),
        }
        [row] = await self._db.call("intent.save", _SQL["save"], params)
        if row["result"] != "saved":
            raise FenceLost(
                "the intent is another worker's", intent=checkpoint.intent.id, answer=row["result"]
            )
        return Checkpoint(
            checkpoint.job_id, checkpoint.owner, checkpoint.intent, checkpoint.version + 1, progress
        )

    async def get(self, owner: OwnerId, intent_id: str) -> IntentView:
        """See the port."""
        rows = await self._db.read("intent.get", _SQL["get"], {"owner": owner, "id": intent_id})
        if not rows:
            raise IntentMissing("no such intent", intent=intent_id)
        return _view_of(rows[0])

    async def list(
        self, owner: OwnerId, *, limit: int = 50, before: tuple[datetime, str] | None = None
    ) -> Sequence[IntentView]:
        """See the port."""
        at, last = before if before is not None else (None, None)
        params = {"owner": owner, "before_at": at, "before_id": last, "limit": min(limit, LIST_MAX)}
        return [_view_of(row) for row in await self._db.read("intent.list", _SQL["list"], params)]


def _columns_of(progress: Progress) -> dict[str, Any]:
    """Return a step as the columns that hold it; a proposal and a document once saved are kept by the save itself."""
    columns: dict[str, Any] = dict.fromkeys(("proposal", "command", "outcome", "why", "applied")) | {
        "attempt": 0
    }
    match progress:
        case Pending():
            return columns | {"progress": "pending"}
        case Proposed(proposal, attempt):
            return columns | {"progress": "proposed", "proposal": encode(proposal), "attempt": attempt}
        case Prepared(proposal, attempt, command):
            return columns | {
                "progress": "prepared",
                "proposal": encode(proposal),
                "attempt": attempt,
                "command": encode(command),
            }
        case Completed(outcome, why, proposal, attempt, applied):
            return columns | {
                "progress": "completed",
                "proposal": _encoded(proposal),
                "attempt": attempt,
                "outcome": outcome,
                "why": why,
                "applied": _encoded(applied),
            }


def _encoded(value: Value | None) -> str | None:
    return None if value is None else encode(value)


def _progress_of(row: Row) -> Progress:
    if row["progress"] == "pending":
        return Pending()
    proposal = None if row["proposal"] is None else decode_value(Proposal, row["proposal"])
    if row["progress"] == "completed":
        applied = None if row["applied"] is None else decode_document(row["applied"])
        return Completed(row["outcome"], row["why"], proposal, row["attempt"], applied)
    if proposal is None:
        raise MemoryCorrupt("an intent has no proposal", intent=row["id"])
    if row["progress"] == "proposed":
        return Proposed(proposal, row["attempt"])
    if row["command"] is None:
        raise MemoryCorrupt("an intent has no command", intent=row["id"])
    return Prepared(proposal, row["attempt"], decode_value(Put, row["command"]))


def _view_of(row: Row) -> IntentView:
    return IntentView(
        intent=decode_value(Intent, row["intent"]),
        status=_status_of(row),
        outcome=row["outcome"],
        why=row["why"],
        attempts=row["attempts"] or 0,
        last_failure=row["last_failure"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        completed_at=row["completed_at"],
    )


def _status_of(row: Row) -> Status:
    if row["progress"] == "completed":
        return "completed"
    return _STATUS_OF_JOB.get(row["status"], "retrying" if row["attempts"] else "queued")
