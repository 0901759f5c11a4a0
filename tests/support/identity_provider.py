"""An identity provider of a test: key pairs, tokens signed with them, and a real HTTP endpoint that serves the JWKS."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.support.hostile_server import Exchange, HostileServer, hostile_server

ISSUER: Final = "https://issuer.example"
AUDIENCE: Final = "turnkeeper"

_RSA: Final = [rsa.generate_private_key(public_exponent=65_537, key_size=2_048) for _ in range(2)]
_EC: Final = ec.generate_private_key(ec.SECP256R1())
_ED: Final = ed25519.Ed25519PrivateKey.generate()

#: Private keys by id, and the way each signs.
PRIVATE: Final[dict[str, tuple[Any, str]]] = {
    "rsa-1": (_RSA[0], "RS256"),
    "rsa-2": (_RSA[1], "RS256"),
    "ec-1": (_EC, "ES256"),
    "ed-1": (_ED, "EdDSA"),
}


def public_jwk(key_id: str, **members: Any) -> dict[str, Any]:
    """Return the public half of a key as a JWK."""
    public = PRIVATE[key_id][0].public_key()
    match public:
        case rsa.RSAPublicKey():
            text = RSAAlgorithm.to_jwk(public)
        case ec.EllipticCurvePublicKey():
            text = ECAlgorithm.to_jwk(public)
        case _:
            text = OKPAlgorithm.to_jwk(public)
    found: dict[str, Any] = json.loads(text)
    return found | {"kid": key_id, "use": "sig"} | members


def claims(**changes: Any) -> dict[str, Any]:
    """Return the claims of a good token of ``ann``; a change to None takes one away."""
    now = int(time.time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": now + 600, "iat": now, "nbf": now}
    return {name: value for name, value in (good | changes).items() if value is not None}


def token(key_id: str = "rsa-1", *, headers: dict[str, Any] | None = None, **changes: Any) -> str:
    """Return a token signed with a key."""
    private, algorithm = PRIVATE[key_id]
    return jwt.encode(
        claims(**changes), private, algorithm=algorithm, headers={"kid": key_id} | (headers or {})
    )


@dataclass
class IdentityProvider:
    """What the endpoint serves now, and how often it was asked."""

    server: HostileServer = field(default_factory=HostileServer)
    key_ids: list[str] = field(default_factory=lambda: ["rsa-1", "ec-1"])
    status: str = "200 OK"
    body: bytes | None = None
    headers: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The address of the JWKS."""
        return f"{self.server.base_url}/jwks.json"

    @property
    def asked(self) -> int:
        """How many requests came."""
        return len(self.server.exchanges)

    async def answer(self, exchange: Exchange) -> None:
        """Answer one request."""
        keys = json.dumps({"keys": [public_jwk(key_id) for key_id in self.key_ids]}).encode()
        await exchange.send_whole(self.status, keys if self.body is None else self.body, *self.headers)


@asynccontextmanager
async def identity_provider() -> AsyncIterator[IdentityProvider]:
    """Serve a JWKS on a free port."""
    provider = IdentityProvider()
    async with hostile_server(provider.answer) as provider.server:
        yield provider
