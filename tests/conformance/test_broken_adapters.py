"""A kit that passes everything proves nothing: each broken adapter here fails the checks that are about its fault."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from shared.conformance import (
    ConformanceCheck,
    ConformanceFailure,
    leases_conformance,
    session_log_conformance,
    session_log_recovery_conformance,
    turn_queue_conformance,
)
from shared.conformance.check import Check
from shared.domain.ids import OwnerId, SessionId, TurnId
from shared.leases.fence import Fence
from shared.leases.inproc import InprocLeases
from shared.leases.port import Leases, NamedLease
from shared.sessions.inproc import InprocSessionLog, InprocStore, StoredSession
from shared.sessions.log import READ_MAX_RECORDS, SessionLog
from shared.sessions.records import Draft
from shared.turns.inproc import InprocTurnQueue
from shared.turns.inproc.rows import FOREVER, TurnTables
from shared.turns.queue import (
    FINISHED,
    Admission,
    AdmissionLimits,
    Claim,
    ClaimRequest,
    Ended,
    Ending,
    Receipt,
    Renewal,
    Standing,
    TurnQueue,
)
from tests.conformance.subjects import InprocLeasesSubject, InprocSessionLogSubject, InprocTurnQueueSubject


class LostUpdateLog(InprocSessionLog):
    """Reads the revision, then writes: two may read the same."""

    async def commit(self, session_id: SessionId, owner: OwnerId, drafts: Sequence[Draft], **how: Any) -> Any:
        head = await self.head(session_id, owner)
        if how.get("expect") == head.revision:
            how["expect"] = None
        return await super().commit(session_id, owner, drafts, **how)


class TimelessLog(InprocSessionLog):
    """Judges no last moment."""

    async def commit(self, session_id: SessionId, owner: OwnerId, drafts: Sequence[Draft], **how: Any) -> Any:
        return await super().commit(session_id, owner, drafts, **how | {"not_after": None})


class ForwardLog(InprocSessionLog):
    """Reads the first records before a seq instead of the last ones."""

    async def read_back(self, session_id: SessionId, **how: Any) -> Any:
        limit = how.pop("limit", READ_MAX_RECORDS)
        return list(reversed(await super().read_back(session_id, **how)))[:limit][::-1]


class TornLog(InprocSessionLog):
    """Stores a commit record by record."""

    async def commit(self, session_id: SessionId, owner: OwnerId, drafts: Sequence[Draft], **how: Any) -> Any:
        for one in drafts[:-1]:
            await super().commit(session_id, owner, [one])
        return await super().commit(session_id, owner, drafts[-1:], **how)


class EndlessPageLog(InprocSessionLog):
    """Reads pages of any size."""

    async def read(self, session_id: SessionId, **how: Any) -> Any:
        return await super().read(session_id, **how | {"max_bytes": None})


class GappyStore(InprocStore):
    """Leaves a seq out after each commit."""

    def append(self, session: StoredSession, drafts: Sequence[Draft], **how: Any) -> int:
        seq = super().append(session, drafts, **how)
        session.seq += 1
        return seq


class OwnerlessStore(InprocStore):
    """Lets anyone at a session that exists."""

    def owned(self, session_id: SessionId, owner: OwnerId) -> StoredSession:
        known = self.sessions.get(session_id)
        return super().owned(session_id, owner if known is None else known.owner)


class ForgetfulLeases(InprocLeases):
    """Begins again at the first epoch."""

    async def acquire(self, name: str, holder: str, lease_s: float) -> NamedLease:
        lease = await super().acquire(name, holder, lease_s)
        return replace(lease, fence=Fence(1, lease.fence.token))


class EternalLeases(InprocLeases):
    """Says of every lease that it was renewed."""

    async def renew(self, lease: NamedLease) -> bool:
        await super().renew(lease)
        return True


class BrokenQueue(InprocTurnQueue):
    """A queue that reaches into its own rows."""

    def __init__(self, store: InprocStore) -> None:
        super().__init__(store)
        self.store = store
        self.rows = store.part(TurnTables).turns


class RootlessQueue(BrokenQueue):
    """Takes every session for one that begins with itself."""

    async def claim(self, request: ClaimRequest) -> Sequence[Claim]:
        return [replace(claim, inherits=False) for claim in await super().claim(request)]


class ForgetfulQueue(BrokenQueue):
    """Forgets the epoch, so that a worker gets the same one again."""

    async def claim(self, request: ClaimRequest) -> Sequence[Claim]:
        claims = await super().claim(request)
        for claim in claims:
            self.rows[claim.turn_id].epoch = 1
        return [replace(claim, fence=Fence(1, claim.fence.token)) for claim in claims]


class ClocklessQueue(BrokenQueue):
    """Lets a holder write past its lease as long as nobody else took the turn."""

    async def append(self, claim: Claim, commit_id: str, drafts: Sequence[Draft], **how: Any) -> int:
        row = self.rows.get(claim.turn_id)
        if row is not None and row.token == claim.fence.token:
            row.expires_at = self.store.now() + timedelta(hours=1)
        return await super().append(claim, commit_id, drafts, **how)


class UncheckedQueue(BrokenQueue):
    """Appends whatever revision is expected."""

    async def append(self, claim: Claim, commit_id: str, drafts: Sequence[Draft], **how: Any) -> int:
        return await super().append(claim, commit_id, drafts, **how | {"expect": None})


class UnextendedQueue(BrokenQueue):
    """Forgets that a write extends its lease."""

    async def append(self, claim: Claim, commit_id: str, drafts: Sequence[Draft], **how: Any) -> int:
        return await super().append(claim, commit_id, drafts, **how | {"extend_s": None})


class EagerQueue(BrokenQueue):
    """Makes every admitted turn ready."""

    async def admit(self, admission: Admission, limits: AdmissionLimits, **how: Any) -> Receipt:
        receipt = await super().admit(admission, limits, **how)
        row = self.rows[receipt.turn_id]
        if row.status == "queued":
            row.status = "ready"
        return replace(receipt, status=row.status)


class HopefulQueue(BrokenQueue):
    """Tells of no turn that it is over."""

    async def standings(self, turn_ids: Sequence[TurnId]) -> Mapping[TurnId, Standing]:
        found = await super().standings(turn_ids)
        return {turn_id: one for turn_id, one in found.items() if one.status not in FINISHED}


class ForgetfulEndQueue(BrokenQueue):
    """Keeps no end's commit id."""

    async def end(
        self, claim: Claim, commit_id: str, drafts: Sequence[Draft], ending: Ending, **how: Any
    ) -> Ended:
        return await super().end(claim, uuid4().hex, drafts, ending, **how)


