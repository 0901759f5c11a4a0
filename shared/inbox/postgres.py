"""The inbox on Postgres: one statement, one transaction, one round trip an operation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from shared.database.pool import Database, Row
from shared.database.statements import load_statements
from shared.domain.canonical import canonical_json
from shared.domain.errors import InboxFull, KeyConflict, SessionMissing
from shared.domain.ids import OwnerId, SessionId, TurnId
from shared.inbox.backlog import InboxBacklog
from shared.inbox.delivering import queued_draft
from shared.inbox.port import (
    ATTEMPTS_MAX,
    MAX_PENDING,
    Delivered,
    Delivery,
    InboxItem,
    Recovered,
)
from shared.inbox.postgres_backlog import read_backlog

_SQL = load_statements(Path(__file__).with_name("queries.sql"))


class PostgresInbox:
    """Implements :class:`shared.inbox.port.Inbox`.

    ``attempts_max`` is how often an item may be claimed by turns that fail: it is stored with the item, so that whoever ends
    such a turn judges by the same figure. ``turn_attempts_max`` is the turn queue's bound, for a dead turn found at the door.
    """

    def __init__(
        self, database: Database, *, attempts_max: int = ATTEMPTS_MAX, turn_attempts_max: int = 3
    ) -> None:
        self._db = database
        self._attempts_max = attempts_max
        self._turn_attempts_max = turn_attempts_max

    async def deliver(self, delivery: Delivery, *, max_pending: int = MAX_PENDING) -> Delivered:
        """See the port."""
        record = queued_draft(delivery)
        params = {
            "session": delivery.session_id,
            "owner": delivery.owner,
            "id": delivery.id,
            "source": delivery.source,
            "content": delivery.content,
            "text": record.text,
            "digest": record.digest,
            "meta": None if delivery.meta is None else canonical_json(dict(delivery.meta)),
            "agent": delivery.agent,
            "revision": delivery.agent_revision,
            "on_worker_loss": delivery.on_worker_loss,
            "max_pending": max_pending,
            "attempts_max": self._attempts_max,
            "turn_attempts_max": self._turn_attempts_max,
        }
        [row] = await self._db.call("inbox.deliver", _SQL["deliver"], params, repeatable=True)
        match row["result"]:
            case "missing":
                raise SessionMissing("no such session", session=delivery.session_id)
            case "key-conflict":
                raise KeyConflict("the item's id was used with other content", key=delivery.id)
            case "full":
                raise InboxFull(
                    "as many items wait as may", session=delivery.session_id, bound=f"<= {max_pending} items"
                )
        turn_id = None if row["turn_id"] is None else TurnId(row["turn_id"])
        return Delivered(row["seq"], row["result"] == "duplicate", row["pending"], turn_id)

    async def waiting(self, session_id: SessionId, owner: OwnerId) -> Sequence[InboxItem]:
        """See the port."""
        params = {"session": session_id, "owner": owner}
        rows = await self._db.read("inbox.waiting", _SQL["waiting_items"], params)
        if not rows:
            raise SessionMissing("no such session", session=session_id)
        return [_item(row) for row in rows if row["id"] is not None]

    async def recover(self, *, limit: int = 50) -> Recovered:
        """See the port."""
        found = await self._db.read("inbox.recover.find", _SQL["find_due"], {"limit": limit})
        if not found:
            return Recovered([], may_be_more=False)
        params = {"sessions": sorted({row["session_id"] for row in found})}
        rows = await self._db.call("inbox.recover", _SQL["recover"], params, repeatable=True)
        return Recovered([TurnId(row["id"]) for row in rows], may_be_more=len(found) == limit)

    async def backlog(self) -> InboxBacklog:
        """See the port."""
        return await read_backlog(self._db)


def _item(row: Row) -> InboxItem:
    meta = None if row["meta"] is None else json.loads(row["meta"])
    return InboxItem(
        row["id"],
        row["source"],
        row["content"],
        row["seq"],
        row["attempts"],
        meta,
        row["agent"],
        row["agent_revision"],
    )
