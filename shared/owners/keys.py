"""API keys: how one looks, what of it is stored, and the port of where they are kept."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NewType, Protocol

from shared.domain.ids import OwnerId

KeyId = NewType("KeyId", str)

NAME_MAX_CHARS: Final = 80
LIST_MAX_KEYS: Final = 1_000
ID_BYTES: Final = 6
SECRET_BYTES: Final = 32

_SHAPE: Final = re.compile(rf"tk_([0-9a-f]{{{2 * ID_BYTES}}})_[0-9a-f]{{{2 * SECRET_BYTES}}}")


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key as it is handed out, once: the id names it, ``text`` is the secret that only its holder keeps."""

    id: KeyId
    text: str


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is kept: whose it is, never what it is."""

    id: KeyId
    owner: OwnerId
    name: str
    created_at: datetime
    revoked_at: datetime | None


def new_key() -> NewKey:
    """Return a fresh key, ``tk_<id>_<secret>``, with 256 random bits of secret."""
    key_id = secrets.token_hex(ID_BYTES)
    return NewKey(KeyId(key_id), f"tk_{key_id}_{secrets.token_hex(SECRET_BYTES)}")


def key_id_of(text: str) -> KeyId | None:
    """Return the id in a key's text, or None for what is no key at all."""
    found = _SHAPE.fullmatch(text)
    return None if found is None else KeyId(found.group(1))


def key_digest(text: str) -> bytes:
    """Return what is stored of a key. Plain SHA-256 is enough: the secret is random, not chosen."""
    return hashlib.sha256(text.encode()).digest()


class ApiKeys(Protocol):
    """Keeps API keys as digests. All may raise ``StoreBusy`` and ``StoreUnavailable``."""

    async def add(self, key: NewKey, owner: OwnerId, name: str) -> None:
        """Keep a new key of ``owner``, whose row is made if need be. Repeatable with the same key."""
        ...

    async def owner_of(self, text: str) -> OwnerId | None:
        """Return whose key this is; None for an unknown or revoked one and for what is no key."""
        ...

    async def list(self, owner: OwnerId | None = None) -> Sequence[ApiKey]:
        """Read keys, revoked ones too, oldest first: of one owner or all; at most ``LIST_MAX_KEYS``."""
        ...

    async def revoke(self, key_id: KeyId) -> bool:
        """Make a key invalid for ever; False when there is none. Revoking again keeps the first time."""
        ...
