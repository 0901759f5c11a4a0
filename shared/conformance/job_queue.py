"""The kit of the background pools' items: what any adapter of :class:`shared.jobs.queue.JobQueue` must show."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, Protocol
from uuid import uuid4

from shared.conformance.check import ConformanceCheck, check, checks_of, require, same
from shared.domain.ids import OwnerId, WorkerId
from shared.jobs.queue import ALIVE_LOSSES_MAX, ATTEMPTS_MAX, JobClaim, JobQueue, Pool
from shared.leases.fence import Fence

POOL: Final[Pool] = "remember"
OTHER_POOL: Final[Pool] = "index"
#: Long enough that no lease passes, and nothing becomes due, on its own while a check runs.
LEASE_S: Final = 120.0
LATER_S: Final = 600.0
#: Of claims that take over. The subject's store has been up for longer.
TAKEOVER_LEASE_S: Final = 2.0
#: More than a check owes.
PLACES: Final = 64


class JobQueueSubject(Protocol):
    """An adapter under test. Its checks run one after another: each takes away what is due when it begins."""

    async def open(self) -> JobQueue:
        """Return a new handle over the same data; the subject closes it in the end."""
        ...

    def new_owner(self) -> OwnerId:
        """Return an owner who has nothing yet. Owners sort in the order they were asked for."""
        ...

    def new_worker(self) -> WorkerId:
        """Return a worker process."""
        ...

    async def see(self, worker: WorkerId) -> None:
        """Have a worker process count as alive from now on, whatever time passes."""
        ...

    async def advance(self, seconds: float) -> None:
        """Let this much time pass for the items of this subject's owners (or move their stored times back by it)."""
        ...


def job_queue_conformance(subject: JobQueueSubject) -> Sequence[ConformanceCheck]:
    """Return the checks of a queue of background items for this subject."""
    return [each.on(subject) for each in CHECKS]


@dataclass(slots=True)
class Stage:
    """One check's own items over a pool in which nothing else is due."""

    subject: JobQueueSubject
    queue: JobQueue
    owner: OwnerId
    worker: WorkerId
    names: count[int] = field(default_factory=count)

    @classmethod
    async def of(cls, subject: JobQueueSubject) -> Stage:
        """Return a stage, after everything due was taken away."""
        stage = cls(subject, await subject.open(), subject.new_owner(), subject.new_worker())
        for pool in (POOL, OTHER_POOL):
            while claims := await stage.claim(pool=pool):
                for claim in claims:
                    await stage.queue.settle(claim, "done")
        return stage

    async def owe(self, owner: OwnerId | None = None) -> str:
        """Owe a new item; return its id."""
        owner = owner or self.owner
        job_id = f"{owner}/{next(self.names):04d}"
        await self.queue.owe(POOL, job_id, owner)
        return job_id

    async def claim(
        self, places: int = PLACES, *, pool: Pool = POOL, lease_s: float = LEASE_S, **how: Any
    ) -> Sequence[JobClaim]:
        """Claim items for the stage's worker."""
        return await self.queue.claim(pool, self.worker, places=places, lease_s=lease_s, **how)

    async def take_over(self, **how: Any) -> Sequence[JobClaim]:
        """Claim after all leases have passed; what is had is then held for as long as otherwise.

        A process counts as gone after the silence of a lease, and as long as that after the store's start.
        """
        await self.subject.advance(LEASE_S + 1)
        claims = await self.claim(lease_s=TAKEOVER_LEASE_S, **how)
        await self.queue.renew(POOL, {claim.job_id: claim.fence for claim in claims}, LEASE_S)
        return claims

    async def hold(self) -> JobClaim:
        """Owe an item and claim it."""
        job_id = await self.owe()
        [claim] = await self.claim()
        same(claim.job_id, job_id, "the one item that is owed is claimed")
        return claim

    async def claim_one(self, job_id: str) -> JobClaim:
        """Claim the one item that is due."""
        claims = await self.claim()
        same([c.job_id for c in claims], [job_id], "the item is claimed, and nothing else")
        return claims[0]

    async def require_none(self, promise: str) -> None:
        """Require that nothing can be claimed."""
        same([c.job_id for c in await self.claim()], [], promise)

    async def parked(self) -> dict[str, tuple[int, str | None]]:
        """Return the tries and the failure of each parked item of the stage's owner."""
        found = await self.queue.parked(POOL, limit=1_000)
        return {p.job_id: (p.attempts, p.last_failure) for p in found if p.owner == self.owner}