class TokenlessQueue(BrokenQueue):
    """Looks at the epoch alone."""

    async def append(self, claim: Claim, commit_id: str, drafts: Sequence[Draft], **how: Any) -> int:
        row = self.rows.get(claim.turn_id)
        token: UUID | None = None if row is None or row.epoch != claim.fence.epoch else row.token
        fence = claim.fence if token is None else replace(claim.fence, token=token)
        return await super().append(replace(claim, fence=fence), commit_id, drafts, **how)


class RenewingAllQueue(BrokenQueue):
    """Gives a lease to a turn that is held without one."""

    async def renew(self, fences: Mapping[TurnId, Fence], lease_s: float) -> Renewal:
        for turn_id in fences:
            self.rows[turn_id].expires_at = self.store.now() + timedelta(seconds=lease_s)
        return await super().renew(fences, lease_s)


class CarelessQueue(BrokenQueue):
    """Abandons whatever is open, under any fence."""

    async def abandon(self, turn_id: TurnId, fence: Fence) -> bool:
        row = self.rows[turn_id]
        row.expires_at = FOREVER
        return await super().abandon(turn_id, row.fence) if row.token is not None else False


class HeedlessQueue(BrokenQueue):
    """Asks no hook."""

    async def admit(self, admission: Admission, limits: AdmissionLimits, **how: Any) -> Receipt:
        return await super().admit(admission, limits)


class PoliteQueue(BrokenQueue):
    """Interrupts nothing."""

    async def admit(self, admission: Admission, limits: AdmissionLimits, **how: Any) -> Receipt:
        return await super().admit(replace(admission, on_busy="enqueue"), limits, **how)


