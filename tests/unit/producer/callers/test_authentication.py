"""Who a request acts for."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from producer.callers.authentication import KEY_CACHE_MAX, KEY_CACHE_S, ApiKeyAuthenticator
from shared.domain.errors import InvalidCredentials, Unauthenticated
from shared.domain.ids import OwnerId
from shared.owners.inproc import InprocApiKeys
from shared.owners.keys import new_key

LOCAL = {"host": "127.0.0.1:8000"}


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def keys_with(*owners: str) -> tuple[InprocApiKeys, list[str]]:
    keys, texts = InprocApiKeys(), []
    for owner in owners:
        key = new_key()
        await keys.add(key, OwnerId(owner), "")
        texts.append(key.text)
    return keys, texts


@pytest.mark.behaviour("API-16")
async def test_a_key_names_its_owner_in_either_header() -> None:
    keys, [text] = await keys_with("ann")
    who = ApiKeyAuthenticator(keys)
    for headers in (
        {"Authorization": f"Bearer {text}"},
        {"authorization": f"bearer  {text}"},
        {"X-API-Key": text},
    ):
        assert await who.authenticate(Headers(headers), "203.0.113.5") == "ann"


@pytest.mark.behaviour("API-16")
async def test_no_key_a_wrong_key_and_contradicting_keys_are_refused() -> None:
    keys, [ann, bob] = await keys_with("ann", "bob")
    who = ApiKeyAuthenticator(keys)
    with pytest.raises(Unauthenticated) as missing:
        await who.authenticate(Headers({}), "203.0.113.5")
    assert missing.value.code == "auth.missing"
    for headers in (
        {"authorization": "Bearer nonsense"},
        {"authorization": "Bearer"},
        {"authorization": "Basic YTpi"},
        {"authorization": f"Bearer {ann[:-1]}{'0' if ann[-1] != '0' else '1'}"},
        {"authorization": f"Bearer {ann.upper()}"},
        {"authorization": f"Bearer {ann}", "x-api-key": bob},
        {"x-api-key": ""},
        {"x-api-key": "é" * 10},
    ):
        with pytest.raises(InvalidCredentials):
            await who.authenticate(Headers(headers), "203.0.113.5")


@pytest.mark.behaviour("API-16")
async def test_a_valid_key_is_remembered_for_ten_seconds_and_a_revoked_one_no_longer() -> None:
    keys, [text] = await keys_with("ann")
    clock = HandClock()
    who = ApiKeyAuthenticator(keys, clock=clock)
    headers = Headers({"x-api-key": text})
    assert KEY_CACHE_S <= 10
    for _ in range(3):
        await who.authenticate(headers, None)
    assert keys.lookups == 1
    assert await keys.revoke((await keys.list())[0].id)
    clock.now += KEY_CACHE_S
    with pytest.raises(InvalidCredentials):
        await who.authenticate(headers, None)


async def test_a_wrong_key_is_looked_up_each_time_and_remembered_keys_are_bounded() -> None:
    keys, texts = await keys_with(*(f"o{n}" for n in range(KEY_CACHE_MAX + 1)))
    who = ApiKeyAuthenticator(keys, clock=HandClock())
    for text in texts:
        await who.authenticate(Headers({"x-api-key": text}), None)
    before = keys.lookups
    await who.authenticate(Headers({"x-api-key": texts[-1]}), None)
    assert keys.lookups == before
    await who.authenticate(Headers({"x-api-key": texts[0]}), None)
    assert keys.lookups == before + 1


@pytest.mark.behaviour("API-16")
@pytest.mark.parametrize(
    ("host", "headers"),
    [
        ("127.0.0.1", LOCAL),
        ("127.0.0.9", {"host": "localhost:8000"}),
        ("::1", {"host": "[::1]:8000"}),
        ("::ffff:127.0.0.1", LOCAL),
        ("127.0.0.1", LOCAL | {"origin": "http://localhost:3000"}),
    ],
)
async def test_a_caller_on_this_machine_needs_no_key_when_the_settings_say_so(
    host: str, headers: dict[str, str]
) -> None:
    keys, _ = await keys_with()
    assert await ApiKeyAuthenticator(keys, loopback_owner="dev").authenticate(Headers(headers), host) == "dev"
    with pytest.raises(Unauthenticated):
        await ApiKeyAuthenticator(keys).authenticate(Headers(headers), host)


@pytest.mark.behaviour("API-16")
@pytest.mark.parametrize(
    ("host", "headers"),
    [
        ("203.0.113.5", LOCAL),
        (None, LOCAL),
        ("127.0.0.1", LOCAL | {"x-forwarded-for": "203.0.113.5"}),
        ("127.0.0.1", LOCAL | {"forwarded": "for=203.0.113.5"}),
        ("127.0.0.1", {"host": "rebound.example:8000"}),
        ("127.0.0.1", {}),
        ("127.0.0.1", {"host": "[broken"}),
        ("127.0.0.1", LOCAL | {"origin": "https://evil.example"}),
        ("127.0.0.1", LOCAL | {"origin": "null"}),
    ],
)
async def test_a_caller_from_elsewhere_or_a_page_of_another_site_needs_a_key(
    host: str | None, headers: dict[str, str]
) -> None:
    keys, _ = await keys_with()
    with pytest.raises(Unauthenticated):
        await ApiKeyAuthenticator(keys, loopback_owner="dev").authenticate(Headers(headers), host)


@pytest.mark.behaviour("API-16")
async def test_a_wrong_key_on_this_machine_is_not_taken_for_none() -> None:
    keys, _ = await keys_with()
    with pytest.raises(InvalidCredentials):
        await ApiKeyAuthenticator(keys, loopback_owner="dev").authenticate(
            Headers(LOCAL | {"x-api-key": "nonsense"}), "127.0.0.1"
        )
