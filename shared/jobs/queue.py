"""The port of the background pools' items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from shared.domain.ids import OwnerId, WorkerId
from shared.leases.fence import Fence

Pool = Literal["activity", "remember", "index"]
How = Literal["done", "retry", "wait", "release", "park"]
Settled = Literal["idle", "ready", "parked", "lost"]

ATTEMPTS_MAX = 5
#: Losses in a row of holders that live; each further one counts a try.
ALIVE_LOSSES_MAX: Final = 10
BACKGROUND_POOLS: Final[tuple[Pool, ...]] = ("activity", "remember", "index")


@dataclass(frozen=True, slots=True)
class JobClaim:
    """An item that this process owns until its lease passes.

    ``attempts`` counts the failed tries before this one, ``waits`` how often in a row something outside was away.
    """

    pool: Pool
    job_id: str
    owner: OwnerId
    fence: Fence
    attempts: int
    lost: bool
    waits: int = 0


@dataclass(frozen=True, slots=True)
class JobRenewal:
    """The answer of ``renew``, by job id."""

    renewed: frozenset[str]
    skipped: frozenset[str]
    lost: frozenset[str]


@dataclass(frozen=True, slots=True)
class JobBacklog:
    """What a pool owes; each count stops at 10,000. ``oldest_due_s`` is the age of the oldest due item."""

    ready: int
    running: int
    parked: int
    oldest_due_s: float


@dataclass(frozen=True, slots=True)
class ParkedJob:
    """An item that was given up, with its last failure's code."""

    pool: Pool
    job_id: str
    owner: OwnerId
    attempts: int
    last_failure: str | None


class JobQueue(Protocol):
    """Stores items and judges every move of theirs by the store's clock.

    All may raise ``StoreBusy`` (nothing stored) and ``StoreUnavailable`` (a write's outcome is unknown).
    """

    async def owe(self, pool: Pool, job_id: str, owner: OwnerId) -> None:
        """Say that an item is owed; a running one is done again afterwards. Usually a store's own transaction does it."""
        ...

    async def claim(
        self,
        pool: Pool,
        worker: WorkerId,
        *,
        places: int,
        lease_s: float,
        cursor: str = "",
        takeovers: bool = True,
    ) -> Sequence[JobClaim]:
        """Claim up to ``places`` items: lost ones first, then due ones, an even share an owner from ``cursor`` on.

        A lease that ran out counts a try when its holder's process is gone (silent for ``lease_s`` seconds); at
        ``ATTEMPTS_MAX`` it is parked instead. A holder that lives is forgiven ``ALIVE_LOSSES_MAX`` losses in a row. Without
        ``takeovers`` lost items are left alone: the caller was itself without the store, and cannot say who else was.
        """
        ...

    async def renew(self, pool: Pool, fences: Mapping[str, Fence], lease_s: float) -> JobRenewal:
        """Extend all that a process holds of a pool, in one statement; never after the lease passed."""
        ...

    async def settle(
        self, claim: JobClaim, how: How, *, due_in_s: float = 0.0, failure: str | None = None
    ) -> Settled:
        """Let go of an item. ``lost`` when it was no longer ours; nothing changed then.

        ``retry`` and a lost lease count a try, and ``ATTEMPTS_MAX`` of them park it; ``wait`` (something outside is away)
        and ``release`` (a drain) never do.
        """
        ...

    async def backlog(self, pool: Pool) -> JobBacklog:
        """Count what a pool owes."""
        ...

    async def has_overdue(self, pool: Pool, older_than_s: float) -> bool:
        """Say whether the pool has a due item older than this."""
        ...

    async def parked(self, pool: Pool, *, limit: int = 100) -> Sequence[ParkedJob]:
        """List items that were given up, the newest first."""
        ...

    async def retry(self, pool: Pool, job_id: str) -> bool:
        """Put a parked item back; False when it was not parked."""
        ...
