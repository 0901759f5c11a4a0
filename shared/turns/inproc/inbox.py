"""The twin's inbox: the items of each session, the turn that answers them, and what becomes of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from shared.domain.errors import InboxMoved, NothingPending
from shared.domain.ids import SessionId, TurnId, new_run_id, new_turn_id
from shared.sessions.inproc import InprocStore, StoredKey, StoredSession
from shared.sessions.vocabulary import draft_of
from shared.sessions.vocabulary_around import InboxDropped
from shared.turns.inproc.rows import TurnRow, TurnTables, insert
from shared.turns.queue import FINISHED, OnWorkerLoss, Outcome

#: How long an item waits until the sweep looks whether a turn will answer it, unless the host refused that turn.
LOOKED_AT_AFTER: Final = timedelta(hours=1)
DONE: frozenset[Outcome] = frozenset({"completed", "partial", "cancelled"})


@dataclass(slots=True)
class ItemRow:
    """An item as stored; JSON is text. ``turn_id`` is the unfinished inbox turn that claimed it."""

    id: str
    source: str
    content: str
    seq: int
    attempts_max: int
    meta: str | None
    agent: str | None
    agent_revision: str | None
    delivered_at: datetime
    due_at: datetime
    attempts: int = 0
    turn_id: TurnId | None = None
    on_worker_loss: OnWorkerLoss | None = None


@dataclass(slots=True)
class InboxTable:
    """The inbox's part of an :class:`~shared.sessions.inproc.InprocStore`."""

    items: dict[SessionId, list[ItemRow]] = field(default_factory=dict)

    def forget(self, sessions: Collection[SessionId]) -> None:
        """Drop the items of removed sessions."""
        for session_id in sessions:
            self.items.pop(session_id, None)

    def waiting(self, session_id: SessionId) -> list[ItemRow]:
        """What no turn has claimed, oldest first."""
        rows = (item for item in self.items.get(session_id, ()) if item.turn_id is None)
        return sorted(rows, key=lambda item: item.seq)

    def drop(self, session: StoredSession, dropped: Collection[str]) -> None:
        """Take items out of a session, and count again what waits."""
        self.items[session.id] = [item for item in self.items.get(session.id, []) if item.id not in dropped]
        self.count(session)

    def count(self, session: StoredSession) -> None:
        """Write into the head how many items wait."""
        session.inbox_waiting = len(self.waiting(session.id))


def promote(store: InprocStore, tables: TurnTables, session: StoredSession) -> TurnId | None:
    """Insert the inbox turn that the session is owed, then make its first unfinished row ready when none is live."""
    follow(store, tables, session)
    return tables.make_ready(session.id)


def follow(store: InprocStore, tables: TurnTables, session: StoredSession) -> None:
    """Insert the next inbox turn, last in order, when items wait and none is unfinished."""
    rows = list(tables.of_session(session.id))
    waiting = store.part(InboxTable).waiting(session.id)
    if not waiting or any(row.origin == "inbox" and row.status not in FINISHED for row in rows):
        return
    last = max(rows, key=lambda row: row.position, default=None)
    row = _new_row(session, waiting[0], last)
    store.keys[(session.id, "run", row.run_id)] = StoredKey("", row.id)
    insert(tables, session, row, store.now())
    row.status = "queued"


def _new_row(session: StoredSession, item: ItemRow, last: TurnRow | None) -> TurnRow:
    """As its oldest item says, else as the session's last turn."""
    agent, revision = (last.agent, last.agent_revision) if last is not None else ("", "1")
    on_worker_loss = last.on_worker_loss if last is not None else "continue"
    return TurnRow(
        id=new_turn_id(),
        session_id=session.id,
        owner=session.owner,
        position=0,
        status="queued",
        key=None,
        message=None,
        command=None,
        meta=item.meta,
        run_id=new_run_id(),
        agent=agent if item.agent is None else item.agent,
        agent_revision=revision if item.agent_revision is None else item.agent_revision,
        on_worker_loss=item.on_worker_loss or on_worker_loss,
        priority=last.priority if last is not None else 1,
        due_at=datetime.min,
        deadline=None,
        admitted_at=datetime.min,
        admitted_seq=0,
        max_duration_s=last.max_duration_s if last is not None else None,
        origin="inbox",
        pool=last.pool if last is not None else "turns",
    )


def refuse_other_items(store: InprocStore, session: StoredSession, claims: Sequence[str]) -> None:
    """Raise unless these are the oldest that wait, oldest first: ``NothingPending`` when none waits, else ``InboxMoved``."""
    waiting = store.part(InboxTable).waiting(session.id)
    if not waiting:
        raise NothingPending("no item waits", session=session.id)
    if not claims or list(claims) != [item.id for item in waiting[: len(claims)]]:
        raise InboxMoved("other items wait than the turn names", session=session.id)


def claim_items(store: InprocStore, session: StoredSession, turn_id: TurnId, claims: Sequence[str]) -> None:
    """Give the items that it names to an inbox turn that opens."""
    table = store.part(InboxTable)
    for item in table.waiting(session.id):
        if item.id in claims:
            item.turn_id = turn_id
    table.count(session)


def settle(
    store: InprocStore, session: StoredSession, row: TurnRow, outcome: Outcome, *, counts: bool
) -> None:
    """Let the items of an inbox turn that ended be done, or wait again: tried once more if the end counts."""
    if row.origin != "inbox":
        return
    table = store.part(InboxTable)
    claimed = [item for item in table.items.get(session.id, ()) if item.turn_id == row.id]
    if outcome in DONE:
        table.drop(session, {item.id for item in claimed})
        return
    for item in claimed:
        item.turn_id, item.due_at = None, store.now() + LOOKED_AT_AFTER
        item.attempts += int(counts)
    table.count(session)
    drop_spent(store, session)


def count_attempt(store: InprocStore, session: StoredSession) -> None:
    """Count an attempt to all that waits: the turn that would have claimed it spent its tries before it could open."""
    for item in store.part(InboxTable).waiting(session.id):
        item.attempts += 1
    drop_spent(store, session)


def drop_spent(store: InprocStore, session: StoredSession) -> None:
    """Drop what waits and was tried as often as it may be, each with a record outside any turn."""
    table = store.part(InboxTable)
    spent = [item for item in table.waiting(session.id) if item.attempts >= item.attempts_max]
    if spent:
        store.append(session, [draft_of(InboxDropped(id=item.id, attempts=item.attempts)) for item in spent])
        table.drop(session, {item.id for item in spent})


def wrote(session: StoredSession, row: TurnRow) -> bool:
    """Say whether a turn wrote anything after it opened; how it ended is no such thing."""
    return any(
        record.turn == row.number and record.kind != "turn.ended"
        for record in session.records[row.opened_seq or 0 :]
    )
