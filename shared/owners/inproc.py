"""API keys in memory: for tests and for hosts that hand in a fixed set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from shared.domain.ids import OwnerId
from shared.owners.keys import LIST_MAX_KEYS, ApiKey, KeyId, NewKey, key_digest, key_id_of


@dataclass(slots=True)
class InprocApiKeys:
    """Implements :class:`shared.owners.keys.ApiKeys`; ``lookups`` counts reads by a key's text."""

    lookups: int = 0
    _keys: dict[KeyId, tuple[ApiKey, bytes]] = field(default_factory=dict)

    async def add(self, key: NewKey, owner: OwnerId, name: str) -> None:
        """See the port."""
        kept = ApiKey(key.id, owner, name, datetime.now(UTC), None)
        self._keys.setdefault(key.id, (kept, key_digest(key.text)))

    async def owner_of(self, text: str) -> OwnerId | None:
        """See the port."""
        self.lookups += 1
        key_id = key_id_of(text)
        found = None if key_id is None else self._keys.get(key_id)
        if found is None or found[0].revoked_at is not None or found[1] != key_digest(text):
            return None
        return found[0].owner

    async def list(self, owner: OwnerId | None = None) -> Sequence[ApiKey]:
        """See the port."""
        keys = [key for key, _ in self._keys.values() if owner is None or key.owner == owner]
        return sorted(keys, key=lambda k: (k.created_at, k.id))[:LIST_MAX_KEYS]

    async def revoke(self, key_id: KeyId) -> bool:
        """See the port."""
        found = self._keys.get(key_id)
        if found is None:
            return False
        key, digest = found
        self._keys[key_id] = (replace(key, revoked_at=key.revoked_at or datetime.now(UTC)), digest)
        return True
