"""The twin's ends that are not the holder's own: what closes an open turn, reaps a dead one, cancels one or refuses one."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from shared.sessions.inproc import InprocStore, StoredSession
from shared.sessions.records import draft
from shared.turns.inproc.inbox import InboxTable, count_attempt, promote, settle
from shared.turns.inproc.rows import TurnRow, TurnTables, is_open
from shared.turns.queue import FINISHED, Outcome
from shared.turns.rules import is_abandoned, is_dead

SUPERSEDED: Final = "turn.superseded"


def close_open(
    store: InprocStore,
    tables: TurnTables,
    session: StoredSession,
    row: TurnRow,
    outcome: Outcome,
    code: str | None,
    *,
    promotes: bool = True,
) -> None:
    """End the turn that the head names as open, with a ``turn.ended`` that the store itself writes.

    Its items are done or wait again; an end that makes way for a user's turn tries none of them. Without ``promotes`` the
    caller sees to what comes next.
    """
    ended = draft("turn.ended", {"v": 1, "reason": outcome} | ({"code": code} if code else {}))
    store.append(session, [ended], turn=row.number)
    row.finish("ended", store.now(), outcome, code)
    session.open = None
    settle(store, session, row, outcome, counts=code != SUPERSEDED)
    if promotes:
        promote(store, tables, session)


def reply_outcome(session: StoredSession, row: TurnRow) -> Outcome | None:
    """Return the outcome of the turn's stored reply, if it has one."""
    for record in reversed(session.records):
        if record.turn == row.number and record.kind == "turn.reply":
            outcome: Outcome = record.data["outcome"]
            return outcome
    return None


def reap(
    store: InprocStore, tables: TurnTables, session: StoredSession, row: TurnRow, attempts_max: int
) -> None:
    """End or free a dead row."""
    now, is_spent = store.now(), row.attempts >= attempts_max - 1
    if is_open(session, row):
        reply = reply_outcome(session, row)
        code = None if reply is not None else "turn.lease"
        close_open(store, tables, session, row, reply or "interrupted", code)
    elif is_spent or is_abandoned(row, now, store.started_at):
        row.attempts += 1
        row.finish("ended", now, "interrupted", "turn.lease")
        if row.origin == "inbox" and is_spent:
            count_attempt(store, session)
        promote(store, tables, session)
    else:
        # Never opened: nothing of it is in the log, so it may simply wait again. The loss counts all the same.
        row.attempts += int(row.suspect)
        row.status, row.suspect = "ready", True
        row.free()


def cancel(
    store: InprocStore, tables: TurnTables, session: StoredSession, row: TurnRow, attempts_max: int
) -> str:
    """End a turn as cancelled unless it finished, replied, is dead or the inbox's; return what was done."""
    if row.status in FINISHED:
        return "cancelled" if "cancelled" in (row.status, row.outcome) else "finished"
    if not is_open(session, row):
        if row.origin == "inbox":
            return "inbox"
        row.finish("cancelled", store.now())
        promote(store, tables, session)
        return "cancelled"
    if (reply := reply_outcome(session, row)) is not None:
        close_open(store, tables, session, row, reply, None)
        return "replied"
    if is_dead(row, store.now(), attempts_max, store.started_at):
        reap(store, tables, session, row, attempts_max)
        return "reaped"
    close_open(store, tables, session, row, "cancelled", None)
    return "cancelled"


def refuse(
    store: InprocStore,
    tables: TurnTables,
    session: StoredSession,
    row: TurnRow,
    code: str,
    *,
    failure: str | None,
    retry_s: float,
) -> None:
    """End a claimed row that may not open. An inbox turn is not followed at once: its items wait to be found owed."""
    row.finish("refused", store.now(), code=code)
    row.failure = failure
    if row.origin != "inbox":
        promote(store, tables, session)
        return
    for item in store.part(InboxTable).waiting(session.id):
        item.due_at = store.now() + timedelta(seconds=retry_s)
    tables.make_ready(session.id)