class SharelessQueue(BrokenQueue):
    """Bounds no background turns and begins with no oldest one."""

    async def claim(self, request: ClaimRequest) -> Sequence[Claim]:
        return await super().claim(replace(request, background_places=None, oldest_first=False))


class BoundlessQueue(BrokenQueue):
    """Is never full, and moves turns that run."""

    async def admit(self, admission: Admission, limits: AdmissionLimits, **how: Any) -> Receipt:
        return await super().admit(admission, replace(limits, is_full=False), **how)

    async def move_revision(self, old: str, new: str, *, limit: int = 1_000) -> int:
        moved = await super().move_revision(old, new, limit=limit)
        for row in self.rows.values():
            row.agent_revision = (
                new if row.agent_revision == old and row.status == "running" else row.agent_revision
            )
        return moved


class LogSubject(InprocSessionLogSubject):
    """A subject of a broken log or over a broken store."""

    def __init__(
        self, log: type[InprocSessionLog] = InprocSessionLog, store: type[InprocStore] = InprocStore
    ) -> None:
        super().__init__()
        self.store = store(self.clock)
        self._log = log

    async def log(self) -> SessionLog:
        return self._log(self.store)


class ForgettingSubject(LogSubject):
    """Opens a new store each time."""

    async def log(self) -> SessionLog:
        return InprocSessionLog(InprocStore(self.clock))


class LeasesSubject(InprocLeasesSubject):
    """A subject of broken leases."""

    def __init__(self, leases: type[InprocLeases]) -> None:
        super().__init__()
        self._leases = leases

    async def open(self) -> Leases:
        return self._leases(self.leases)


class QueueSubject(InprocTurnQueueSubject):
    """A subject of a broken queue."""

    def __init__(self, queue: type[BrokenQueue]) -> None:
        super().__init__()
        self._queue = queue

    async def open(self) -> TurnQueue:
        return self._queue(self.store)


