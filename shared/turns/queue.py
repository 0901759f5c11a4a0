"""The turn queue's port and its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from shared.domain.ids import OwnerId, RunId, SessionId, TurnId, WorkerId
from shared.leases.fence import Fence
from shared.sessions.records import Draft
from shared.turns.admission import TurnAdmission
from shared.turns.processes import Backlog as Backlog
from shared.turns.processes import WorkerSeen as WorkerSeen

OnBusy = Literal["reject", "enqueue", "interrupt"]
OnWorkerLoss = Literal["continue", "interrupt"]
#: How a turn is kept: step by step as it goes, or whole at its end and only then (decision 0020).
TurnHistory = Literal["per-step", "whole-turn"]
Status = Literal["queued", "ready", "running", "waiting", "ended", "cancelled", "refused", "expired"]
Origin = Literal["user", "inbox", "task"]
Outcome = Literal["completed", "partial", "failed", "cancelled", "interrupted"]
CallState = Literal["planned", "started", "done", "failed", "unknown"]

FINISHED: frozenset[str] = frozenset({"ended", "cancelled", "refused", "expired"})
PRIORITIES: Mapping[str, int] = {"interactive": 0, "normal": 1, "background": 2}
ALIVE_LOSSES_FREE = 10
#: When the sweep may insert an inbox turn again whose last one the host refused, in seconds.
INBOX_RETRY_S = 30.0


@dataclass(frozen=True, slots=True)
class Admission:
    """A turn to admit. ``turn_id`` and ``run_id`` are minted before the first try and kept over retries.

    ``begin`` takes an inbox turn too: ``origin`` says so, ``claims`` names the items that it answers, the oldest.
    """

    turn_id: TurnId
    run_id: RunId
    session_id: SessionId
    owner: OwnerId
    message: Mapping[str, Any]
    key: str | None = None
    command: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None
    agent: str = ""
    agent_revision: str = "1"
    on_busy: OnBusy = "enqueue"
    on_worker_loss: OnWorkerLoss = "continue"
    priority: int = 1
    deadline: datetime | None = None
    max_duration_s: float | None = None
    origin: Origin = "user"
    claims: Sequence[str] = ()
    #: The number of the turn that this one continues.
    resumes: int | None = None


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Bounds that an admission is judged by; an owner's own row wins over ``queued_per_owner``.

    ``is_full`` says that the waiting turns of all owners were found to have reached their bound
    (:class:`~shared.turns.waiting.WaitingTotal`); only what makes room for itself is admitted then.
    """

    queued_per_session: int = 100
    queued_per_owner: int = 1_000
    attempts_max: int = 3
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """The proof of an admission. ``after`` is the cursor from which its records can be followed.

    ``superseded`` names the turns that this admission ended while a process held them, and that process: it is told by a
    hint, or within a second by its watch. A repeat names none.
    """

    turn_id: TurnId
    run_id: RunId
    session_id: SessionId
    position: int
    status: Status
    after: int
    duplicate: bool
    superseded: Mapping[TurnId, WorkerId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a process asks for. ``cursor`` is its own place in the rotation of owners, from its last claim.

    ``background_places`` bounds the turns of priority ``background`` among the waiting ones that are claimed (None: no
    bound); the process keeps them below half of its places. ``oldest_first`` begins with the turn that waits longest, of
    whatever owner and priority, so that nothing waits for ever behind more urgent ones.
    """

    worker: WorkerId
    places: int
    revisions: Sequence[str] = ("1",)
    lease_s: float = 15.0
    cursor: str = ""
    hints: Sequence[TurnId] = ()
    background_places: int | None = None
    oldest_first: bool = False
    takeovers: bool = True
    suspects_left: int = 8
    attempts_max: int = 3
    running_per_owner: int = 256
    pool: str = "turns"


@dataclass(frozen=True, slots=True)
class Claim:
    """A turn that this process owns until its lease passes, with all that is needed to open it."""

    turn_id: TurnId
    session_id: SessionId
    owner: OwnerId
    fence: Fence
    number: int | None
    origin: str
    run_id: RunId
    key: str | None
    message: Mapping[str, Any] | None
    command: Mapping[str, Any] | None
    meta: Mapping[str, Any] | None
    agent: str
    agent_revision: str
    on_worker_loss: OnWorkerLoss
    priority: int
    attempts: int
    suspect: bool
    lost: bool
    max_duration_s: float | None
    open_for_s: float | None
    #: Of a background task: the session that is told its result, and the seconds that were left of its deadline.
    parent: SessionId | None = None
    deadline_in_s: float | None = None
    resumes: int | None = None
    #: Whether the session goes on from another's history; None where the claim did not look.
    inherits: bool | None = None
    #: The log's tail, read after the claim was made; None where the claim did not look. While its fence holds, no record that
    #: a prompt is made of follows that tail before this turn's own.
    tail: bytes | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer of ``open``: ``opened`` wrote the drafts; ``adopted`` and ``took-over`` wrote nothing.

    ``started_seq`` is the seq of the turn's first record: none of its records stands before it.
    """

    result: Literal["opened", "adopted", "took-over"]
    number: int
    seq: int
    started_seq: int


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer of ``begin``: the turn that the caller holds now, and how it was opened (or found open: ``adopted``)."""

    claim: Claim
    opened: Opened


@dataclass(frozen=True, slots=True)
class CallEntry:
    """A line of the tool ledger as it shall stand after a commit."""

    invocation_id: str
    step: int
    ordinal: int
    name: str
    argument_digest: str
    token: str
    state: CallState
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer of ``end``: the log's seq, the turn that became ready, if one waited, and the inbox items that wait."""

    seq: int
    promoted: TurnId | None
    pending: int


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ends: outcome, code and message of the failure (cut to 500 characters), usage totals.

    ``counts_attempt`` says of an interrupted inbox turn whether its items were tried; None lets the log say: they were if
    the turn wrote anything after it opened (INB-15).
    """

    outcome: Outcome
    code: str | None = None
    failure: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    counts_attempt: bool | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The answer of ``cancel``. ``took_effect`` is False when the turn had finished, replied, or was dead already."""

    took_effect: bool
    reason: str
    status: Status
    outcome: Outcome | None
    code: str | None
    holder: WorkerId | None
    session_id: SessionId
    after: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer of ``renew``, by turn: renewed, skipped (locked just now: try again at once), or lost."""

    renewed: frozenset[TurnId]
    skipped: frozenset[TurnId]
    lost: frozenset[TurnId]


@dataclass(frozen=True, slots=True)
class Watched:
    """What a process must hear of: turns it no longer holds (and why), and fences it owns without knowing."""

    lost: Mapping[TurnId, str]
    orphans: Mapping[TurnId, Fence]


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn as anyone may see it. ``after`` is its receipt's cursor: all its records come after that seq.

    ``holder`` is whoever runs it; ``leased`` says that its hold passes by itself, and is False for a turn that nobody
    holds or that a process holds for as long as it lives. ``started_seq`` is the seq of its first record, once it opened.
    """

    turn_id: TurnId
    session_id: SessionId
    owner: OwnerId
    run_id: RunId
    position: int
    number: int | None
    origin: str
    status: Status
    outcome: Outcome | None
    code: str | None
    failure: str | None
    agent: str
    agent_revision: str
    priority: int
    attempts: int
    epoch: int
    recovering: bool
    is_open: bool
    holder: WorkerId | None
    leased: bool
    usage: Mapping[str, int]
    key: str | None
    resumes: TurnId | None
    after: int
    started_seq: int | None
    admitted_at: datetime
    opened_at: datetime | None
    ended_at: datetime | None
    deadline: datetime | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Standing:
    """How a turn stands, in short: what those who wait for it to open or to end without opening must know."""

    status: Status
    number: int | None
    outcome: Outcome | None
    code: str | None


class TurnQueue(Protocol):
    """Stores turns and judges every move of theirs in one transaction each (docs/core.md 1 to 8).

    All may raise ``StoreBusy`` (nothing stored) and ``StoreUnavailable`` (a write's outcome is unknown: repeat it with
    the same ids). Writes of a holder raise ``TurnClosed`` with its reason when someone else closed the turn, and
    ``FenceLost`` when the lease passed or another worker owns it; nothing of such a write is stored.
    """

    async def admit(
        self, admission: Admission, limits: AdmissionLimits, *, admit: TurnAdmission | None = None
    ) -> Receipt:
        """Admit a turn: lock the head, then judge key, busy, bounds, and insert the row with the next position.

        Only a session's first unfinished row is ready. Raises ``SessionMissing``, ``KeyConflict``, ``RunIdReused`` (a run
        of the session, or of the history that a fork inherits), ``SessionBusy`` (``on_busy="reject"`` beside any
        unfinished row), ``QueueFull``, and what the host's ``admit`` refuses with. The same key and content, or the same
        ``turn_id`` after a lost answer, answer the first receipt. A dead turn of the session is reaped first.

        Under ``on_busy="interrupt"`` the turn then ends every unfinished one of the session, claimed ones included, and
        is ready itself: the open turn ends by its stored reply, else cancelled (an inbox turn interrupted, and one like
        it follows while items wait), the others cancelled, all with ``turn.superseded``. Refused, it ends none.
        """
        ...

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
        """Open a turn at once, in the caller's own process: its row is inserted running, with its first records.

        Judged in this order: the key (``TurnDuplicate`` with the same content, else ``KeyConflict``), the run id
        (``RunIdReused``), any unfinished row of the session after a dead one was reaped (``SessionBusy``), the host's
        ``admit``; also raises ``SessionMissing``. An inbox turn that nobody holds yet is no such row: it goes after a user's
        turn, and an inbox turn takes its place. That one claims the items it names as :meth:`open` does, with the same
        errors. ``lease_s=None`` holds the turn without expiry: no claim, renewal or
        sweep touches it, and :meth:`abandon` closes it when its process is gone. A repeat with the same ``turn_id`` and
        holder after a lost answer adopts what it made. With ``on_worker_loss="continue"`` a leased turn that is lost goes
        on in a worker that serves its revision. ``on_busy`` and ``deadline`` of the admission say nothing here.
        """
        ...

    async def abandon(self, turn_id: TurnId, fence: Fence) -> bool:
        """Close an open turn that is held without expiry under exactly this fence: its process is known to be gone.

        It ends ``interrupted`` with ``turn.lease``, or by the outcome of its stored reply. Answers whether it was closed.
        """
        ...

    async def claim(self, request: ClaimRequest) -> Sequence[Claim]:
        """Claim up to ``places`` turns: lost rows first, then ready and due ones in fair order over the owners.

        A claim raises the epoch by one and draws a new token. Rows past their lease are taken by the store's clock
        only. Takes no row of an unserved revision, none of an owner at its cap, at most ``suspects_left`` lost rows, and
        of the waiting ones at most ``background_places`` of the background.
        A hint brings its owner to the front of this claim, not its row before the owner's earlier ones.
        """
        ...

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
        """Open a claimed turn with its first records, or take over the open one it already is.

        ``took-over`` moves the head's fence to this claim; ``adopted`` says this very claim had opened it (its answer was
        lost). Raises ``TurnClosed`` for a turn that was cancelled or expired meanwhile, ``SessionBusy`` when another turn
        is open (the row waits, uncounted).

        An inbox turn claims in the same commit the items it names, the oldest that wait, oldest first; others wait for the
        next one. ``InboxMoved`` when it names others (nothing changed: read and repeat), ``NothingPending`` when none does (the row ends ``refused`` with ``inbox.empty``). ``admit``
        judges turns of the inbox and of tasks here, as nobody has before, at the door ``begin``: one it refuses ends
        ``refused`` with the error's code, its items wait on uncounted until :meth:`~shared.inbox.port.Inbox.recover`,
        the next delivery or the next end of a turn. It never judges a user's turn or one that is open already.
        """
        ...

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
        """Append the holder's records and ledger lines; return the log's seq. A repeated ``commit_id`` answers the first.

        ``stepped`` marks a whole step: it resets the turn's attempts and suspicion. With ``expect`` only while the
        session's revision is that one (``RevisionConflict``): a check, then an append. ``extend_s`` moves the lease's
        end to that many seconds from now in the same transaction (SES-87).
        """
        ...

    async def end(
        self,
        claim: Claim,
        commit_id: str,
        drafts: Sequence[Draft],
        ending: Ending,
        *,
        calls: Sequence[CallEntry] = (),
    ) -> Ended:
        """Append the closing records, end the row, free the session and promote the next turn, in one transaction.

        A repeat with the same ``commit_id`` answers its first result, also after the fence is gone and later turns opened.
        """
        ...

    async def cancel(self, turn_id: TurnId, owner: OwnerId) -> Cancelled:
        """End a turn as cancelled, durably, whoever holds it. Raises ``TurnMissing``; a repeat answers as the first did.

        A stored reply wins: the turn ends with its outcome. A dead turn is reaped as interrupted instead. Neither takes
        effect as a cancel.
        """
        ...

    async def release(self, turn_id: TurnId, fence: Fence, *, due_in_s: float = 0.0) -> bool:
        """Give a claimed turn back, uncounted, due after ``due_in_s``; False when it was no longer ours."""
        ...

    async def renew(self, fences: Mapping[TurnId, Fence], lease_s: float) -> Renewal:
        """Extend all leases a process holds, in one statement. A renewal after the lease passed is ``lost``."""
        ...

    async def watch(self, worker: WorkerId, fences: Mapping[TurnId, Fence]) -> Watched:
        """Tell a process which of its turns were cancelled or lost and which it owns without knowing (a lost answer)."""
        ...

    async def reap(self, *, limit: int = 50) -> Sequence[TurnView]:
        """End or free rows that nobody may continue; skips sessions that are busy just now. Returns what it touched."""
        ...

    async def expire(self, *, limit: int = 50) -> int:
        """End unopened rows whose deadline passed; returns how many."""
        ...

    async def get(self, turn_id: TurnId, owner: OwnerId) -> TurnView:
        """Read a turn; raises ``TurnMissing``. Takes no lock."""
        ...

    async def standings(self, turn_ids: Sequence[TurnId]) -> Mapping[TurnId, Standing]:
        """Read how many turns stand, in one statement; absent ones are left out. Takes no lock.

        The caller has established that whoever is told may look at them.
        """
        ...

    async def calls(self, session_id: SessionId, turn_id: TurnId) -> Sequence[CallEntry]:
        """Read a turn's ledger, by step and ordinal."""
        ...

    async def seen(self, worker: WorkerSeen) -> None:
        """Write that a worker process is there (every few seconds, also when idle)."""
        ...

    async def gone(self, worker: WorkerId) -> None:
        """Forget a worker process that stops in order."""
        ...

    async def forget_silent(self, older_than_s: float) -> int:
        """Forget worker processes that were silent for longer than this; returns how many.

        To the turns they held it changes nothing: an absent process is gone, as a silent one is.
        """
        ...

    async def workers(self) -> Sequence[Mapping[str, Any]]:
        """Read all worker rows, at most 1,000, with their silence in seconds."""
        ...

    async def backlog(self, pool: str, revisions: Sequence[str] = ()) -> Backlog:
        """Count what a pool owes. Each count stops at 10,000."""
        ...

    async def move_revision(self, old: str, new: str, *, limit: int = 1_000) -> int:
        """Give up to ``limit`` waiting turns of an agent revision another one; return how many. Moves no turn that runs.

        For turns that no worker serves any more: repeat until 0.
        """
        ...

    async def count_waiting(self, limit: int) -> int:
        """Count the queued and ready turns of all owners, up to ``limit``."""
        ...

    async def has_overdue(self, pool: str, older_than_s: float) -> bool:
        """Say whether the pool has a due row older than this (the sweep rings its queue then)."""
        ...
