"""Runs a pool's items: claimed in fair order, held under a lease, each pass bounded in time, its outcome settled once."""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from shared.domain.errors import Broken, Exhausted, FenceLost, TurnkeeperError, Unavailable
from shared.domain.ids import WorkerId
from shared.jobs.queue import How, JobClaim, JobQueue, Pool
from shared.leases.keeper import LeaseKeeper
from workers.cancellation import is_cancelled

_log: Final = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 300.0

#: One pass over an item: returns when it is done for now; raises a typed error otherwise.
Pass = Callable[[JobClaim], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """How a pool's items are run. Seconds. ``renew_s`` None: the lease outlasts the deadline and is not renewed."""

    pool: Pool
    lease_s: float
    deadline_s: float
    renew_s: float | None = None


@dataclass(slots=True, eq=False)
class HeldJob:
    """An item that this process holds; ``lost`` says why it is no longer ours."""

    claim: JobClaim
    task: asyncio.Task[None] | None = None
    lost: str | None = None

    def lose(self, reason: str) -> None:
        """Cancel the item's work at its next await."""
        if self.lost is None:
            self.lost = reason
            if self.task is not None:
                self.task.cancel()


@dataclass(slots=True)
class PoolCounts:
    """Figures of the process since its start, by how items were settled, and the codes of failures."""

    settled: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)


class JobServer:
    """Claims and runs the items of one pool; its ``claim`` and ``run`` are what a :class:`workers.pump.Pump` asks for."""

    def __init__(
        self,
        queue: JobQueue,
        worker: WorkerId,
        policy: PoolPolicy,
        run_pass: Pass,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self.pool: Pool = policy.pool
        self._queue = queue
        self._worker = worker
        self._policy = policy
        self._pass = run_pass
        self._rng = rng or random.Random()
        self._cursor = ""
        self._store_failed_at = float("-inf")
        self.keeper: LeaseKeeper[str] = LeaseKeeper(
            lambda fences, lease_s: queue.renew(policy.pool, fences, lease_s),
            lease_s=policy.lease_s,
            renew_s=policy.renew_s or policy.lease_s,
            on_store_failure=self._note_store_failure,
        )
        self.counts = PoolCounts()

    async def claim(self, places: int, hints: Sequence[str]) -> Sequence[HeldJob]:
        """Own up to ``places`` items; see :class:`workers.pump.Pump`. Hints say that there is work; the rotation says whose."""
        sent_at = asyncio.get_running_loop().time()
        try:
            claims = await self._queue.claim(
                self._policy.pool,
                self._worker,
                places=places,
                lease_s=self._policy.lease_s,
                cursor=self._cursor,
                takeovers=sent_at - self._store_failed_at > self._policy.lease_s,
            )
        except Unavailable:
            self._note_store_failure()
            raise
        held = [HeldJob(claim) for claim in claims]
        for one in held:
            self.keeper.keep(one.claim.job_id, one.claim.fence, sent_at, one.lose)
        # Left places go round once more: the owner that came last for the first time is the furthest.
        rotated = dict.fromkeys(claim.owner for claim in claims if not claim.lost)
        if rotated:
            self._cursor = next(reversed(rotated))
        return held

    async def run(self, held: HeldJob) -> None:
        """Run one item to its settlement. Raises nothing but cancellation."""
        held.task = asyncio.current_task()
        claim = held.claim
        try:
            if held.lost is None:
                await self._settle(claim, *await self._run_pass(claim))
        except asyncio.CancelledError:
            if held.lost is None:
                await self._settle(claim, "release", None)
            raise
        finally:
            self.keeper.drop(claim.job_id, claim.fence)

    def _note_store_failure(self) -> None:
        """Remember that the database could not be reached: for one lease nobody's silence means anything (core 7)."""
        self._store_failed_at = asyncio.get_running_loop().time()

    async def _run_pass(self, claim: JobClaim) -> tuple[How | None, str | None]:
        """Run the pass; return how to settle the item (None: it is not ours any more) and the failure's code."""
        try:
            async with asyncio.timeout(self._policy.deadline_s):
                await self._pass(claim)
            return "done", None
        except FenceLost as error:
            _log.info("an item is no longer ours: %s", error, extra=self._about(claim))
            return None, None
        except (Unavailable, Exhausted) as error:
            # Something outside is away or full: it is waited for, however long, and never costs the item its tries.
            return "wait", self._note(claim, error)
        except TimeoutError:
            return "retry", self._note(claim, TimeoutError(f"no end within {self._policy.deadline_s:g} s"))
        except (Exception, asyncio.CancelledError) as error:
            # An item's failure is its own: it is parked with its code (DST-13). So is a cancellation that is not ours:
            # taken for a drain, it would be released and claimed again for ever.
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            return "park", self._note(claim, error)

    async def _settle(self, claim: JobClaim, how: How | None, failure: str | None) -> None:
        if how is None:
            self._count("lost")
            return
        due_in_s = self._backoff(claim.attempts + claim.waits) if how in ("retry", "wait") else 0.0
        try:
            status = await self._queue.settle(claim, how, due_in_s=due_in_s, failure=failure)
        except Unavailable as error:
            # Nothing is lost: the lease passes and the item is claimed again.
            _log.warning("an item could not be settled: %s", error, extra=self._about(claim))
            status = "lost"
        self._count(how if status != "lost" else "lost")

    def _backoff(self, tries: int) -> float:
        """Exponential, with full jitter above the first second (DST-13)."""
        ceiling = min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(tries, 16))
        return self._rng.uniform(RETRY_FIRST_S, max(RETRY_FIRST_S, ceiling))

    def _note(self, claim: JobClaim, error: BaseException) -> str:
        code = error.code if isinstance(error, TurnkeeperError) else Broken.code
        if isinstance(error, TimeoutError):
            code = "timeout"
        elif isinstance(error, TurnkeeperError) and "reason" in error.fields:
            code = f"{code}:{error.fields['reason']}"
        self.counts.failures[code] = self.counts.failures.get(code, 0) + 1
        known = isinstance(error, TurnkeeperError | TimeoutError)
        _log.log(
            logging.WARNING if known else logging.ERROR,
            "an item failed with %s",
            code,
            extra=self._about(claim) | {"code": code} | ({} if known else _where(error)),
        )
        return code

    def _count(self, how: str) -> None:
        self.counts.settled[how] = self.counts.settled.get(how, 0) + 1

    def _about(self, claim: JobClaim) -> dict[str, object]:
        return {
            "pool": claim.pool,
            "job": claim.job_id,
            "epoch": claim.fence.epoch,
            "attempts": claim.attempts,
        }


def _where(error: BaseException) -> dict[str, object]:
    """Name an unknown error by type and place; its text may hold what is remembered, or whose it is (law 9)."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown"
    return {"error": type(error).__name__, "at": place}
