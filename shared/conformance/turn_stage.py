"""What the checks of the turn queue act on: its subject, and a stage with an owner, a revision and workers of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import UUID

from shared.conformance.check import require, same
from shared.conformance.session_log import require_whole
from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId, new_run_id, new_session_id, new_turn_id
from shared.leases.fence import Fence
from shared.sessions.log import NewSession, SessionLog
from shared.sessions.records import Draft, Head, draft
from shared.turns.queue import (
    FINISHED,
    Admission,
    AdmissionLimits,
    Claim,
    ClaimRequest,
    Ended,
    Ending,
    Outcome,
    Receipt,
    TurnQueue,
    TurnView,
    WorkerSeen,
)

#: Long enough that no lease passes on its own while a check runs.
LEASE_S = 120.0
#: The length that a takeover judges a holder's silence by. The subject's store must have been up for longer.
TAKEOVER_LEASE_S = 2.0
LIVE = frozenset({"ready", "running", "waiting"})
ATTEMPTS_MAX = 3


class TurnQueueSubject(Protocol):
    """An adapter under test: a turn queue and the session log over the same data.

    Its store has been up for more than ``TAKEOVER_LEASE_S``, and its queue allows ``ATTEMPTS_MAX`` attempts.
    """

    async def open(self) -> TurnQueue:
        """Return a new handle over the same data; the subject closes it in the end."""
        ...

    async def log(self) -> SessionLog:
        """Return a handle of the session log over the same data."""
        ...

    def new_owner(self) -> OwnerId:
        """Return an owner who has nothing yet. Owners sort in the order they were asked for."""
        ...

    def new_worker(self) -> WorkerId:
        """Return a worker process that nobody has heard of."""
        ...

    def new_revision(self) -> str:
        """Return an agent revision that no other turn has: a claim sees its own revisions only, so checks stay apart."""
        ...

    async def limit_owner(
        self, owner: OwnerId, *, running_max: int | None = None, queued_max: int | None = None
    ) -> None:
        """Set an owner's own bounds; the owner has a session."""
        ...

    async def inherit(self, child: SessionId, parent: SessionId, *, turns: int) -> None:
        """Make a session the fork of another, with that one's turns up to a number as its inherited history (0: none)."""
        ...

    async def advance(self, seconds: float) -> None:
        """Let time pass for this subject's owners and workers (or move their stored times back by as much)."""
        ...


