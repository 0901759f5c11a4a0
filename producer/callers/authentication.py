"""API keys, and callers on this machine without one (API-16)."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from shared.domain.errors import InvalidCredentials, Unauthenticated
from shared.domain.ids import OwnerId
from shared.owners.keys import ApiKeys, key_digest

_log: Final = logging.getLogger(__name__)

#: How long a key that was valid is believed to be; a revoked key works no longer than this.
KEY_CACHE_S: Final = 10.0
KEY_CACHE_MAX: Final = 1_024

#: Set by proxies: behind one, the peer's address says nothing about the caller.
FORWARDED_HEADERS: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class ApiKeyAuthenticator:
    """Implements ``Authenticator`` with API keys, as ``Authorization: Bearer`` or ``X-API-Key``; with ``loopback_owner`` also callers on this machine.

    A call without a key counts as of this machine when its peer is loopback, no proxy passed it on, and the page of no
    other site made it: host and origin, which a browser sends, are loopback too.
    """

    def __init__(
        self, keys: ApiKeys, *, loopback_owner: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys = keys
        self._loopback_owner = OwnerId(loopback_owner) if loopback_owner else None
        self._clock = clock
        self._known: dict[bytes, tuple[OwnerId, float]] = {}

    async def authenticate(self, headers: Mapping[str, str], client_host: str | None) -> OwnerId:
        """See the port."""
        key = presented_key(headers)
        if key is not None:
            return await self._owner_of(key)
        if self._loopback_owner is not None and is_local_call(headers, client_host):
            return self._loopback_owner
        raise Unauthenticated("an API key is needed: Authorization: Bearer <key>, or X-API-Key: <key>")

    async def _owner_of(self, key: str) -> OwnerId:
        digest = key_digest(key)
        now = self._clock()
        known = self._known.get(digest)
        if known is not None and known[1] > now:
            return known[0]
        owner = await self._keys.owner_of(key)
        if owner is None:
            self._known.pop(digest, None)
            raise InvalidCredentials("the API key is not valid")
        if len(self._known) >= KEY_CACHE_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[digest] = (owner, now + KEY_CACHE_S)
        return owner


def is_local_call(headers: Mapping[str, str], client_host: str | None) -> bool:
    """Say whether a request was made on this machine, by a program or by a page that this machine serves."""
    if client_host is None or not _is_loopback(client_host):
        return False
    if any(name in headers for name in FORWARDED_HEADERS):
        return False
    origin = headers.get("origin")
    return _is_loopback(_host_of(f"//{headers.get('host', '')}")) and (
        origin is None or _is_loopback(_host_of(origin))
    )


def presented_key(headers: Mapping[str, str]) -> str | None:
    """Return the key or token that a request carries; raise ``InvalidCredentials`` for a contradiction."""
    plain = headers.get("x-api-key")
    authorization = headers.get("authorization")
    if authorization is None:
        return plain
    scheme, _, bearer = authorization.partition(" ")
    bearer = bearer.strip()
    if scheme.lower() != "bearer" or not bearer:
        raise InvalidCredentials("Authorization must be: Bearer <key>")
    if plain is not None and plain != bearer:
        raise InvalidCredentials("Authorization and X-API-Key name different keys")
    return bearer


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)
