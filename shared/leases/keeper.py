"""Keeps the leases of one process: one loop renews them all in one statement, a timer each ends the trust in time.

Whatever keeps the renewals from succeeding (the database away, a pool used up, a stopped process), the watchdog cancels
the work before the lease can be anyone else's (core 2, rule 4; DST-08, DST-33).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping, Set
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from shared.domain.errors import Unavailable
from shared.leases.fence import Fence
from shared.leases.watchdog import watchdog_deadline

_log: Final = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
K_co = TypeVar("K_co", covariant=True)

SKIPPED_RETRIES: Final = 3


class RenewalAnswer(Protocol[K_co]):
    """What became of the leases that a renewal named."""

    @property
    def renewed(self) -> Set[K_co]: ...

    @property
    def skipped(self) -> Set[K_co]: ...

    @property
    def lost(self) -> Set[K_co]: ...


@dataclass(slots=True)
class KeeperCounts:
    """Figures of the process since its start."""

    renewed: int = 0
    refused: int = 0
    watchdog_fired: int = 0


@dataclass(slots=True, eq=False)
class _Kept:
    fence: Fence
    lose: Callable[[str], None]
    watchdog: asyncio.TimerHandle | None = None


class LeaseKeeper(Generic[K]):
    """Renews what is held and calls ``lose(reason)`` for what is not ours any more. Belongs to one event loop."""

    def __init__(
        self,
        renew: Callable[[Mapping[K, Fence], float], Awaitable[RenewalAnswer[K]]],
        *,
        lease_s: float,
        renew_s: float,
        on_store_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._renew = renew
        self._lease_s = lease_s
        self._renew_s = renew_s
        self._on_store_failure = on_store_failure
        self._kept: dict[K, _Kept] = {}
        self.counts = KeeperCounts()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, key: K, fence: Fence, sent_at: float, lose: Callable[[str], None]) -> None:
        """Keep a lease that a claim sent at ``sent_at`` (loop time) got; an older one of the same key is lost by it."""
        older = self._kept.get(key)
        if older is not None:
            self.lose(key, older.fence, "lost")
        kept = self._kept[key] = _Kept(fence, lose)
        self._arm(key, kept, sent_at)

    def trust(self, key: K, fence: Fence, sent_at: float) -> None:
        """Trust a kept lease from ``sent_at`` on: something else than a renewal, sent then, extended it."""
        kept = self._kept.get(key)
        if kept is not None and kept.fence == fence:
            self._arm(key, kept, sent_at)

    def drop(self, key: K, fence: Fence) -> None:
        """Stop keeping a lease: its work ended, or was lost."""
        kept = self._kept.get(key)
        if kept is not None and kept.fence == fence:
            if kept.watchdog is not None:
                kept.watchdog.cancel()
            del self._kept[key]

    def trusted_until(self, key: K) -> float | None:
        """Return the loop time at which the watchdog ends the trust in a kept lease."""
        kept = self._kept.get(key)
        return None if kept is None or kept.watchdog is None else kept.watchdog.when()

    def fences(self) -> dict[K, Fence]:
        """Return what is kept now."""
        return {key: kept.fence for key, kept in self._kept.items()}

    def lose(self, key: K, fence: Fence, reason: str) -> None:
        """Tell the holder that a lease is no longer ours, if it still is the one that is kept."""
        kept = self._kept.get(key)
        if kept is not None and kept.fence == fence:
            self.drop(key, fence)
            kept.lose(reason)

    async def renew_for_ever(self) -> None:
        """Renew every lease each ``renew_s`` seconds; a database that is away is met again on the next beat."""
        while True:
            await asyncio.sleep(self._renew_s)
            try:
                await self.renew_all()
            except Unavailable as error:
                self._on_store_failure()
                _log.warning("leases could not be renewed: %s", error, extra={"code": error.code})

    async def renew_all(self) -> None:
        """Renew what is kept, once; a row that someone has locked just now is tried again at once."""
        waiting = self.fences()
        for _ in range(SKIPPED_RETRIES):
            if not waiting:
                return
            sent_at = asyncio.get_running_loop().time()
            answer = await self._renew(waiting, self._lease_s)
            self.counts.renewed += len(answer.renewed)
            for key in answer.renewed:
                kept = self._kept.get(key)
                if kept is not None and kept.fence == waiting[key]:
                    self._arm(key, kept, sent_at)
            for key in answer.lost:
                self.counts.refused += 1
                self.lose(key, waiting[key], "lost")
            waiting = {key: fence for key, fence in waiting.items() if key in answer.skipped}

    def _arm(self, key: K, kept: _Kept, sent_at: float) -> None:
        if kept.watchdog is not None:
            kept.watchdog.cancel()
        deadline = watchdog_deadline(sent_at, self._lease_s)
        kept.watchdog = asyncio.get_running_loop().call_at(deadline, self._bark, key, kept)

    def _bark(self, key: K, kept: _Kept) -> None:
        self.counts.watchdog_fired += 1
        _log.warning("a lease could not be renewed in time; its work is cancelled")
        self.lose(key, kept.fence, "watchdog")