@dataclass(slots=True)
class Stage:
    """One check's own world. Every helper acts through the port alone."""

    subject: TurnQueueSubject
    queue: TurnQueue
    log: SessionLog
    owner: OwnerId
    revision: str
    worker: WorkerId
    limits: AdmissionLimits
    admitted: dict[SessionId, list[TurnId]] = field(default_factory=dict)

    async def session(self, owner: OwnerId | None = None) -> SessionId:
        """Create a session of the stage's owner, or of another."""
        created = await self.log.create(NewSession(new_session_id(), owner or self.owner))
        return created.session_id

    def admission(self, session_id: SessionId, **given: Any) -> Admission:
        """Return an admission with fresh ids, of the stage's owner and revision."""
        standard = Admission(
            turn_id=new_turn_id(),
            run_id=new_run_id(),
            session_id=session_id,
            owner=self.owner,
            message={"text": "hello"},
            agent_revision=self.revision,
        )
        return replace(standard, **given)

    async def admit(self, session_id: SessionId, **given: Any) -> Receipt:
        """Admit a turn."""
        receipt = await self.queue.admit(self.admission(session_id, **given), self.limits)
        turns = self.admitted.setdefault(session_id, [])
        if receipt.turn_id not in turns:
            turns.append(receipt.turn_id)
        return receipt

    def request(self, **given: Any) -> ClaimRequest:
        """Return a claim request for the stage's revision, with one place."""
        standard = ClaimRequest(
            worker=self.worker,
            places=1,
            revisions=(self.revision,),
            lease_s=LEASE_S,
            attempts_max=ATTEMPTS_MAX,
        )
        return replace(standard, **given)

    async def claims(self, **given: Any) -> Sequence[Claim]:
        """Claim."""
        return await self.queue.claim(self.request(**given))

    async def claim(self, **given: Any) -> Claim:
        """Claim one turn; there must be exactly one to have."""
        found = await self.claims(**given)
        require(len(found) == 1, f"one turn is claimed, not {len(found)}")
        return found[0]

    async def open(self, claim: Claim) -> int:
        """Open a claimed turn; return its number."""
        opened = await self.queue.open(claim, commit_id(claim, "open"), [started(claim)])
        same(opened.result, "opened", "a claimed turn that never opened opens")
        return opened.number

    async def open_turn(self, **given: Any) -> Claim:
        """Make a session with one turn, claim and open it."""
        await self.admit(await self.session(), **given)
        claim = await self.claim(takeovers=False)
        await self.open(claim)
        return claim

    async def reply(self, claim: Claim, outcome: Outcome = "completed") -> int:
        """Store the turn's reply."""
        reply = draft("turn.reply", {"v": 1, "outcome": outcome, "text": "hi"})
        return await self.queue.append(claim, commit_id(claim, "reply"), [reply])

    async def end(self, claim: Claim, outcome: Outcome = "completed") -> Ended:
        """End an open turn."""
        return await self.queue.end(claim, commit_id(claim, "end"), [ended(outcome)], Ending(outcome))

    async def release(self, claim: Claim, *, due_in_s: float = 0.0) -> bool:
        """Give a claim back."""
        return await self.queue.release(claim.turn_id, claim.fence, due_in_s=due_in_s)

    async def lose_leases(self) -> None:
        """Let all leases of the stage's owners pass."""
        await self.subject.advance(LEASE_S + 1)

    async def take_over(
        self, *, worker: WorkerId | None = None, living_holder: WorkerId | None = None
    ) -> Claim:
        """Take the one lost row with another worker process; ``living_holder`` lets the lost holder's process live."""
        if living_holder is not None:
            await self.queue.seen(seen(living_holder))
        taken = await self.claim(worker=worker or self.subject.new_worker(), lease_s=TAKEOVER_LEASE_S)
        require(taken.lost, "the claim says that it took a lost row")
        renewal = await self.queue.renew(fences(taken), LEASE_S)
        same(renewal.renewed, frozenset({taken.turn_id}), "the fresh claim is renewed")
        return taken

    async def reap(self) -> list[TurnView]:
        """Sweep dead rows; return those of this stage."""
        mine = {turn for turns in self.admitted.values() for turn in turns}
        return [view for view in await self.queue.reap(limit=1_000) if view.turn_id in mine]

    async def view(self, turn: Claim | Receipt) -> TurnView:
        """Read a turn."""
        return await self.queue.get(turn.turn_id, self.owner)

    async def kinds(self, session_id: SessionId) -> list[tuple[int | None, str]]:
        """Read the log's turn numbers and kinds."""
        return [(r.turn, r.kind) for r in await self.log.read(session_id)]

    async def check_session(self, session_id: SessionId) -> Head:
        """Require both "at every instant" sentences of the core, the log's rules, and that it verifies; return the head."""
        views = [await self.queue.get(turn, self.owner) for turn in self.admitted.get(session_id, [])]
        unfinished = sorted((v for v in views if v.status not in FINISHED), key=lambda v: v.position)
        if unfinished:
            statuses = [v.status for v in unfinished]
            require(statuses[0] in LIVE, f"the first unfinished row is live, not {statuses}")
            require(set(statuses[1:]) <= {"queued"}, f"all later rows are queued, not {statuses}")
        head = await require_whole(self.log, session_id, self.owner)
        by_id = {v.turn_id: v for v in views}
        if head.open is not None:
            status = by_id[TurnId(head.open.turn_id)].status
            require(status not in FINISHED, f"the open turn is unfinished, not {status}")
        await self._check_records(session_id, views)
        return head

    async def _check_records(self, session_id: SessionId, views: Sequence[TurnView]) -> None:
        records = await self.log.read(session_id)
        for view in views:
            kinds = [r.kind for r in records if r.turn == view.number and view.number is not None]
            same(
                kinds[:1],
                [] if view.number is None else ["turn.started"],
                "an opened turn starts once, first",
            )
            same(kinds.count("turn.started"), min(len(kinds), 1), "it starts once")
            same(kinds.count("turn.ended"), int(view.status == "ended" and bool(kinds)), "it ends once")
            if "turn.ended" in kinds:
                same(kinds[-1], "turn.ended", "nothing of it stands after its end")


async def stage(subject: TurnQueueSubject, **limits: Any) -> Stage:
    """Return a new stage over a subject."""
    return Stage(
        subject=subject,
        queue=await subject.open(),
        log=await subject.log(),
        owner=subject.new_owner(),
        revision=subject.new_revision(),
        worker=subject.new_worker(),
        limits=replace(AdmissionLimits(attempts_max=ATTEMPTS_MAX), **limits),
    )


def commit_id(claim: Claim, name: str) -> str:
    """Return a holder's commit id: it contains the fence's token (core 6)."""
    return f"{claim.fence.token.hex}:{name}"


def started(claim: Claim) -> Draft:
    """Return a turn's first record."""
    return draft("turn.started", {"v": 1, "turn_id": str(claim.turn_id)})


def ended(outcome: Outcome = "completed") -> Draft:
    """Return a turn's last record."""
    return draft("turn.ended", {"v": 1, "reason": outcome})


def step(n: int = 1) -> Draft:
    """Return a record of a step."""
    return draft("step.started", {"v": 1, "run": 1, "step": n})


def seen(worker: WorkerId, **given: Any) -> WorkerSeen:
    """Return what a worker process says of itself."""
    standard = WorkerSeen(
        worker=worker,
        host="host",
        pid=1,
        queues=("turns",),
        revisions=("1",),
        capacity=4,
        held=0,
        version="1.0",
    )
    return replace(standard, **given)


def with_fence(claim: Claim, *, epoch: int | None = None, token: UUID | None = None) -> Claim:
    """Return the claim with a part of its fence replaced."""
    fence = Fence(claim.fence.epoch if epoch is None else epoch, token or claim.fence.token)
    return replace(claim, fence=fence)


def fences(*claims: Claim) -> Mapping[TurnId, Fence]:
    """Return the fences of claims, as a process passes them to ``renew`` and ``watch``."""
    return {claim.turn_id: claim.fence for claim in claims}
