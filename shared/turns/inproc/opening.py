"""The twin's opening of a claimed turn: what is judged before it, and what ends a row that can no longer open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from shared.domain.errors import NothingPending, NotResumable, SessionBusy, TurnClosed, TurnRefused
from shared.sessions.inproc import InprocStore, StoredSession
from shared.sessions.records import Draft, OpenTurn
from shared.turns.hooked import reason_of
from shared.turns.inproc.admission import open_row
from shared.turns.inproc.ends import refuse
from shared.turns.inproc.inbox import claim_items, promote, refuse_other_items
from shared.turns.inproc.rows import TurnRow, TurnTables, is_open, loss_of
from shared.turns.queue import Claim, Opened
from shared.turns.resume import not_resumable, resume_refusal
from shared.turns.rules import fence_holds, loss_reason


@dataclass(frozen=True, slots=True)
class Opening:
    """One claimed turn at its session's head."""

    store: InprocStore
    tables: TurnTables
    claim: Claim
    claims: Sequence[str]

    def standing(self) -> Opened | None:
        """Return how the turn stands if it is open already, None if it may open; raise why it cannot, ending its row."""
        session, row = self._held()
        if is_open(session, row):
            return self._taken(session, row)
        self._refuse_unopenable(session, row)
        return None

    async def judge(self) -> None:
        """Raise why the turn does not open now; store nothing of it."""
        self._refuse_unopenable(*self._held())

    def open(self, drafts: Sequence[Draft], *, commit_id: str, title: str | None) -> Opened:
        """Open the turn, or take over the open one it already is."""
        if (found := self.standing()) is not None:
            return found
        session, row = self._held()
        fence = self.claim.fence
        seq = open_row(self.store, session, row, fence, drafts, commit_id=commit_id, title=title)
        if row.origin == "inbox":
            claim_items(self.store, session, row.id, self.claims)
        return Opened("opened", row.number or 0, seq, row.started_seq or 0)

    def refuse(self, error: TurnRefused, *, retry_s: float) -> None:
        """End the row for a host that does not admit it."""
        session, row = self._held()
        refuse(self.store, self.tables, session, row, error.code, failure=reason_of(error), retry_s=retry_s)

    def _held(self) -> tuple[StoredSession, TurnRow]:
        session = self.store.sessions.get(self.claim.session_id)
        row = self.tables.turns.get(self.claim.turn_id)
        if session is None or row is None or not fence_holds(row, self.claim.fence, self.store.now()):
            if row is not None and (row.status, row.code) == ("refused", NothingPending.code):
                raise NothingPending("no item waits", session=self.claim.session_id)
            if row is not None and (row.status, row.code) == ("refused", NotResumable.code):
                raise not_resumable(row.session_id, row.resumes, str(row.failure))
            raise loss_of(loss_reason(row), self.claim.turn_id, self.claim.fence.epoch)
        return session, row

    def _taken(self, session: StoredSession, row: TurnRow) -> Opened:
        holder = OpenTurn(row.id, self.claim.fence.epoch, self.claim.fence.token)
        if session.open == holder:
            return Opened("adopted", row.number or 0, session.seq, row.started_seq or 0)
        session.open, session.last_commit = holder, None
        return Opened("took-over", row.number or 0, session.seq, row.started_seq or 0)

    def _refuse_unopenable(self, session: StoredSession, row: TurnRow) -> None:
        now = self.store.now()
        if session.open is not None:
            row.status, row.due_at = "ready", now + timedelta(seconds=1)
            row.free()
            raise SessionBusy("another turn of the session is open", session=session.id)
        if row.deadline is not None and row.deadline < now:
            expire(self.store, self.tables, row)
            raise TurnClosed("the turn's deadline passed before it opened", turn=str(row.id), reason="ended")
        # What else must still hold is judged here, before anything opens: a row for which it does not ends `refused`.
        if row.origin == "inbox":
            try:
                refuse_other_items(self.store, session, self.claims)
            except NothingPending as error:
                refuse(self.store, self.tables, session, row, error.code, failure=None, retry_s=0)
                raise
        if row.resumes is not None and (reason := resume_refusal(row.resumes, self.tables.past(session.id))):
            refuse(self.store, self.tables, session, row, NotResumable.code, failure=reason, retry_s=0)
            raise not_resumable(session.id, row.resumes, reason)


def expire(store: InprocStore, tables: TurnTables, row: TurnRow) -> None:
    """End an unopened row whose deadline passed."""
    row.finish("expired", store.now(), code="turn.deadline")
    promote(store, tables, store.sessions[row.session_id])
