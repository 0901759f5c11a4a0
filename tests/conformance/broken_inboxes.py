"""Inboxes and queues that are each broken in one way, for the inbox's kit to find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shared.domain.errors import InboxFull, NothingPending, SessionMissing, TurnRefused
from shared.domain.ids import OwnerId, SessionId, TurnId
from shared.inbox.backlog import InboxBacklog
from shared.inbox.delivering import queued_draft
from shared.inbox.inproc import InprocInbox, put_item
from shared.inbox.port import Delivered, Delivery, InboxItem, Recovered
from shared.leases.fence import Fence
from shared.sessions.inproc import InprocStore, KeySpace
from shared.turns.inproc import InprocTurnQueue
from shared.turns.inproc.inbox import InboxTable, claim_items, drop_spent, promote
from shared.turns.inproc.rows import TurnTables
from shared.turns.queue import (
    FINISHED,
    Admission,
    AdmissionLimits,
    Begun,
    Cancelled,
    Claim,
    Ended,
    Ending,
    Opened,
    Receipt,
    TurnView,
)


class BrokenInbox(InprocInbox):
    """An inbox that reaches into its own rows."""

    def __init__(self, store: InprocStore) -> None:
        super().__init__(store)
        self.store, self.table = store, store.part(InboxTable)
        self.rows = store.part(TurnTables)


class BrokenQueue(InprocTurnQueue):
    """A queue that reaches into its own rows."""

    def __init__(self, store: InprocStore) -> None:
        super().__init__(store)
        self.store, self.table = store, store.part(InboxTable)
        self.rows = store.part(TurnTables)

    def tamper(self, session_id: SessionId, attempts: int) -> None:
        """Count attempts of what waits that nobody made, or forget some."""
        for item in self.table.waiting(session_id):
            item.attempts = max(0, item.attempts + attempts)
        drop_spent(self.store, self.store.sessions[session_id])

    def claim_all(self, session_id: SessionId, turn_id: TurnId) -> None:
        """Give all that waits to a turn."""
        claims = [item.id for item in self.table.waiting(session_id)]
        claim_items(self.store, self.store.sessions[session_id], turn_id, claims)


class DoublingInbox(BrokenInbox):
    """Takes each delivery for a new one."""

    async def deliver(self, delivery: Delivery, **how: Any) -> Delivered:
        self.store.keys.pop((delivery.session_id, "inbox", delivery.id), None)
        return await super().deliver(delivery, **how)


class RacingInbox(BrokenInbox):
    """Looks whether an item is there, and stores it later: two may look the same."""

    async def deliver(self, delivery: Delivery, **how: Any) -> Delivered:
        place: tuple[SessionId, KeySpace, str] = (delivery.session_id, "inbox", delivery.id)
        is_there = place in self.store.keys
        await self.store.reached()
        if is_there:
            return await super().deliver(delivery, **how)
        self.store.keys.pop(place, None)
        session = self.store.sessions[delivery.session_id]
        seq = put_item(self.store, session, delivery, queued_draft(delivery), attempts_max=2)
        return Delivered(seq, False, session.inbox_waiting, None)


class SilentInbox(BrokenInbox):
    """Stores an item and has no turn answer it."""

    async def deliver(self, delivery: Delivery, **how: Any) -> Delivered:
        answer = await super().deliver(delivery, **how)
        if not answer.duplicate:
            for row in list(self.rows.of_session(delivery.session_id)):
                if row.origin == "inbox" and row.status in ("queued", "ready"):
                    del self.rows.turns[row.id]
        return replace(answer, turn_id=None)


class BoundlessInbox(BrokenInbox):
    """Takes whatever comes."""

    async def deliver(self, delivery: Delivery, **how: Any) -> Delivered:
        return await super().deliver(delivery, max_pending=1_000)


class LossyInbox(BrokenInbox):
    """Makes room by forgetting the oldest item."""

    async def deliver(self, delivery: Delivery, **how: Any) -> Delivered:
        try:
            return await super().deliver(delivery, **how)
        except InboxFull:
            session = self.store.sessions[delivery.session_id]
            self.table.drop(session, {self.table.waiting(session.id)[0].id})
            return await super().deliver(delivery, **how)


class OpenInbox(BrokenInbox):
    """Shows anyone what waits."""

    async def waiting(self, session_id: SessionId, owner: OwnerId) -> Sequence[InboxItem]:
        session = self.store.sessions.get(session_id)
        return await super().waiting(session_id, owner if session is None else session.owner)


class TrimmingInbox(BrokenInbox):
    """Cuts what is too long instead of refusing it."""

    async def deliver(self, delivery: Delivery, **how: Any) -> Delivered:
        return await super().deliver(replace(delivery, content=delivery.content[: 1024 * 1024]), **how)


class PlainInbox(BrokenInbox):
    """Forgets what an item's turn shall be made of."""

    async def deliver(self, delivery: Delivery, **how: Any) -> Delivered:
        return await super().deliver(replace(delivery, agent=None, meta=None), **how)


