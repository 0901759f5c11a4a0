"""The turn queue in this process's memory: the twin of the Postgres one, over the sessions' in-memory store.

Gone with the process: for tests and trials. Each operation lets other tasks run once, as a round trip would, and is then
atomic: the twin shows results, order and fences, not locks (decision 44), so nothing is ever busy or skipped here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from shared.domain.canonical import canonical_json
from shared.domain.errors import RevisionConflict, StoreDefect, TurnMissing, TurnRefused
from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId
from shared.leases.fence import Fence
from shared.sessions.inproc import InprocStore, StoredSession
from shared.sessions.records import Draft, OpenTurn, check_commit_size
from shared.turns.admission import TurnAdmission, TurnToAdmit
from shared.turns.hooked import Repeated, admit_through, claim_to_admit, turn_to_admit
from shared.turns.inproc.admission import Door, NoTransaction
from shared.turns.inproc.claims import take_over_lost, take_ready
from shared.turns.inproc.ends import cancel, close_open, reap, reply_outcome
from shared.turns.inproc.inbox import promote, settle, wrote
from shared.turns.inproc.opening import Opening, expire
from shared.turns.inproc.pools import InprocPools
from shared.turns.inproc.rows import FOREVER, TurnRow, claim_of, loss_of, view_of
from shared.turns.queue import (
    INBOX_RETRY_S,
    Admission,
    AdmissionLimits,
    Begun,
    CallEntry,
    Cancelled,
    Claim,
    ClaimRequest,
    Ended,
    Ending,
    Opened,
    Receipt,
    Renewal,
    Standing,
    TurnView,
    Watched,
)
from shared.turns.resume import require_nameable
from shared.turns.rules import fence_holds, is_dead, loss_reason


class InprocTurnQueue(InprocPools):
    """Implements :class:`shared.turns.queue.TurnQueue` over an :class:`~shared.sessions.inproc.InprocStore`."""

    def __init__(
        self, store: InprocStore, *, attempts_max: int = 3, inbox_retry_s: float = INBOX_RETRY_S
    ) -> None:
        super().__init__(store)
        self._attempts_max = attempts_max
        self._inbox_retry_s = inbox_retry_s

    async def admit(
        self, admission: Admission, limits: AdmissionLimits, *, admit: TurnAdmission | None = None
    ) -> Receipt:
        """See the port."""
        require_nameable(admission)
        door = Door(self._store, self._tables, admission, limits)
        await self._store.reached()
        if admit is not None:
            await _ask(admit, turn_to_admit(admission, "admit", NoTransaction()), door.judge_admit)
        return door.admit()

    async def begin(
        self,
        admission: Admission,
        holder: WorkerId,
        *,
        lease_s: float | None,
        commit_id: str,
        drafts: Sequence[Draft],
        limits: AdmissionLimits,
        title: str | None = None,
        admit: TurnAdmission | None = None,
    ) -> Begun:
        """See the port."""
        require_nameable(admission)
        drafts = tuple(drafts)
        check_commit_size(drafts)
        door = Door(self._store, self._tables, admission, limits)
        await self._store.reached()
        if admit is not None:
            await _ask(admit, turn_to_admit(admission, "begin", NoTransaction()), door.judge_begin)
        return door.begin(holder, lease_s=lease_s, commit_id=commit_id, drafts=drafts, title=title)

    async def abandon(self, turn_id: TurnId, fence: Fence) -> bool:
        """See the port."""
        await self._store.reached()
        row = self._tables.turns.get(turn_id)
        if row is None or row.expires_at != FOREVER or row.status != "running" or row.fence != fence:
            return False
        session = self._store.sessions[row.session_id]
        reply = reply_outcome(session, row)
        code = None if reply is not None else "turn.lease"
        close_open(self._store, self._tables, session, row, reply or "interrupted", code)
        return True

    async def claim(self, request: ClaimRequest) -> Sequence[Claim]:
        """See the port."""
        await self._store.reached()
        now = self._store.now()
        lost = take_over_lost(self._tables, request, now, self._store.started_at)
        ready = take_ready(self._tables, request, lost, now)
        return [self._told(claim_of(row, now, lost=row in lost)) for row in (*lost, *ready)]

    def _told(self, claim: Claim) -> Claim:
        session = self._store.sessions[claim.session_id]
        return replace(claim, inherits=session.parent_through is not None, tail=session.tail)

    async def open(
        self,
        claim: Claim,
        commit_id: str,
        drafts: Sequence[Draft],
        *,
        title: str | None = None,
        claims: Sequence[str] = (),
        admit: TurnAdmission | None = None,
    ) -> Opened:
        """See the port."""
        drafts = tuple(drafts)
        check_commit_size(drafts)
        await self._store.reached()
        opening = Opening(self._store, self._tables, claim, tuple(claims))
        if admit is not None and claim.origin != "user" and (found := opening.standing()) is not None:
            return found
        if admit is not None and claim.origin != "user":
            try:
                await admit_through(admit, claim_to_admit(claim, NoTransaction()), opening.judge)
            except TurnRefused as error:
                opening.refuse(error, retry_s=self._inbox_retry_s)
                raise
        return opening.open(drafts, commit_id=commit_id, title=title)

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        drafts: Sequence[Draft],
        *,
        stepped: bool = False,
        calls: Sequence[CallEntry] = (),
        expect: int | None = None,
        extend_s: float | None = None,
    ) -> int:
        """See the port."""
        drafts, calls = tuple(drafts), tuple(calls)
        check_commit_size(drafts)
        await self._store.reached()
        session, row = self._rows(claim)
        if session is None or row is None or not self._may_write(session, row, claim):
            raise loss_of(loss_reason(row), claim.turn_id, claim.fence.epoch)
        if extend_s is not None and (session.last_commit == commit_id or expect in (None, session.revision)):
            row.expires_at = self._store.now() + timedelta(seconds=extend_s)
        if session.last_commit == commit_id:
            return session.last_seq
        if expect is not None and expect != session.revision:
            raise RevisionConflict("the session moved on", expected=expect, actual=session.revision)
        _refuse_double_lines(calls)
        seq = self._store.append(session, drafts, turn=row.number, commit_id=commit_id, active=False)
        self._tables.write_calls(row.id, calls)
        if stepped:
            row.attempts, row.suspect, row.alive_losses = 0, False, 0
        return seq

    async def end(
        self,
        claim: Claim,
        commit_id: str,
        drafts: Sequence[Draft],
        ending: Ending,
        *,
        calls: Sequence[CallEntry] = (),
    ) -> Ended:
        """See the port."""
        drafts, calls, usage = tuple(drafts), tuple(calls), canonical_json(dict(ending.usage))
        check_commit_size(drafts)
        await self._store.reached()
        session, row = self._rows(claim)
        if session is None or row is None:
            raise loss_of("removed", claim.turn_id, claim.fence.epoch)
        if not self._may_write(session, row, claim):
            if row.end_commit == commit_id:
                return self._first_end(session, row)
            raise loss_of(loss_reason(row), claim.turn_id, claim.fence.epoch)
        _refuse_double_lines(calls)
        seq = self._store.append(session, drafts, turn=row.number, commit_id=commit_id)
        self._tables.write_calls(row.id, calls)
        row.finish("ended", self._store.now(), ending.outcome, ending.code)
        row.failure = ending.failure if ending.failure is not None else row.failure
        row.usage, row.end_commit, session.open = usage, commit_id, None
        tried = wrote(session, row) if ending.counts_attempt is None else ending.counts_attempt
        counts = ending.outcome != "interrupted" or tried
        settle(self._store, session, row, ending.outcome, counts=counts)
        promoted = promote(self._store, self._tables, session)
        return Ended(seq, promoted, session.inbox_waiting)

    def _first_end(self, session: StoredSession, row: TurnRow) -> Ended:
        """What an end answered whose answer was lost; the promoted turn only while it still waits for a worker."""
        seq = max(record.seq for record in session.records if record.turn == row.number)
        live = self._tables.live(session.id)
        promoted = live.id if live is not None and live.status == "ready" else None
        return Ended(seq, promoted, session.inbox_waiting)

    async def cancel(self, turn_id: TurnId, owner: OwnerId) -> Cancelled:
        """See the port."""
        await self._store.reached()
        session, row = self._owned(turn_id, owner)
        holder = row.lease_owner
        reason = cancel(self._store, self._tables, session, row, self._attempts_max)
        return Cancelled(
            took_effect=reason == "cancelled",
            reason=reason,
            status=row.status,
            outcome=row.outcome,
            code=row.code,
            holder=holder,
            session_id=session.id,
            after=session.seq,
        )

    async def release(self, turn_id: TurnId, fence: Fence, *, due_in_s: float = 0.0) -> bool:
        """See the port."""
        await self._store.reached()
        row, now = self._tables.turns.get(turn_id), self._store.now()
        if row is None or not fence_holds(row, fence, now):
            return False
        row.status = "ready"
        row.free()
        if due_in_s > 0:
            row.due_at = now + timedelta(seconds=due_in_s)
        return True

    async def renew(self, fences: Mapping[TurnId, Fence], lease_s: float) -> Renewal:
        """See the port; nothing is ever skipped here."""
        await self._store.reached()
        now = self._store.now()
        renewed: set[TurnId] = set()
        for turn_id, fence in fences.items():
            row = self._tables.turns.get(turn_id)
            if row is not None and fence_holds(row, fence, now):
                if row.expires_at != FOREVER:
                    row.expires_at = now + timedelta(seconds=lease_s)
                renewed.add(turn_id)
        return Renewal(frozenset(renewed), frozenset(), frozenset(fences.keys() - renewed))

    async def watch(self, worker: WorkerId, fences: Mapping[TurnId, Fence]) -> Watched:
        """See the port."""
        await self._store.reached()
        now, turns = self._store.now(), self._tables.turns
        lost = {
            turn_id: loss_reason(row)
            for turn_id, fence in fences.items()
            if (row := turns.get(turn_id)) is None or row.status != "running" or row.token != fence.token
        }
        orphans = {
            row.id: row.fence
            for row in turns.values()
            if row.lease_owner == worker and row.id not in fences and fence_holds(row, row.fence, now)
        }
        return Watched(lost, orphans)

    async def reap(self, *, limit: int = 50) -> Sequence[TurnView]:
        """See the port."""
        await self._store.reached()
        now = self._store.now()
        attempts_max, started_at = self._attempts_max, self._store.started_at
        dead = [row for row in self._tables.turns.values() if is_dead(row, now, attempts_max, started_at)]
        dead.sort(key=lambda row: row.expires_at or now)
        touched = []
        for row in dead[:limit]:
            session = self._store.sessions[row.session_id]
            reap(self._store, self._tables, session, row, self._attempts_max)
            touched.append(view_of(row, session, now))
        return touched

    async def expire(self, *, limit: int = 50) -> int:
        """See the port."""
        await self._store.reached()
        now = self._store.now()
        late = [
            (row.deadline, row.id)
            for row in self._tables.turns.values()
            if row.status in ("queued", "ready")
            and row.number is None
            and row.deadline is not None
            and row.deadline < now
        ]
        for _, turn_id in sorted(late)[:limit]:
            expire(self._store, self._tables, self._tables.turns[turn_id])
        return len(late[:limit])

    async def get(self, turn_id: TurnId, owner: OwnerId) -> TurnView:
        """See the port."""
        await self._store.reached()
        session, row = self._owned(turn_id, owner)
        return view_of(row, session, self._store.now())

    async def standings(self, turn_ids: Sequence[TurnId]) -> Mapping[TurnId, Standing]:
        """See the port."""
        await self._store.reached()
        found = {turn_id: self._tables.turns.get(turn_id) for turn_id in turn_ids}
        return {
            turn_id: Standing(row.status, row.number, row.outcome, row.code)
            for turn_id, row in found.items()
            if row is not None
        }

    async def calls(self, session_id: SessionId, turn_id: TurnId) -> Sequence[CallEntry]:
        """See the port."""
        await self._store.reached()
        row = self._tables.turns.get(turn_id)
        if row is None or row.session_id != session_id:
            return []
        return sorted(self._tables.ledger.get(turn_id, {}).values(), key=lambda c: (c.step, c.ordinal))

    def _rows(self, claim: Claim) -> tuple[StoredSession | None, TurnRow | None]:
        return self._store.sessions.get(claim.session_id), self._tables.turns.get(claim.turn_id)

    def _owned(self, turn_id: TurnId, owner: OwnerId) -> tuple[StoredSession, TurnRow]:
        row = self._tables.turns.get(turn_id)
        if row is None or row.owner != owner:
            raise TurnMissing("no such turn", turn=str(turn_id))
        return self._store.sessions[row.session_id], row

    def _may_write(self, session: StoredSession, row: TurnRow, claim: Claim) -> bool:
        named = session.open == OpenTurn(row.id, claim.fence.epoch, claim.fence.token)
        return named and fence_holds(row, claim.fence, self._store.now())


async def _ask(hook: TurnAdmission, turn: TurnToAdmit, judge: Callable[[], Awaitable[None]]) -> None:
    """Let a host's hook say no; a repeat is answered whatever it says. The turn is stored when it has returned."""
    with suppress(Repeated):
        await admit_through(hook, turn, judge)


def _refuse_double_lines(calls: Sequence[CallEntry]) -> None:
    if len({call.invocation_id for call in calls}) < len(calls):
        raise StoreDefect("a commit writes one ledger line twice")