# --- owed and claimed ------------------------------------------------------------------------------------------------


@check("an item that is owed is claimed once, with a fence of its own and no tries", "DST-06")
async def claimed_once(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    first, second = await stage.owe(), await stage.owe()
    claims = await stage.claim()
    same([c.job_id for c in claims], [first, second], "what was owed first is claimed first")
    same(
        [(c.pool, c.owner, c.attempts, c.waits, c.lost) for c in claims],
        [(POOL, stage.owner, 0, 0, False)] * 2,
        "a claim says whose item it is, and that nothing happened to it yet",
    )
    same(len({c.fence.token for c in claims}), 2, "each claim draws a token")
    await stage.require_none("what is held is not claimed again")


@check("of many claims at once each item is had by one", "DST-06")
async def one_winner(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    jobs = [await stage.owe() for _ in range(6)]
    handles = [stage.queue, await subject.open()]
    answers = await asyncio.gather(
        *(handles[n % 2].claim(POOL, subject.new_worker(), places=2, lease_s=LEASE_S) for n in range(10))
    )
    had = Counter(claim.job_id for claims in answers for claim in claims)
    require(set(had.values()) <= {1}, f"no item is had twice: {had}")
    left = [c.job_id for c in await stage.claim()]
    same(sorted([*had, *left]), jobs, "and none is forgotten")


@check("pools are apart, also for items of one id")
async def pools_apart(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    job_id = await stage.owe()
    same(await stage.claim(pool=OTHER_POOL), [], "another pool does not claim it")
    await stage.queue.owe(OTHER_POOL, job_id, stage.owner)
    [here], [there] = await stage.claim(), await stage.claim(pool=OTHER_POOL)
    same(await stage.queue.settle(here, "park"), "parked", "one is parked")
    same(await stage.queue.settle(there, "done"), "idle", "the other is done")


@check(
    "an item that is owed again is one item: while it waits, while it is idle, and after a run that was under way"
)
async def owed_again(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    job_id = await stage.owe()
    await stage.queue.owe(POOL, job_id, stage.owner)
    claim = await stage.claim_one(job_id)
    await stage.queue.owe(POOL, job_id, stage.owner)
    await stage.require_none("what is held is not claimed though more came")
    same(await stage.queue.settle(claim, "done"), "ready", "more came meanwhile: it is done again")
    claim = await stage.claim_one(job_id)
    same(await stage.queue.settle(claim, "done"), "idle", "nothing came since")
    await stage.require_none("what is done is owed no more")
    await stage.queue.owe(POOL, job_id, stage.owner)
    await stage.claim_one(job_id)


# --- fair shares -----------------------------------------------------------------------------------------------------


@check("a deep backlog takes the places that others leave, and none of theirs", "DST-14")
async def fair_shares(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    deep, small, other = stage.owner, subject.new_owner(), subject.new_owner()
    for _ in range(20):
        await stage.owe(deep)
    await stage.owe(small)
    for _ in range(4):
        await stage.owe(other)
    same(
        Counter(c.owner for c in await stage.claim(6)),
        Counter({deep: 2, small: 1, other: 3}),
        "each has an even share of what the ones before it left",
    )
    same(Counter(c.owner for c in await stage.claim(10)), Counter({deep: 9, other: 1}), "the rest is filled")


@check("owners are served in rotation from the cursor, and the first follows the last", "DST-14")
async def rotation(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    owners = [stage.owner, subject.new_owner(), subject.new_owner()]
    for owner in sorted(owners * 2):
        await stage.owe(owner)
    served, cursor = [], ""
    for _ in range(6):
        [claim] = await stage.claim(1, cursor=cursor)
        served.append(claim.owner)
        cursor = claim.owner
    same(served, owners * 2, "one claim after another goes to the next owner")


# --- leases and fences -----------------------------------------------------------------------------------------------


@check(
    "a lease that passed is taken over before anything due, as a try, and fences its holder",
    "DST-06",
    "DST-09",
)
async def takeover(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    old = await stage.hold()
    await stage.owe()
    [new] = await stage.take_over(places=1)
    same(
        (new.job_id, new.lost, new.attempts), (old.job_id, True, 1), "the lost one is taken, one try counted"
    )
    same(new.fence.epoch, old.fence.epoch + 1, "the epoch grows by one")
    require(new.fence.token != old.fence.token, "a fresh token is drawn")
    for how in ("done", "retry", "wait", "release", "park"):
        same(await stage.queue.settle(old, how), "lost", f"the old holder cannot settle it as {how}")
    answer = await stage.queue.renew(POOL, {old.job_id: old.fence}, LEASE_S)
    same((answer.renewed, answer.lost), (frozenset(), {old.job_id}), "nor renew it")
    same(await stage.queue.settle(new, "done"), "idle", "the new holder is untouched by all that")


@check("an epoch alone or a token alone is no fence", "DST-09")
async def both_parts_of_the_fence(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    claim = await stage.hold()
    for forged in (Fence(claim.fence.epoch, uuid4()), Fence(claim.fence.epoch + 1, claim.fence.token)):
        same(
            await stage.queue.settle(replace(claim, fence=forged), "done"),
            "lost",
            f"{forged} settles nothing",
        )
    same(await stage.queue.settle(claim, "done"), "idle", "the real fence still holds")
    same(await stage.queue.settle(claim, "done"), "lost", "and only once")


@check("a lease that passed settles and renews nothing, also while nobody took it", "DST-09")
async def passed_lease(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    claim = await stage.hold()
    await subject.advance(LEASE_S + 1)
    same(await stage.queue.settle(claim, "done"), "lost", "it is too late to settle")
    answer = await stage.queue.renew(POOL, {claim.job_id: claim.fence}, LEASE_S)
    same((answer.renewed, answer.lost), (frozenset(), {claim.job_id}), "and to renew")


@check("a renewal extends what is held and names what is lost")
async def renewal(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    held = await stage.hold()
    ended = await stage.hold()
    await stage.queue.settle(ended, "done")
    fences = {held.job_id: held.fence, ended.job_id: ended.fence, "never": Fence(1, uuid4())}
    for _ in range(3):
        await subject.advance(LEASE_S / 2)
        answer = await stage.queue.renew(POOL, fences, LEASE_S)
        same((answer.renewed, answer.lost), ({held.job_id}, {ended.job_id, "never"}), "each has its answer")
    await stage.require_none("it is still held after three halves of its lease")
    same(await stage.queue.settle(held, "done"), "idle", "and settled by its holder")
    empty = await stage.queue.renew(POOL, {}, LEASE_S)
    same((empty.renewed, empty.skipped, empty.lost), (frozenset(),) * 3, "nothing held, nothing said")


@check("an item that takes its worker with it again and again is parked at the last try", "DST-13", "DST-20")
async def poison(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    job_id = (await stage.hold()).job_id
    for tries in range(1, ATTEMPTS_MAX):
        [claim] = await stage.take_over()
        same((claim.attempts, claim.lost), (tries, True), "every lost lease counts a try")
    same(await stage.take_over(), [], "the last try is not given to a worker any more")
    same(await stage.parked(), {job_id: (ATTEMPTS_MAX, "lease lost")}, "it is listed with its reason")


@check("a holder that lives loses its lease ten times in a row without a try", "DST-13")
async def live_holder(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    await subject.see(stage.worker)
    job_id = (await stage.hold()).job_id
    for _ in range(2):
        for _ in range(ALIVE_LOSSES_MAX):
            [claim] = await stage.take_over()
            same((claim.job_id, claim.attempts, claim.lost), (job_id, 0, True), "no try is counted")
        same(
            await stage.queue.settle(claim, "release"), "ready", "whatever lets go of it begins the row anew"
        )
        await stage.claim_one(job_id)
    for _ in range(ALIVE_LOSSES_MAX):
        [claim] = await stage.take_over()
    [claim] = await stage.take_over()
    same(claim.attempts, 1, "the eleventh in a row counts")


@check("a worker that was itself without the store takes over nothing and claims what is due", "DST-13")
async def no_takeovers(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    lost = await stage.hold()
    due = await stage.owe()
    same(
        [(c.job_id, c.lost) for c in await stage.take_over(takeovers=False)],
        [(due, False)],
        "what is due is claimed, what is lost is left",
    )
    same([c.job_id for c in await stage.claim(lease_s=TAKEOVER_LEASE_S)], [lost.job_id], "to others")


# --- settled ---------------------------------------------------------------------------------------------------------


@check("a retry is due later, counts a try and parks the item at the last one with its failure", "DST-13")
async def retries(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    claim = await stage.hold()
    for tries in range(ATTEMPTS_MAX):
        same(claim.attempts, tries, "tries are counted")
        settled = await stage.queue.settle(claim, "retry", due_in_s=LATER_S, failure=f"code.{tries}")
        if tries == ATTEMPTS_MAX - 1:
            same(settled, "parked", "the last try parks")
            break
        same(settled, "ready", "an earlier one does not")
        await stage.require_none("it is not due yet")
        await subject.advance(LATER_S + 1)
        claim = await stage.claim_one(claim.job_id)
    await subject.advance(LATER_S + 1)
    await stage.require_none("what is parked is not claimed")
    same(await stage.parked(), {claim.job_id: (ATTEMPTS_MAX, "code.4")}, "it is listed with its last failure")


@check("waiting for what is away is counted apart and never parks", "DST-13")
async def waits(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    claim = await stage.hold()
    for waited in range(2 * ATTEMPTS_MAX):
        same((claim.attempts, claim.waits), (0, waited), "waits count no tries")
        same(await stage.queue.settle(claim, "wait", due_in_s=LATER_S), "ready", "it is due again later")
        await subject.advance(LATER_S + 1)
        claim = await stage.claim_one(claim.job_id)
    same(await stage.queue.settle(claim, "done"), "idle", "it is done in the end")
    await stage.queue.owe(POOL, claim.job_id, stage.owner)
    claim = await stage.claim_one(claim.job_id)
    same((claim.attempts, claim.waits), (0, 0), "and begins anew")


@check("an item that is done begins its tries anew")
async def done_resets(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    claim = await stage.hold()
    await stage.queue.settle(claim, "retry", failure="code")
    claim = await stage.claim_one(claim.job_id)
    await stage.queue.owe(POOL, claim.job_id, stage.owner)
    await stage.queue.settle(claim, "done")
    same((await stage.claim_one(claim.job_id)).attempts, 0, "tries do not add up over runs that went well")


@check("a release is uncounted, due at once, and keeps what was counted before")
async def release(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    claim = await stage.hold()
    await stage.queue.settle(claim, "retry")
    for _ in range(ATTEMPTS_MAX):
        claim = await stage.claim_one(claim.job_id)
        same(claim.attempts, 1, "the one try stays, releases add none")
        same(await stage.queue.settle(claim, "release"), "ready", "it is free for the next")


@check("a parked item stays parked until it is put back, whatever is owed meanwhile", "DST-13")
async def parked(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    claim = await stage.hold()
    same(await stage.queue.retry(POOL, claim.job_id), False, "what is held is not put back")
    same(await stage.queue.settle(claim, "park", failure="code.bad"), "parked", "it is given up at once")
    same(await stage.parked(), {claim.job_id: (1, "code.bad")}, "and listed")
    await stage.queue.owe(POOL, claim.job_id, stage.owner)
    await stage.require_none("it stays parked though it is owed")
    same(await stage.queue.retry(OTHER_POOL, claim.job_id), False, "no other pool has it")
    same(await stage.queue.retry(POOL, claim.job_id), True, "it is put back")
    same(await stage.queue.retry(POOL, claim.job_id), False, "once")
    same((await stage.claim_one(claim.job_id)).attempts, 0, "with all its tries")
    same(await stage.parked(), {}, "and is not listed any more")


# --- figures ---------------------------------------------------------------------------------------------------------


@check("a pool says what it owes and for how long", "DST-12")
async def figures(subject: JobQueueSubject) -> None:
    stage = await Stage.of(subject)
    before = await stage.queue.backlog(POOL)
    same(await stage.queue.has_overdue(POOL, 1), False, "nothing is due")
    for how in ("park", "retry"):
        await stage.queue.settle(await stage.hold(), how, due_in_s=LATER_S)
    await stage.hold()
    await stage.owe()
    await subject.advance(30)
    after = await stage.queue.backlog(POOL)
    found = (after.ready - before.ready, after.running - before.running, after.parked - before.parked)
    same(found, (2, 1, 1), "ready, running and parked items are counted")
    require(30 <= after.oldest_due_s < 90, f"the oldest is due for 30 s, not {after.oldest_due_s:g}")
    same(
        [await stage.queue.has_overdue(POOL, s) for s in (20, 90)],
        [True, False],
        "it is overdue by 20 s, not by 90",
    )


CHECKS: Final = checks_of(globals())