FAULTS: Sequence[tuple[str, Sequence[ConformanceCheck], Sequence[str]]] = [
    (
        "a log that reads, then writes",
        session_log_conformance(LogSubject(LostUpdateLog)),
        ["of 50 concurrent commits on one revision exactly one wins"],
    ),
    (
        "a log without last moments",
        session_log_conformance(LogSubject(TimelessLog)),
        ["a commit after its last moment is refused by the store's clock, and nothing is stored"],
    ),
    (
        "a log with endless pages",
        session_log_conformance(LogSubject(EndlessPageLog)),
        ["a read starts after its cursor, stops at its limit, and filters by kind and turn"],
    ),
    (
        "a log with gaps",
        session_log_conformance(LogSubject(store=GappyStore)),
        ["records get dense seqs from 1 and the store's time, and the log verifies"],
    ),
    (
        "a log that reads back from its beginning",
        session_log_conformance(LogSubject(ForwardLog)),
        ["a log is read backwards from its end or before a seq, to a limit and by kind"],
    ),
    (
        "a log that tears commits",
        session_log_recovery_conformance(LogSubject(TornLog)),
        ["an interrupted commit is stored whole or not at all"],
    ),
    (
        "a log whose handles share nothing",
        session_log_recovery_conformance(ForgettingSubject()),
        ["commits are there after their handle was closed and another opened"],
    ),
    (
        "a store that asks for no owner",
        session_log_conformance(LogSubject(store=OwnerlessStore)),
        ["another owner's session reads as absent in every operation"],
    ),
    (
        "leases that forget the epoch",
        leases_conformance(LeasesSubject(ForgetfulLeases)),
        ["an acquisition raises the epoch and draws a fresh token, also for the same holder"],
    ),
    (
        "leases that never end",
        leases_conformance(LeasesSubject(EternalLeases)),
        ["a lease that passed is not renewed, also while nobody took it"],
    ),
    (
        "a queue that knows of no forks",
        turn_queue_conformance(QueueSubject(RootlessQueue)),
        ["a claim that says whether its session goes on from another's history is right"],
    ),
    (
        "a queue that forgets the epoch",
        turn_queue_conformance(QueueSubject(ForgetfulQueue)),
        ["each claim raises the epoch by one and draws a fresh token, also for the same worker"],
    ),
    (
        "a queue that looks at no clock",
        turn_queue_conformance(QueueSubject(ClocklessQueue)),
        ["an expired lease writes nothing, also while nobody has taken over"],
    ),
    (
        "a queue that compares no token",
        turn_queue_conformance(QueueSubject(TokenlessQueue)),
        ["a stale epoch, a stale token or a foreign turn writes nothing"],
    ),
    (
        "a queue that tells of no end",
        turn_queue_conformance(QueueSubject(HopefulQueue)),
        ["how many turns stand is read at once, and absent ones are left out"],
    ),
    (
        "a queue that checks no revision",
        turn_queue_conformance(QueueSubject(UncheckedQueue)),
        [
            "an append that expects a revision is stored at that one alone, and a repeat finds it",
            "an append that is refused extends nothing",
        ],
    ),
    (
        "a queue that extends no lease",
        turn_queue_conformance(QueueSubject(UnextendedQueue)),
        ["an append extends its lease when it says so, and only then"],
    ),
    (
        "a queue without order",
        turn_queue_conformance(QueueSubject(EagerQueue)),
        [
            "a session has one live row, its first unfinished one, whatever ends or frees rows",
            "turns of a session are claimed one at a time in the order of admission, whatever their priority",
        ],
    ),
    (
        "a queue that renews what has no lease",
        turn_queue_conformance(QueueSubject(RenewingAllQueue)),
        ["a turn held without a lease is left alone by claims, sweeps and renewals"],
    ),
    (
        "a queue that abandons anything",
        turn_queue_conformance(QueueSubject(CarelessQueue)),
        [
            "a turn whose process is gone is abandoned under exactly its fence, once",
            "abandoning leaves leased and claimed turns alone, and a stored reply wins",
        ],
    ),
    (
        "a queue that asks no host",
        turn_queue_conformance(QueueSubject(HeedlessQueue)),
        [
            "a host's admission sees each turn once, at the door that stores it",
            "a turn that a host refuses is not stored, whether it was refused before or after",
            "an error inside a host's admission reaches the caller, whatever the host does with it",
        ],
    ),
    (
        "a queue that interrupts nothing",
        turn_queue_conformance(QueueSubject(PoliteQueue)),
        [
            "an interruption ends the open turn and all that wait, and its own turn is ready",
            "an interruption of a claimed turn that never opened leaves nothing of it in the log",
            "an interruption makes room for itself: what it ends is not counted",
        ],
    ),
    (
        "a queue without shares",
        turn_queue_conformance(QueueSubject(SharelessQueue)),
        [
            "a claim takes no more background turns than it has places for, and leaves none idle",
            "a claim that begins with the oldest takes it before more urgent turns of any owner",
        ],
    ),
    (
        "a queue without bounds",
        turn_queue_conformance(QueueSubject(BoundlessQueue)),
        [
            "a full system refuses what waits more, after the key, and stores nothing",
            "waiting turns of a revision that nobody serves are moved to another, in batches",
        ],
    ),
    (
        "a queue that forgets its ends",
        turn_queue_conformance(QueueSubject(ForgetfulEndQueue)),
        ["a repeated end answers its first result and stores nothing, also after the next turn opened"],
    ),
]


@pytest.mark.behaviour("KIT-01", "KIT-03")
@pytest.mark.parametrize(
    ("checks", "broken"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
async def test_a_broken_adapter_fails_the_checks_of_its_fault_by_their_names(
    checks: Sequence[ConformanceCheck], broken: Sequence[str]
) -> None:
    for name in broken:
        [check] = [check for check in checks if check.name == name]
        with pytest.raises(ConformanceFailure) as failure:
            await check.run()
        assert str(failure.value).startswith(f"{name}: ")


async def test_a_check_that_hangs_fails_in_bounded_time() -> None:
    async def hang(subject: None) -> None:
        await asyncio.Event().wait()

    with pytest.raises(ConformanceFailure, match="an adapter answers"):
        await Check("an adapter answers", (), hang).on(None, timeout_s=0.01).run()


@pytest.mark.behaviour("KIT-02")
def test_kits_run_without_any_test_library() -> None:
    checks = leases_conformance(InprocLeasesSubject())

    async def run_all() -> None:
        for check in checks:
            await check.run()

    asyncio.run(run_all())