class HastyInbox(BrokenInbox):
    """Tries a refused turn again at once."""

    async def recover(self, *, limit: int = 50) -> Recovered:
        for items in self.table.items.values():
            for item in items:
                item.due_at = self.store.now()
        return await super().recover(limit=limit)


class PatientInbox(BrokenInbox):
    """Never tries a refused turn again."""

    async def recover(self, *, limit: int = 50) -> Recovered:
        return Recovered([], may_be_more=False)


class ContentInbox(BrokenInbox):
    """Takes a pass that answers few turns for the last."""

    async def recover(self, *, limit: int = 50) -> Recovered:
        found = await super().recover(limit=limit)
        return replace(found, may_be_more=len(found.ready) == limit)


class ForgetfulInbox(BrokenInbox):
    """Tells an operator of what was delivered, answered or not."""

    async def backlog(self) -> InboxBacklog:
        items = [item for of_session in self.table.items.values() for item in of_session]
        since = min((item.delivered_at for item in items), default=self.store.now())
        return InboxBacklog(len(items), (self.store.now() - since).total_seconds())


class FreshInbox(BrokenInbox):
    """Counts what waits, and says that it came just now."""

    async def backlog(self) -> InboxBacklog:
        return replace(await super().backlog(), oldest_s=0.0)


class HoardingInbox(BrokenInbox):
    """Keeps the items of removed sessions."""

    async def waiting(self, session_id: SessionId, owner: OwnerId) -> Sequence[InboxItem]:
        try:
            return await super().waiting(session_id, owner)
        except SessionMissing:
            return []


class BlindInbox(BrokenInbox):
    """Leaves a dead turn for the sweep."""

    async def deliver(self, delivery: Delivery, **how: Any) -> Delivered:
        self._turn_attempts_max = 1_000
        dead = [row for row in self.rows.of_session(delivery.session_id) if row.status == "running"]
        kept = [(row, row.expires_at) for row in dead]
        for row in dead:
            row.expires_at = self.store.now().replace(year=9_000)
        answer = await super().deliver(delivery, **how)
        for row, expires_at in kept:
            row.expires_at = expires_at
        return answer


class TrustingQueue(BrokenQueue):
    """Believes whatever items a turn names."""

    async def open(self, claim: Claim, commit_id: str, drafts: Any, **how: Any) -> Opened:
        claims = [item.id for item in self.table.waiting(claim.session_id)]
        return await super().open(claim, commit_id, drafts, **how | {"claims": claims})


