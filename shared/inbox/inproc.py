"""The inbox in this process's memory: the twin of the Postgres one, over the sessions' in-memory store."""

from __future__ import annotations

import json
from collections.abc import Sequence

from shared.domain.canonical import canonical_json
from shared.domain.errors import InboxFull, KeyConflict
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
from shared.sessions.inproc import InprocStore, KeySpace, StoredKey, StoredSession
from shared.sessions.records import Draft
from shared.turns.inproc.ends import reap
from shared.turns.inproc.inbox import LOOKED_AT_AFTER, InboxTable, ItemRow, promote
from shared.turns.inproc.rows import TurnTables
from shared.turns.rules import is_dead


class InprocInbox:
    """Implements :class:`shared.inbox.port.Inbox` over an :class:`~shared.sessions.inproc.InprocStore`."""

    def __init__(
        self, store: InprocStore, *, attempts_max: int = ATTEMPTS_MAX, turn_attempts_max: int = 3
    ) -> None:
        self._store = store
        self._turns = store.part(TurnTables)
        self._table = store.part(InboxTable)
        self._attempts_max = attempts_max
        self._turn_attempts_max = turn_attempts_max

    async def deliver(self, delivery: Delivery, *, max_pending: int = MAX_PENDING) -> Delivered:
        """See the port."""
        record = queued_draft(delivery)
        await self._store.reached()
        session = self._store.queued(delivery.session_id, delivery.owner)
        first = self._store.keys.get((session.id, "inbox", delivery.id))
        if first is not None:
            if first.fingerprint != record.digest.hex():
                raise KeyConflict("the item's id was used with other content", key=delivery.id)
            return self._delivered(session, first.answer, duplicate=True)
        self._reap_dead(session)
        if session.inbox_waiting >= max_pending:
            raise InboxFull("as many items wait as may", session=session.id, bound=f"<= {max_pending} items")
        seq = put_item(self._store, session, delivery, record, attempts_max=self._attempts_max)
        return self._delivered(session, seq, duplicate=False)

    async def waiting(self, session_id: SessionId, owner: OwnerId) -> Sequence[InboxItem]:
        """See the port."""
        await self._store.reached()
        return [_item(row) for row in self._table.waiting(self._store.owned(session_id, owner).id)]

    async def recover(self, *, limit: int = 50) -> Recovered:
        """See the port."""
        await self._store.reached()
        now = self._store.now()
        due = sorted(
            (
                (item.due_at, session_id)
                for session_id in self._table.items
                for item in self._table.waiting(session_id)
                if item.due_at <= now
            ),
        )[:limit]
        sessions = [self._store.sessions[session_id] for session_id in sorted({each for _, each in due})]
        for session in sessions:
            promote(self._store, self._turns, session)
            for item in self._table.waiting(session.id):
                item.due_at = now + LOOKED_AT_AFTER
        ready = [turn for session in sessions if (turn := self._ready(session)) is not None]
        return Recovered(ready, may_be_more=len(due) == limit)

    async def backlog(self) -> InboxBacklog:
        """See the port."""
        await self._store.reached()
        waiting = [item for session_id in self._table.items for item in self._table.waiting(session_id)]
        since = min((item.delivered_at for item in waiting), default=self._store.now())
        return InboxBacklog(len(waiting), (self._store.now() - since).total_seconds())

    def _reap_dead(self, session: StoredSession) -> None:
        live, attempts_max = self._turns.live(session.id), self._turn_attempts_max
        if live is not None and is_dead(live, self._store.now(), attempts_max, self._store.started_at):
            reap(self._store, self._turns, session, live, attempts_max)

    def _delivered(self, session: StoredSession, seq: int, *, duplicate: bool) -> Delivered:
        return Delivered(seq, duplicate, session.inbox_waiting, self._ready(session))

    def _ready(self, session: StoredSession) -> TurnId | None:
        live = self._turns.live(session.id)
        is_ready = live is not None and live.status == "ready" and live.origin == "inbox"
        return live.id if live is not None and is_ready else None


def put_item(
    store: InprocStore, session: StoredSession, delivery: Delivery, record: Draft, *, attempts_max: int
) -> int:
    """Store an item with its record and its key, and have it answered; return the record's seq, also of a repeat."""
    place: tuple[SessionId, KeySpace, str] = (session.id, "inbox", delivery.id)
    if (first := store.keys.get(place)) is not None:
        seq: int = first.answer
        return seq
    seq = store.append(session, [record])
    store.keys[place] = StoredKey(record.digest.hex(), seq)
    table = store.part(InboxTable)
    table.items.setdefault(session.id, []).append(
        ItemRow(
            id=delivery.id,
            source=delivery.source,
            content=delivery.content,
            seq=seq,
            attempts_max=attempts_max,
            meta=None if delivery.meta is None else canonical_json(dict(delivery.meta)),
            agent=delivery.agent,
            agent_revision=delivery.agent_revision,
            on_worker_loss=delivery.on_worker_loss,
            delivered_at=store.now(),
            due_at=store.now() + LOOKED_AT_AFTER,
        )
    )
    table.count(session)
    promote(store, store.part(TurnTables), session)
    return seq


def _item(row: ItemRow) -> InboxItem:
    meta = None if row.meta is None else json.loads(row.meta)
    return InboxItem(
        row.id, row.source, row.content, row.seq, row.attempts, meta, row.agent, row.agent_revision
    )
