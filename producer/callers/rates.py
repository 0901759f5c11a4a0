"""How fast an owner may write: one rate over all routes that write, told in the RateLimit fields (API-17, DST-14).

Each producer counts alone: behind one address an owner gets at most the rate times the number of producers. A shared count
would cost a round trip a write, and would have to give way whenever its server is away.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from throttled import Quota, Rate, RateLimiterType, Throttled
from throttled.store import MemoryStore

from shared.domain.errors import RateLimited
from shared.domain.ids import OwnerId
from shared.owners.limits import OwnerLimits, Owners

#: How long an owner's own limits are believed to be what they were; a change of them takes no longer than this.
LIMITS_CACHE_S: Final = 10.0
#: Owners remembered at once, about 250 bytes each. Whoever wrote least recently is forgotten first, with a full burst.
OWNERS_MAX: Final = 10_000
#: The one policy that the fields name.
POLICY: Final = "writes"
#: The limiter counts whole writes in whole seconds: rates are given as writes in this many.
_PERIOD_S: Final = 1_000


@dataclass(frozen=True, slots=True)
class Allowance:
    """What became of one write: whether it is let in, how it is told, and the bound of its body if the owner has one."""

    headers: Mapping[str, str]
    body_max_bytes: int | None
    retry_after_s: float | None = None

    def require(self) -> None:
        """Raise ``RateLimited`` when the write came too early."""
        if self.retry_after_s is not None:
            raise RateLimited(
                "too many writes; come again later",
                retry_after_s=self.retry_after_s,
                bound=self.headers["RateLimit-Policy"],
            )


@dataclass(frozen=True, slots=True)
class _Known:
    """An owner as this process knows it until ``until``."""

    own: OwnerLimits
    limiter: Throttled
    policy: str
    until: float


class WriteRates:
    """Lets writes in at ``per_s`` with bursts of ``burst``, by GCRA; an owner's own row wins over both.

    A check costs about 5 µs and waits for nobody, but for one read of the owner's row each ``LIMITS_CACHE_S``. Raises
    what :class:`~shared.owners.limits.Owners` does.
    """

    def __init__(
        self, owners: Owners, *, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._owners = owners
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._store = MemoryStore(options={"MAX_SIZE": OWNERS_MAX})
        self._known: OrderedDict[OwnerId, _Known] = OrderedDict()

    async def take(self, owner: OwnerId) -> Allowance:
        """Count one write of ``owner``; a write that is not let in costs nothing."""
        known = self._known.get(owner)
        if known is None or known.until <= self._clock():
            known = self._learn(owner, await self._owners.limits(owner))
        result = known.limiter.limit(owner)
        state = result.state
        return Allowance(
            headers={
                "RateLimit-Policy": known.policy,
                "RateLimit": f'"{POLICY}";r={state.remaining};t={math.ceil(state.reset_after)}',
            },
            body_max_bytes=known.own.body_max_bytes,
            retry_after_s=state.retry_after if result.limited else None,
        )

    def _learn(self, owner: OwnerId, own: OwnerLimits) -> _Known:
        per_s = own.writes_per_s or self._per_s
        burst = own.writes_burst or self._burst
        rate = Rate(period=timedelta(seconds=_PERIOD_S), limit=max(1, round(per_s * _PERIOD_S)))
        limiter = Throttled(using=RateLimiterType.GCRA.value, quota=Quota(rate, burst), store=self._store)
        policy = f'"{POLICY}";q={burst};w={math.ceil(burst / per_s)}'
        known = _Known(own, limiter, policy, self._clock() + LIMITS_CACHE_S)
        self._known[owner] = known
        self._known.move_to_end(owner)
        if len(self._known) > OWNERS_MAX:
            self._known.popitem(last=False)
        return known
