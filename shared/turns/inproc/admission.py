"""The twin's doors: what is judged under the session's head, the row that enters its order, and a host's begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from shared.domain.errors import (
    ConfigError,
    KeyConflict,
    QueueFull,
    RunIdReused,
    SessionBusy,
    StoreDefect,
    TurnDuplicate,
)
from shared.domain.ids import SessionId, TurnId, WorkerId
from shared.leases.fence import Fence
from shared.sessions.inproc import InprocStore, KeySpace, StoredKey, StoredSession
from shared.sessions.records import Draft, OpenTurn
from shared.turns.fingerprint import fingerprint_of
from shared.turns.hooked import Repeated
from shared.turns.inproc.ends import SUPERSEDED, close_open, reap, reply_outcome
from shared.turns.inproc.inbox import claim_items, follow, refuse_other_items
from shared.turns.inproc.rows import (
    FOREVER,
    TurnRow,
    TurnTables,
    claim_of,
    insert,
    is_open,
    loss_of,
    new_row,
)
from shared.turns.queue import FINISHED, Admission, AdmissionLimits, Begun, Opened, Outcome, Receipt
from shared.turns.resume import PastTurn, not_resumable, resume_refusal
from shared.turns.rules import fence_holds, is_dead, loss_reason


class NoTransaction:
    """What a hook gets of the twin: there is no SQL, so a hook that counts with it is tried on Postgres only."""

    async def execute(
        self, statement: str, params: Mapping[str, Any] | Sequence[Any] = ()
    ) -> Sequence[Mapping[str, Any]]:
        """See the port."""
        raise ConfigError("the queue in memory has no SQL: use the Postgres one", setting="admission")


@dataclass(frozen=True, slots=True)
class Door:
    """One admission at its session: judged and stored in one go, or judged first for a host's hook."""

    store: InprocStore
    tables: TurnTables
    admission: Admission
    limits: AdmissionLimits

    async def judge_admit(self) -> None:
        """Raise why the turn cannot be admitted now, or that an earlier try stored it; store nothing."""
        session = self._session()
        self._refuse_repeat(self._earlier(session))
        self._refuse_reused_run(session)
        self._judge_place(session)

    def admit(self) -> Receipt:
        """Admit the turn, or answer the first receipt."""
        session, row = self._session(), new_row(self.admission)
        if (first := self._earlier(session)) is not None:
            return _receipt(first, duplicate=first.id != row.id)
        self._refuse_reused_run(session)
        self._judge_place(session)
        interrupts = self.admission.on_busy == "interrupt"
        ended = supersede(self.store, self.tables, session) if interrupts else Superseded()
        self._keep_keys(session, row.id)
        insert(self.tables, session, row, self.store.now())
        if ended.any:
            follow(self.store, self.tables, session)
        return _receipt(row, duplicate=False, superseded=ended.held)

    async def judge_begin(self) -> None:
        """Raise why the turn cannot be begun now, or that an earlier try opened it; store nothing."""
        session = self._session()
        self._refuse_repeat(self._earlier_begun(session))
        self._refuse_reused_run(session)
        self._judge_begin(session)

    def begin(
        self,
        holder: WorkerId,
        *,
        lease_s: float | None,
        commit_id: str,
        drafts: Sequence[Draft],
        title: str | None,
    ) -> Begun:
        """Open the turn at once, held by ``holder``, or adopt what an earlier try of it opened."""
        session, now = self._session(), self.store.now()
        if (first := self._earlier_begun(session)) is not None:
            return self._adopted(session, first, holder)
        self._refuse_reused_run(session)
        unheld = self._judge_begin(session)
        row = new_row(self.admission)
        self._keep_keys(session, row.id)
        self._make_way(unheld)
        insert(self.tables, session, row, now)
        if unheld is not None and row.origin != "inbox":
            unheld.position, row.position = row.position, unheld.position
        row.status, row.epoch, row.token, row.lease_owner = "running", 1, uuid4(), holder
        row.expires_at = FOREVER if lease_s is None else now + timedelta(seconds=lease_s)
        seq = open_row(self.store, session, row, row.fence, drafts, commit_id=commit_id, title=title)
        if row.origin == "inbox":
            claim_items(self.store, session, row.id, self.admission.claims)
        opened = Opened("opened", row.number or 0, seq, row.started_seq or 0)
        return Begun(claim_of(row, now, lost=False), opened)

    def _session(self) -> StoredSession:
        return self.store.queued(self.admission.session_id, self.admission.owner)

    def _earlier(self, session: StoredSession) -> TurnRow | None:
        """The turn that the key, or without one the id, already names; raises ``KeyConflict`` for other content."""
        first = self.store.keys.get(self._key(session))
        if first is None:
            return None
        if first.fingerprint != fingerprint_of(self.admission):
            turn, key = str(first.answer), self.admission.key
            raise KeyConflict("the key was used with other content", key=key, turn=turn)
        return self.tables.turns[first.answer]

    def _earlier_begun(self, session: StoredSession) -> TurnRow | None:
        first = self._earlier(session)
        if first is not None and first.id != self.admission.turn_id:
            raise TurnDuplicate(
                "the key already began a turn",
                turn_id=str(first.id),
                number=first.number,
                open=first.status not in FINISHED,
            )
        return first

    def _refuse_repeat(self, first: TurnRow | None) -> None:
        if first is not None:
            raise Repeated("an earlier try stored the turn", turn_id=str(first.id))

    def _refuse_reused_run(self, session: StoredSession) -> None:
        run = self.admission.run_id
        if self._run(session.id) in self.store.keys:
            raise RunIdReused("the run id was used before", run=run)
        ancestor, through = session.parent, session.parent_number
        while ancestor is not None and through > 0 and ancestor in self.store.sessions:
            key = self.store.keys.get(self._run(ancestor))
            number = self.tables.turns[key.answer].number if key is not None else None
            if number is not None and number <= through:
                raise RunIdReused("the run id was used before", run=run)
            above = self.store.sessions[ancestor]
            ancestor, through = above.parent, min(above.parent_number, through)

    def _refuse_busy(self, session: StoredSession) -> None:
        self._reap_dead(session)
        unfinished = [row for row in self.tables.of_session(session.id) if row.status not in FINISHED]
        if unfinished:
            first = min(unfinished, key=lambda row: row.position)
            raise SessionBusy("a turn of the session is unfinished", turn=str(first.id))

    def _judge_begin(self, session: StoredSession) -> TurnRow | None:
        """Raise why the turn cannot begin: busy, other items, not resumable; return an inbox turn that nobody holds."""
        self._reap_dead(session)
        rows = [row for row in self.tables.of_session(session.id) if row.status not in FINISHED]
        unheld = next((row for row in rows if _is_unheld_inbox(row)), None)
        others = [row for row in rows if row is not unheld]
        if others:
            first = min(others, key=lambda row: row.position)
            raise SessionBusy("a turn of the session is unfinished", turn=str(first.id))
        if self.admission.origin == "inbox":
            refuse_other_items(self.store, session, self.admission.claims)
        self._refuse_resume(session)
        return unheld

    def _make_way(self, unheld: TurnRow | None) -> None:
        """A user's turn goes before an inbox turn that nobody holds; another inbox turn takes its place."""
        if unheld is None:
            return
        if self.admission.origin == "inbox":
            unheld.finish("cancelled", self.store.now(), code=SUPERSEDED)
        else:
            unheld.status = "queued"

    def _judge_place(self, session: StoredSession) -> None:
        """Reap the session's dead turn, then raise why the admission has no place: busy, not resumable, full."""
        if self.admission.on_busy == "reject":
            self._refuse_busy(session)
        self._reap_dead(session)
        self._refuse_resume(session)
        self._judge_room(session)

    def _refuse_resume(self, session: StoredSession) -> None:
        """Raise why the turn that is to be resumed cannot be, after what an interruption would end has ended."""
        n = self.admission.resumes
        if n is None:
            return
        turns = self.tables.past(session.id)
        if self.admission.on_busy == "interrupt":
            turns = [self._as_interrupted(session, turn) for turn in turns]
        if (reason := resume_refusal(n, turns)) is not None:
            raise not_resumable(session.id, n, reason)
        if any(turn.number == n and turn.outcome is None for turn in turns):
            raise SessionBusy("the turn to resume is unfinished", turn=str(self._opened(session).id))

    def _as_interrupted(self, session: StoredSession, turn: PastTurn) -> PastTurn:
        """The turn as an interruption leaves it: the open one ends by its stored reply, else without an answer."""
        if turn.outcome is not None:
            return turn
        return replace(turn, outcome=reply_outcome(session, self._opened(session)) or "cancelled")

    def _opened(self, session: StoredSession) -> TurnRow:
        return next(row for row in self.tables.of_session(session.id) if is_open(session, row))

    def _judge_room(self, session: StoredSession) -> None:
        interrupts = self.admission.on_busy == "interrupt"
        if not interrupts and self.tables.unfinished(session.id) >= self.limits.queued_per_session:
            raise QueueFull("too many turns of the session are queued", bound="queued turns a session")
        # What an interruption ends waits no more: it makes room.
        freed = sum(r.status in ("queued", "ready") for r in self.tables.of_session(session.id)) * interrupts
        bounds = self.tables.bounds.get(self.admission.owner)
        own = bounds.queued_max if bounds is not None else None
        owed = self.tables.count("queued", "ready", owner=self.admission.owner) - freed
        if owed >= (own if own is not None else self.limits.queued_per_owner):
            raise QueueFull("too many turns of the owner are queued", bound="queued turns an owner")
        if self.limits.is_full and not freed:
            raise QueueFull("too many turns are queued in all", bound="queued turns in all")

    def _reap_dead(self, session: StoredSession) -> None:
        live, attempts_max = self.tables.live(session.id), self.limits.attempts_max
        if live is not None and is_dead(live, self.store.now(), attempts_max, self.store.started_at):
            reap(self.store, self.tables, session, live, attempts_max)

    def _adopted(self, session: StoredSession, row: TurnRow, holder: WorkerId) -> Begun:
        now, token = self.store.now(), row.token
        held = token is not None and fence_holds(row, Fence(1, token), now)
        if not held or not is_open(session, row) or row.lease_owner != holder:
            raise loss_of(loss_reason(row), row.id, 1)
        opened = Opened("adopted", row.number or 0, session.seq, row.started_seq or 0)
        return Begun(claim_of(row, now, lost=False), opened)

    def _keep_keys(self, session: StoredSession, turn_id: TurnId) -> None:
        if turn_id in self.tables.turns:
            raise StoreDefect("a turn of another session has this id", turn=str(turn_id))
        key = StoredKey(fingerprint_of(self.admission), turn_id)
        self.store.keys[self._key(session)] = self.store.keys[self._run(session.id)] = key

    def _key(self, session: StoredSession) -> tuple[SessionId, KeySpace, str]:
        return (session.id, "turn", self.admission.key or str(self.admission.turn_id))

    def _run(self, session_id: SessionId) -> tuple[SessionId, KeySpace, str]:
        return (session_id, "run", self.admission.run_id)


