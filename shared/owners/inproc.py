"""API keys and limits of owners in memory: for tests and for hosts that hand in a fixed set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from shared.domain.ids import OwnerId
from shared.owners.keys import LIST_MAX_KEYS, ApiKey, KeyId, NewKey, key_digest, key_id_of
from shared.owners.limits import LIST_MAX_OWNERS, OwnerLimits


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


@dataclass(slots=True)
class InprocOwners:
    """Implements :class:`shared.owners.limits.Owners`; ``lookups`` counts reads of one owner's limits."""

    lookups: int = 0
    _limits: dict[OwnerId, OwnerLimits] = field(default_factory=dict)

    async def limits(self, owner: OwnerId) -> OwnerLimits:
        """See the port."""
        self.lookups += 1
        return self._limits.get(owner, OwnerLimits())

    async def set_limits(self, owner: OwnerId, change: OwnerLimits) -> OwnerLimits:
        """See the port."""
        named = {name: value for name, value in asdict(change).items() if value is not None}
        self._limits[owner] = replace(self._limits.get(owner, OwnerLimits()), **named)
        return self._limits[owner]

    async def reset_limits(self, owner: OwnerId) -> bool:
        """See the port."""
        known = owner in self._limits
        if known:
            self._limits[owner] = OwnerLimits()
        return known

    async def list(
        self, *, limit: int = LIST_MAX_OWNERS, after: OwnerId | None = None
    ) -> Sequence[tuple[OwnerId, OwnerLimits]]:
        """See the port."""
        found = [(owner, own) for owner, own in sorted(self._limits.items()) if own != OwnerLimits()]
        return [pair for pair in found if after is None or pair[0] > after][:limit]
