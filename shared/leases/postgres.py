"""Named leases on Postgres."""

from __future__ import annotations

from pathlib import Path

from shared.database.pool import Database
from shared.database.statements import load_statements
from shared.domain.errors import LeaseHeld
from shared.leases.fence import Fence
from shared.leases.port import NamedLease

_SQL = load_statements(Path(__file__).with_name("queries.sql"))


class PostgresLeases:
    """Implements :class:`shared.leases.port.Leases`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def acquire(self, name: str, holder: str, lease_s: float) -> NamedLease:
        """See the port."""
        params = {"name": name, "holder": holder, "lease_s": lease_s}
        [row] = await self._db.call("lease.acquire", _SQL["acquire"], params)
        if not row["acquired"]:
            raise LeaseHeld(f"lease {name} is held", name=name, expires_in_s=row["expires_in_s"])
        return NamedLease(name, Fence(row["epoch"], row["token"]), lease_s)

    async def renew(self, lease: NamedLease) -> bool:
        """See the port."""
        [row] = await self._db.call("lease.renew", _SQL["renew"], _params(lease) | {"lease_s": lease.lease_s})
        return bool(row["held"])

    async def release(self, lease: NamedLease) -> bool:
        """See the port."""
        [row] = await self._db.call("lease.release", _SQL["release"], _params(lease))
        return bool(row["held"])


def _params(lease: NamedLease) -> dict[str, object]:
    return {"name": lease.name, "epoch": lease.fence.epoch, "token": lease.fence.token}
