"""The twin's admission: what is judged under the session's head, and the row that enters its order."""

from __future__ import annotations

from datetime import datetime

from shared.domain.errors import QueueFull, SessionBusy
from shared.sessions.inproc import InprocStore, StoredSession
from shared.turns.inproc_rows import TurnRow, TurnTables, reap
from shared.turns.queue import FINISHED, Admission, AdmissionLimits
from shared.turns.rules import is_dead


def judge_room(
    store: InprocStore,
    tables: TurnTables,
    session: StoredSession,
    admission: Admission,
    limits: AdmissionLimits,
) -> None:
    """Reap the session's dead turn, then raise ``SessionBusy`` or ``QueueFull`` if the admission has no place."""
    live = tables.live(session.id)
    if live is not None and is_dead(live, store.now(), limits.attempts_max):
        reap(store, tables, session, live, limits.attempts_max)
        live = tables.live(session.id)
    unfinished = tables.unfinished(session.id)
    if admission.on_busy == "reject" and unfinished:
        raise SessionBusy("a turn of the session is unfinished", turn=str(live.id if live else None))
    if unfinished >= limits.queued_per_session:
        raise QueueFull("too many turns of the session are queued", bound="queued turns a session")
    bounds = tables.bounds.get(admission.owner)
    own = bounds.queued_max if bounds is not None else None
    owed = tables.count("queued", "ready", owner=admission.owner)
    if owed >= (own if own is not None else limits.queued_per_owner):
        raise QueueFull("too many turns of the owner are queued", bound="queued turns an owner")


def insert(tables: TurnTables, session: StoredSession, row: TurnRow, now: datetime) -> None:
    """Give the row the session's next position; it is ready when no row of the session is live."""
    behind_another = tables.live(session.id) is not None
    row.position, session.next_position = session.next_position, session.next_position + 1
    row.due_at = row.admitted_at = now
    row.admitted_seq = session.seq
    row.status = "queued" if behind_another else "ready"
    tables.turns[row.id] = row
    if behind_another:
        # What waits before an urgent row must not hold it back: the rows before it are lifted to its priority.
        for other in tables.of_session(session.id):
            if other.status not in FINISHED:
                other.priority = min(other.priority, row.priority)