class GreedyQueue(BrokenQueue):
    """Lets a user's turn claim what waits."""

    async def open(self, claim: Claim, commit_id: str, drafts: Any, **how: Any) -> Opened:
        opened = await super().open(claim, commit_id, drafts, **how)
        if claim.origin == "user":
            self.claim_all(claim.session_id, claim.turn_id)
        return opened

    async def begin(self, admission: Admission, *holder: Any, **how: Any) -> Begun:
        begun = await super().begin(admission, *holder, **how)
        self.claim_all(admission.session_id, admission.turn_id)
        return begun


class HungryQueue(BrokenQueue):
    """Lets an inbox turn claim what it does not name, too."""

    async def open(self, claim: Claim, commit_id: str, drafts: Any, **how: Any) -> Opened:
        opened = await super().open(claim, commit_id, drafts, **how)
        if claim.origin == "inbox" and opened.result == "opened":
            self.claim_all(claim.session_id, claim.turn_id)
        return opened


class LaxBeginQueue(BrokenQueue):
    """Begins an inbox turn over anything, also over nothing."""

    async def begin(self, admission: Admission, *holder: Any, **how: Any) -> Begun:
        waiting = tuple(item.id for item in self.table.waiting(admission.session_id))
        try:
            return await super().begin(replace(admission, claims=waiting), *holder, **how)
        except NothingPending:
            return await super().begin(replace(admission, origin="user"), *holder, **how)


class BargingQueue(BrokenQueue):
    """Begins beside an inbox turn that someone holds."""

    async def begin(self, admission: Admission, *holder: Any, **how: Any) -> Begun:
        for row in self.rows.of_session(admission.session_id):
            if row.origin == "inbox" and row.status not in FINISHED:
                row.status, row.number = "queued", None
                row.free()
        return await super().begin(admission, *holder, **how)


class BusyQueue(BrokenQueue):
    """Takes any unfinished row for one that a host has to wait for."""

    async def begin(self, admission: Admission, *holder: Any, **how: Any) -> Begun:
        for row in self.rows.of_session(admission.session_id):
            if row.origin == "inbox" and row.status == "ready":
                row.origin = "user"
        return await super().begin(admission, *holder, **how)


class KeepingQueue(BrokenQueue):
    """Gives items back whatever came of them."""

    async def end(self, claim: Claim, commit_id: str, drafts: Any, ending: Ending, **how: Any) -> Ended:
        claimed = [i for i in self.table.items.get(claim.session_id, []) if i.turn_id == claim.turn_id]
        answer = await super().end(claim, commit_id, drafts, ending, **how)
        if ending.outcome == "partial" and claimed:
            for item in claimed:
                item.turn_id = None
            session = self.store.sessions[claim.session_id]
            self.table.items[session.id] = claimed
            self.table.count(session)
        return answer


class LosingQueue(BrokenQueue):
    """Takes items for done when their turn was interrupted."""

    async def end(self, claim: Claim, commit_id: str, drafts: Any, ending: Ending, **how: Any) -> Ended:
        answer = await super().end(claim, commit_id, drafts, ending, **how)
        session = self.store.sessions[claim.session_id]
        if ending.outcome == "interrupted":
            self.table.drop(session, {item.id for item in self.table.waiting(session.id)})
        return replace(answer, pending=session.inbox_waiting)


class StubbornQueue(BrokenQueue):
    """Counts no attempts, and so gives nothing up."""

    async def end(self, claim: Claim, commit_id: str, drafts: Any, ending: Ending, **how: Any) -> Ended:
        for item in self.table.items.get(claim.session_id, []):
            item.attempts_max = 1_000
        return await super().end(claim, commit_id, drafts, ending, **how)

    async def reap(self, *, limit: int = 50) -> Sequence[TurnView]:
        for items in self.table.items.values():
            for item in items:
                item.attempts_max = 1_000
        return await super().reap(limit=limit)


class CountingQueue(BrokenQueue):
    """Counts an attempt for every interruption, written or not."""

    async def end(self, claim: Claim, commit_id: str, drafts: Any, ending: Ending, **how: Any) -> Ended:
        return await super().end(claim, commit_id, drafts, replace(ending, counts_attempt=True), **how)


