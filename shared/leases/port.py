"""The port of named leases (sweeps and other loops that run once in the whole system)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shared.leases.fence import Fence


@dataclass(frozen=True, slots=True)
class NamedLease:
    """A lease that was had: its name, fence and length in seconds."""

    name: str
    fence: Fence
    lease_s: float


class Leases(Protocol):
    """Hands out named leases, one holder at a time, by the store's clock."""

    async def acquire(self, name: str, holder: str, lease_s: float) -> NamedLease:
        """Take the lease if it is free or expired.

        Raises ``LeaseHeld`` with ``expires_in_s`` while it is held, also by the same holder. Every success has a higher
        epoch and a fresh token.
        """
        ...

    async def renew(self, lease: NamedLease) -> bool:
        """Extend a lease that is still held and has not passed; False when it was lost. Never extends a passed lease."""
        ...

    async def release(self, lease: NamedLease) -> bool:
        """Free the lease if it is still ours; False when it was lost."""
        ...
