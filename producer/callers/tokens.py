"""Tokens of an identity provider: JWTs that one configured JWKS vouches for (API-16). Needs the extra ``jwt``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt

from producer.callers.authentication import presented_key
from producer.callers.keyset import KeySet
from shared.domain.bounds import check_identity
from shared.domain.errors import InvalidCredentials, InvalidInput
from shared.domain.ids import OwnerId
from shared.owners.authenticator import Authenticator

_log: Final = logging.getLogger(__name__)

TOKEN_MAX_CHARS: Final = 8_192
#: How far clocks may differ.
LEEWAY_S: Final = 30
_DOTS: Final = 2


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must say: by whom, for whom, signed how, and in which claim it names the owner."""

    issuer: str
    audience: str
    owner_claim: str
    algorithms: Sequence[str]


class TokenAuthenticator:
    """Implements ``Authenticator`` with JWTs; what is no JWT is asked of ``others``, which know API keys.

    The key comes from the configured set alone, whatever a token's header says; the algorithm must be one of the rules
    and fit the key. A token must have ``exp``; ``nbf`` and ``iat`` hold when they are there. Why a token was refused is
    logged, not told.
    """

    def __init__(self, keys: KeySet, rules: TokenRules, others: Authenticator) -> None:
        self._keys = keys
        self._rules = rules
        self._others = others

    async def authenticate(self, headers: Mapping[str, str], client_host: str | None) -> OwnerId:
        """See the port."""
        text = presented_key(headers)
        if text is None or text.count(".") != _DOTS:
            return await self._others.authenticate(headers, client_host)
        try:
            return await self._owner_of(text)
        # A header that is nested without end is what RecursionError means here.
        except (jwt.PyJWTError, InvalidInput, ValueError, RecursionError) as error:
            _log.info("token refused", extra={"reason": type(error).__name__})
            raise InvalidCredentials("the token is not valid") from error

    async def _owner_of(self, token: str) -> OwnerId:
        if len(token) > TOKEN_MAX_CHARS:
            raise ValueError("too long")
        header = jwt.get_unverified_header(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in self._rules.algorithms or not isinstance(key_id, str) or "crit" in header:
            raise ValueError("a header that is not taken")
        key = await self._keys.find(key_id)
        if key is None or key.get("alg", algorithm) != algorithm:
            raise ValueError("no such key")
        claims: dict[str, Any] = jwt.decode(
            token,
            jwt.PyJWK(dict(key), algorithm),
            algorithms=[algorithm],
            audience=self._rules.audience,
            issuer=self._rules.issuer,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iss", "aud", self._rules.owner_claim]},
        )
        owner = claims[self._rules.owner_claim]
        if not isinstance(owner, str):
            raise ValueError("the owner is no text")
        return OwnerId(check_identity(owner, field=self._rules.owner_claim))
