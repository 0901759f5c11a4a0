"""Named leases in this process's memory: the twin of the Postgres ones. Gone with the process; for tests and trials."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from shared.domain.errors import LeaseHeld
from shared.leases.fence import Fence
from shared.leases.port import NamedLease

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return this machine's time, aware of its zone: the clock of a twin that was given none."""
    return datetime.now(UTC)


@dataclass(slots=True)
class _Row:
    epoch: int = 0
    token: UUID | None = None
    expires_at: datetime | None = None

    def is_held(self, now: datetime) -> bool:
        return self.token is not None and self.expires_at is not None and self.expires_at >= now


@dataclass(slots=True)
class LeaseTable:
    """The rows that several :class:`InprocLeases` share, and the clock that judges them."""

    now: Clock = utc_now
    rows: dict[str, _Row] = field(default_factory=dict)


class InprocLeases:
    """Implements :class:`shared.leases.port.Leases` over a :class:`LeaseTable`.

    It shows results, order and fences, not locks. Every operation lets other tasks run once before it acts, as one
    over a network would, and is then atomic.
    """

    def __init__(self, table: LeaseTable) -> None:
        self._table = table

    async def acquire(self, name: str, holder: str, lease_s: float) -> NamedLease:
        """See the port."""
        await asyncio.sleep(0)
        now = self._table.now()
        row = self._table.rows.setdefault(name, _Row())
        if row.is_held(now):
            left = row.expires_at - now if row.expires_at is not None else timedelta()
            raise LeaseHeld(f"lease {name} is held", name=name, expires_in_s=left.total_seconds())
        fence = Fence(row.epoch + 1, uuid4())
        row.epoch, row.token, row.expires_at = fence.epoch, fence.token, now + timedelta(seconds=lease_s)
        return NamedLease(name, fence, lease_s)

    async def renew(self, lease: NamedLease) -> bool:
        """See the port."""
        await asyncio.sleep(0)
        now = self._table.now()
        row = self._own_row(lease)
        if row is None or not row.is_held(now):
            return False
        row.expires_at = now + timedelta(seconds=lease.lease_s)
        return True

    async def release(self, lease: NamedLease) -> bool:
        """See the port."""
        await asyncio.sleep(0)
        row = self._own_row(lease)
        if row is None:
            return False
        row.token = row.expires_at = None
        return True

    def _own_row(self, lease: NamedLease) -> _Row | None:
        row = self._table.rows.get(lease.name)
        return row if row is not None and Fence(row.epoch, row.token or UUID(int=0)) == lease.fence else None
