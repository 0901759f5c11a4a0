"""Tokens of an identity provider over a real JWKS endpoint: whom they name, and all that is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from producer.callers.authentication import ApiKeyAuthenticator
from producer.callers.keyset import (
    JWKS_MAX_BYTES,
    REFETCH_MIN_S,
    REFRESH_S,
    STALE_MAX_S,
    KeySet,
    read_keys,
)
from producer.callers.tokens import TokenAuthenticator, TokenRules
from shared.domain.errors import ConfigError, InvalidCredentials, KeysUnavailable
from shared.owners.inproc import InprocApiKeys
from shared.settings import load_settings
from tests.support.identity_provider import (
    AUDIENCE,
    ISSUER,
    PRIVATE,
    IdentityProvider,
    claims,
    identity_provider,
    public_jwk,
    token,
)
from tests.support.producer_process import ROOT
from tests.support.producers import Producer, calling, create_session
from tests.support.waiting import await_until

RULES = TokenRules(ISSUER, AUDIENCE, "sub", ("RS256", "ES256"))
NOW = int(time.time())
YEAR_S = 365 * 86_400


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def judging(
    provider: IdentityProvider, *, clock: HandClock | None = None, rules: TokenRules = RULES
) -> AsyncIterator[TokenAuthenticator]:
    keys = KeySet(provider.url, clock=clock or HandClock())
    try:
        yield TokenAuthenticator(keys, rules, ApiKeyAuthenticator(InprocApiKeys()))
    finally:
        await keys.close()


async def owner_of(who: TokenAuthenticator, text: str) -> str:
    return await who.authenticate({"authorization": f"Bearer {text}"}, "203.0.113.5")


def part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed_with_the_public_key(key_id: str) -> str:
    """The oldest trick: the public key, which anyone has, taken for a shared secret."""
    public = PRIVATE[key_id][0].public_key()
    secret = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    body = f"{part({'alg': 'HS256', 'kid': key_id, 'typ': 'JWT'})}.{part(claims())}"
    return f"{body}.{part(hmac.digest(secret, body.encode(), hashlib.sha256))}"


def own_key_in_the_header(name: str, value: Any) -> str:
    """Signed with a key that the set does not have, and a header that says where it is to be had."""
    return jwt.encode(claims(), PRIVATE["rsa-2"][0], algorithm="RS256", headers={"kid": "rsa-1", name: value})


HOSTILE = {
    "alg none": f"{part({'alg': 'none', 'kid': 'rsa-1'})}.{part(claims())}.",
    "alg None": f"{part({'alg': 'None', 'kid': 'rsa-1'})}.{part(claims())}.",
    "alg no text": f"{part({'alg': ['RS256'], 'kid': 'rsa-1'})}.{part(claims())}.AAAA",
    "HS256 with the public key": signed_with_the_public_key("rsa-1"),
    "HS256 with the public key of a curve": signed_with_the_public_key("ec-1"),
    "an algorithm that is not pinned": jwt.encode(
        claims(), PRIVATE["rsa-1"][0], algorithm="RS512", headers={"kid": "rsa-1"}
    ),
    "an algorithm that does not fit the key": jwt.encode(
        claims(), PRIVATE["ec-1"][0], algorithm="ES256", headers={"kid": "rsa-1"}
    ),
    "wrong audience": token(aud="other"),
    "no audience": token(aud=None),
    "wrong issuer": token(iss="https://issuer.example.evil"),
    "no issuer": token(iss=None),
    "expired": token(exp=NOW - 3_600),
    "no expiry": token(exp=None),
    "not yet": token(nbf=NOW + 3_600),
    "issued in the future": token(iat=NOW + 3_600),
    "other key": jwt.encode(claims(), PRIVATE["rsa-2"][0], algorithm="RS256", headers={"kid": "rsa-1"}),
    "unknown key id": token("rsa-2"),
    "no key id": jwt.encode(claims(), PRIVATE["rsa-1"][0], algorithm="RS256"),
    "key in the header": own_key_in_the_header("jwk", public_jwk("rsa-2")),
    "address of keys in the header": own_key_in_the_header("jku", "http://127.0.0.1:1/jwks.json"),
    "a critical extension": token(headers={"crit": ["exp"]}),
    "no owner": token(sub=None),
    "empty owner": token(sub=""),
    "owner with a NUL": token(sub="a\x00b"),
    "owner that is too long": token(sub="x" * 257),
    "changed claims": ".".join([token().split(".")[0], part(claims(sub="bob")), token().split(".")[2]]),
    "oversized": token(padding="x" * 8_192),
    "header nested without end": f"{part(b'[' * 5_000)}.{part(claims())}.AAAA",
    "header of numbers": f"{part(1)}.{part(claims())}.AAAA",
    "dots": "..",
    "no base64": "!.!.!",
}


@pytest.mark.behaviour("API-16")
@pytest.mark.parametrize("key_id", ["rsa-1", "ec-1"])
async def test_a_token_names_its_owner_and_the_keys_are_read_once(key_id: str) -> None:
    async with identity_provider() as provider, judging(provider) as who:
        for _ in range(3):
            assert await owner_of(who, token(key_id)) == "ann"
        assert await owner_of(who, token(key_id, aud=["else", AUDIENCE])) == "ann"
        assert provider.asked == 1


@pytest.mark.behaviour("API-16")
async def test_another_claim_may_name_the_owner_and_other_algorithms_may_be_pinned() -> None:
    rules = TokenRules(ISSUER, AUDIENCE, "tenant", ("EdDSA",))
    async with identity_provider() as provider:
        provider.key_ids = ["ed-1", "rsa-1"]
        async with judging(provider, rules=rules) as who:
            assert await owner_of(who, token("ed-1", tenant="acme")) == "acme"
            for refused in (token("ed-1"), token("rsa-1", tenant="acme"), token("ed-1", tenant=7)):
                with pytest.raises(InvalidCredentials):
                    await owner_of(who, refused)


@pytest.mark.behaviour("API-16")
@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_tokens_are_refused_and_not_told_why(name: str) -> None:
    async with identity_provider() as provider, judging(provider) as who:
        assert await owner_of(who, token()) == "ann"
        with pytest.raises(InvalidCredentials) as caught:
            await owner_of(who, HOSTILE[name])
        assert (caught.value.message, caught.value.fields) == ("the token is not valid", {})


@pytest.mark.behaviour("API-16")
async def test_a_rotated_key_is_found_with_its_first_token_and_unknown_ones_ask_seldom() -> None:
    clock = HandClock()
    async with identity_provider() as provider, judging(provider, clock=clock) as who:
        assert await owner_of(who, token()) == "ann"
        provider.key_ids = ["rsa-2"]
        clock.now += REFETCH_MIN_S
        assert await owner_of(who, token("rsa-2")) == "ann"
        assert provider.asked == 2
        for _ in range(20):
            with pytest.raises(InvalidCredentials):
                await owner_of(who, token("rsa-1"))
        assert provider.asked == 2
        clock.now += REFETCH_MIN_S
        for _ in range(20):
            with pytest.raises(InvalidCredentials):
                await owner_of(who, token("rsa-1"))
        assert provider.asked == 3


@pytest.mark.behaviour("API-16")
async def test_a_withdrawn_key_ends_with_the_next_reading_which_nobody_waits_for() -> None:
    clock = HandClock()
    async with identity_provider() as provider, judging(provider, clock=clock) as who:
        assert await owner_of(who, token()) == "ann"
        provider.key_ids = ["ec-1"]
        clock.now += REFRESH_S
        assert await owner_of(who, token()) == "ann"
        # An unknown key does wait for the reading that is under way.
        for text in (token("rsa-2"), token()):
            with pytest.raises(InvalidCredentials):
                await owner_of(who, text)
        assert provider.asked == 2


@pytest.mark.behaviour("API-16")
async def test_keys_are_believed_while_their_endpoint_is_away_but_not_for_ever() -> None:
    clock = HandClock()
    async with identity_provider() as provider, judging(provider, clock=clock) as who:
        assert await owner_of(who, token()) == "ann"
        provider.status = "500 Broken"
        clock.now += STALE_MAX_S - 1
        assert await owner_of(who, token()) == "ann"
        await await_until(lambda: provider.asked == 2, what="a reading that fails")
        clock.now += REFETCH_MIN_S
        with pytest.raises(KeysUnavailable):
            await owner_of(who, token())
        provider.status = "200 OK"
        clock.now += REFETCH_MIN_S
        assert await owner_of(who, token()) == "ann"


@pytest.mark.behaviour("API-16")
@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        ("500 Broken", None, ()),
        ("302 Found", b"{}", ("location: http://127.0.0.1:1/",)),
        ("200 OK", b"not json", ()),
        ("200 OK", b'{"keys": []}', ()),
        ("200 OK", b'{"keys": "rsa-1"}', ()),
        ("200 OK", b"[1]", ()),
        ("200 OK", b" " * (JWKS_MAX_BYTES + 1), ()),
    ],
)
async def test_keys_that_cannot_be_read_are_503_and_no_reason_to_ask_again_at_once(
    status: str, body: bytes | None, headers: tuple[str, ...]
) -> None:
    async with identity_provider() as provider, judging(provider) as who:
        provider.status, provider.body, provider.headers = status, body, headers
        for _ in range(5):
            with pytest.raises(KeysUnavailable) as caught:
                await owner_of(who, token())
            assert caught.value.retry_after_s == REFETCH_MIN_S
        assert provider.asked == 1


@pytest.mark.behaviour("API-16")
def test_secrets_and_private_keys_of_a_set_verify_nothing() -> None:
    secret = {"kty": "oct", "kid": "s", "k": part(b"secret")}
    private = public_jwk("rsa-1") | {"kid": "p", "d": "AA"}
    kept = read_keys(
        json.dumps(
            {"keys": [secret, private, public_jwk("rsa-2", use="enc"), public_jwk("ec-1"), 1]}
        ).encode()
    )
    assert list(kept) == ["ec-1"]


@asynccontextmanager
async def calling_with_tokens(
    database_url: str,
) -> AsyncIterator[tuple[Producer, IdentityProvider, httpx2.AsyncClient]]:
    async with identity_provider() as provider:
        settings = {"jwt_jwks_url": provider.url, "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}
        async with calling(database_url, **settings) as (producer, client):
            yield producer, provider, client


@pytest.mark.behaviour("API-16")
async def test_over_http_a_token_and_a_key_of_one_owner_see_the_same_and_another_owner_nothing(
    database_url: str,
) -> None:
    async with calling_with_tokens(database_url) as (producer, provider, by_key):
        session = await create_session(by_key)
        async with producer.client(token()) as by_token, producer.client(token(sub="bob")) as bob:
            assert (await by_token.get(f"/v1/sessions/{session}")).status_code == 200
            assert (await bob.get(f"/v1/sessions/{session}")).status_code == 404
        async with producer.client(HOSTILE["alg none"]) as nobody:
            refused = await nobody.get(f"/v1/sessions/{session}")
            assert (refused.status_code, refused.json()["code"]) == (401, "auth.invalid")
            assert refused.headers["WWW-Authenticate"].endswith('error="invalid_token"')
        assert provider.asked == 1


@pytest.mark.behaviour("API-16", "API-12")
async def test_without_the_keys_a_token_is_503_and_api_keys_go_on(database_url: str) -> None:
    async with calling_with_tokens(database_url) as (producer, provider, by_key):
        provider.status = "500 Broken"
        async with producer.client(token()) as by_token:
            away = await by_token.get("/v1/sessions")
        assert (away.status_code, away.json()["code"]) == (503, "auth.unavailable")
        assert int(away.headers["Retry-After"]) == REFETCH_MIN_S
        assert provider.url not in away.text
        assert (await by_key.get("/v1/sessions")).status_code == 200


@pytest.mark.parametrize(
    ("settings", "variable"),
    [
        ({"TURNKEEPER_JWT_JWKS_URL": "https://a.example/k"}, "TURNKEEPER_JWT_JWKS_URL"),
        ({"TURNKEEPER_JWT_ALGORITHMS": "RS256,HS256"}, "TURNKEEPER_JWT_ALGORITHMS"),
        ({"TURNKEEPER_JWT_ALGORITHMS": "none"}, "TURNKEEPER_JWT_ALGORITHMS"),
        (
            {
                "TURNKEEPER_JWT_ISSUER": "i",
                "TURNKEEPER_JWT_AUDIENCE": "a",
                "TURNKEEPER_JWT_JWKS_URL": "http://a.example/k",
            },
            "TURNKEEPER_JWT_JWKS_URL",
        ),
    ],
)
def test_settings_of_tokens_that_would_let_anyone_in_are_refused(
    settings: dict[str, str], variable: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(settings)
    assert caught.value.fields["field"] == variable


WITHOUT_THE_EXTRA = """
import asyncio, sys
sys.modules["jwt"] = None
from contextlib import AsyncExitStack
from producer.compose import _authenticator
from shared.domain.errors import ConfigError
from shared.settings import load_settings
names = {"JWKS_URL": "https://a.example/k", "ISSUER": "i", "AUDIENCE": "a"}
settings = load_settings({f"TURNKEEPER_JWT_{name}": value for name, value in names.items()})
try:
    _authenticator(settings, None, AsyncExitStack())
except ConfigError as error:
    print(error.message, error.fields["field"])
"""


def test_without_the_extra_the_setting_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_EXTRA],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=True,
    )
    assert "install the extra 'jwt'" in done.stdout
    assert done.stdout.strip().endswith("TURNKEEPER_JWT_JWKS_URL")
