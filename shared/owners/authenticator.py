"""The port that tells who calls: a host may hand in its own (API-16)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from shared.domain.ids import OwnerId


class Authenticator(Protocol):
    """Tells who calls. A host's own stands in ``App(authenticator=…)``; without one API keys do, and tokens if set."""

    async def authenticate(self, headers: Mapping[str, str], client_host: str | None) -> OwnerId:
        """Return the owner the request acts for: 1 to 256 printable ASCII characters.

        Asked on every owned route before a byte of its body is read, so it must be quick and must not block the loop.
        ``headers`` finds names in any case; ``client_host`` is the peer's address, None on a Unix socket. Raises
        ``Unauthenticated`` without credentials, ``InvalidCredentials`` with wrong ones, ``Unavailable`` if it cannot tell.
        """
        ...
