"""API keys and limits of owners on Postgres."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from shared.database.pool import Database
from shared.database.statements import load_statements
from shared.domain.ids import OwnerId
from shared.owners.keys import LIST_MAX_KEYS, ApiKey, KeyId, NewKey, key_digest, key_id_of
from shared.owners.limits import LIST_MAX_OWNERS, OwnerLimits

_SQL = load_statements(Path(__file__).with_name("queries.sql"))


class PostgresApiKeys:
    """Implements :class:`shared.owners.keys.ApiKeys`; one statement an operation."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(self, key: NewKey, owner: OwnerId, name: str) -> None:
        """See the port."""
        params = {"id": key.id, "owner": owner, "name": name, "digest": key_digest(key.text)}
        await self._db.call("key.add", _SQL["add_key"], params, repeatable=True)

    async def owner_of(self, text: str) -> OwnerId | None:
        """See the port."""
        key_id = key_id_of(text)
        if key_id is None:
            return None
        rows = await self._db.call("key.find", _SQL["find_key"], {"id": key_id}, repeatable=True)
        for row in rows:
            if hmac.compare_digest(bytes(row["digest"]), key_digest(text)):
                return OwnerId(row["owner"])
        return None

    async def list(self, owner: OwnerId | None = None) -> Sequence[ApiKey]:
        """See the port."""
        params = {"owner": owner, "limit": LIST_MAX_KEYS}
        rows = await self._db.call("key.list", _SQL["list_keys"], params, repeatable=True)
        return [
            ApiKey(KeyId(r["id"]), OwnerId(r["owner"]), r["name"], r["created_at"], r["revoked_at"])
            for r in rows
        ]

    async def revoke(self, key_id: KeyId) -> bool:
        """See the port."""
        return bool(await self._db.call("key.revoke", _SQL["revoke_key"], {"id": key_id}, repeatable=True))


class PostgresOwners:
    """Implements :class:`shared.owners.limits.Owners`; one statement an operation."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def limits(self, owner: OwnerId) -> OwnerLimits:
        """See the port."""
        rows = await self._db.read("owner.limits", _SQL["read_limits"], {"owner": owner})
        return OwnerLimits.of_row(rows[0]) if rows else OwnerLimits()

    async def set_limits(self, owner: OwnerId, change: OwnerLimits) -> OwnerLimits:
        """See the port."""
        params = asdict(change) | {"owner": owner}
        [row] = await self._db.call("owner.set", _SQL["set_limits"], params, repeatable=True)
        return OwnerLimits.of_row(row)

    async def reset_limits(self, owner: OwnerId) -> bool:
        """See the port."""
        params = {"owner": owner}
        return bool(await self._db.call("owner.reset", _SQL["reset_limits"], params, repeatable=True))

    async def list(
        self, *, limit: int = LIST_MAX_OWNERS, after: OwnerId | None = None
    ) -> Sequence[tuple[OwnerId, OwnerLimits]]:
        """See the port."""
        params = {"limit": limit, "after": after or ""}
        rows = await self._db.read("owner.list", _SQL["list_limits"], params)
        return [(OwnerId(row["id"]), OwnerLimits.of_row(row)) for row in rows]