@dataclass(frozen=True, slots=True)
class Superseded:
    """What an interruption ended: who held which turn, and whether it ended any."""

    held: Mapping[TurnId, WorkerId] = field(default_factory=dict)
    any: bool = False


def supersede(store: InprocStore, tables: TurnTables, session: StoredSession) -> Superseded:
    """End every unfinished turn of a session for the sake of a new one: the open one in the log, the others unseen.

    Nothing is promoted: what comes next is the new turn. Then the inbox turn follows that is owed.
    """
    rows = [row for row in tables.of_session(session.id) if row.status not in FINISHED]
    rows.sort(key=lambda row: row.position)
    held = {row.id: row.lease_owner for row in rows if row.lease_owner is not None}
    opened = next((row for row in rows if is_open(session, row)), None)
    for row in rows:
        if row is not opened:
            row.finish("cancelled", store.now(), code=SUPERSEDED)
    if opened is not None:
        outcome: Outcome = "interrupted" if opened.origin == "inbox" else "cancelled"
        reply = reply_outcome(session, opened)
        code = None if reply is not None else SUPERSEDED
        close_open(store, tables, session, opened, reply or outcome, code, promotes=False)
    return Superseded(held, bool(rows))


def _is_unheld_inbox(row: TurnRow) -> bool:
    return row.origin == "inbox" and row.status in ("queued", "ready") and row.number is None


def open_row(
    store: InprocStore,
    session: StoredSession,
    row: TurnRow,
    fence: Fence,
    drafts: Sequence[Draft],
    *,
    commit_id: str,
    title: str | None,
) -> int:
    """Open the log for a row under a fence, with its first records; return the new seq."""
    row.number, row.opened_at, row.started_seq = session.next_number, store.now(), session.seq + 1
    seq = row.opened_seq = store.append(session, drafts, turn=row.number, commit_id=commit_id)
    session.open, session.next_number = OpenTurn(row.id, fence.epoch, fence.token), session.next_number + 1
    session.title = title if session.title is None else session.title
    return seq


def _receipt(
    row: TurnRow, *, duplicate: bool, superseded: Mapping[TurnId, WorkerId] | None = None
) -> Receipt:
    return Receipt(
        row.id,
        row.run_id,
        row.session_id,
        row.position,
        row.status,
        row.admitted_seq,
        duplicate,
        superseded or {},
    )