class ForgivingQueue(BrokenQueue):
    """Counts none for a turn that was ended from outside."""

    async def reap(self, *, limit: int = 50) -> Sequence[TurnView]:
        touched = await super().reap(limit=limit)
        for view in touched:
            self.tamper(view.session_id, -1)
        return touched

    async def abandon(self, turn_id: TurnId, fence: Fence) -> bool:
        closed = await super().abandon(turn_id, fence)
        self.tamper(self.rows.turns[turn_id].session_id, -1)
        return closed


class SternQueue(BrokenQueue):
    """Counts an attempt for a turn that only made way."""

    async def admit(self, admission: Admission, limits: AdmissionLimits, **how: Any) -> Receipt:
        receipt = await super().admit(admission, limits, **how)
        if admission.on_busy == "interrupt":
            self.tamper(admission.session_id, 1)
        return receipt


class HeedlessCancelQueue(BrokenQueue):
    """Cancels the inbox's turn like anybody's, and a dead one too."""

    async def cancel(self, turn_id: TurnId, owner: OwnerId) -> Cancelled:
        row = self.rows.turns[turn_id]
        was, row.origin = row.origin, "user"
        if row.status == "running" and row.expires_at is not None:
            row.expires_at = self.store.now().replace(year=9_000)
        answer = await super().cancel(turn_id, owner)
        row.origin = was
        return answer


class IdleQueue(BrokenQueue):
    """Ends turns without looking at the inbox."""

    def _unfollow(self, session_id: SessionId) -> None:
        for row in list(self.rows.of_session(session_id)):
            if row.origin == "inbox" and row.status in ("queued", "ready") and row.number is None:
                del self.rows.turns[row.id]

    async def end(self, claim: Claim, *how: Any, **more: Any) -> Ended:
        answer = await super().end(claim, *how, **more)
        self._unfollow(claim.session_id)
        return answer

    async def cancel(self, turn_id: TurnId, owner: OwnerId) -> Cancelled:
        answer = await super().cancel(turn_id, owner)
        self._unfollow(answer.session_id)
        return answer

    async def admit(self, admission: Admission, limits: AdmissionLimits, **how: Any) -> Receipt:
        receipt = await super().admit(admission, limits, **how)
        if admission.on_busy == "interrupt":
            self._unfollow(admission.session_id)
        return receipt


class UnaskedQueue(BrokenQueue):
    """Asks no host about turns that entered unasked."""

    async def open(self, claim: Claim, commit_id: str, drafts: Any, **how: Any) -> Opened:
        return await super().open(claim, commit_id, drafts, **how | {"admit": None})


class LoopingQueue(BrokenQueue):
    """Inserts a refused inbox turn again at once."""

    async def open(self, claim: Claim, commit_id: str, drafts: Any, **how: Any) -> Opened:
        try:
            return await super().open(claim, commit_id, drafts, **how)
        except TurnRefused:
            promote(self.store, self.rows, self.store.sessions[claim.session_id])
            raise


class NosyQueue(BrokenQueue):
    """Asks about every turn that opens, and about those that are open."""

    async def open(self, claim: Claim, commit_id: str, drafts: Any, **how: Any) -> Opened:
        row = self.rows.turns[claim.turn_id]
        if row.number is not None and how.get("admit") is not None:
            how["admit"].asked += 1
        return await super().open(claim, commit_id, drafts, **how)


class UnfencedRefusalQueue(BrokenQueue):
    """Lets a lost holder refuse the turn of the next one."""

    async def open(self, claim: Claim, commit_id: str, drafts: Any, **how: Any) -> Opened:
        row = self.rows.turns[claim.turn_id]
        if how.get("admit") is not None and row.token is not None:
            claim = replace(claim, fence=row.fence)
        return await super().open(claim, commit_id, drafts, **how)
