"""API keys: their shape, and the promises of the port on its twin in memory."""

from __future__ import annotations

import pytest

from shared.domain.ids import OwnerId
from shared.owners.inproc import InprocApiKeys
from shared.owners.keys import KeyId, key_digest, key_id_of, new_key


@pytest.mark.behaviour("API-16")
def test_a_key_names_its_id_and_its_digest_tells_nothing_of_it() -> None:
    key = new_key()
    assert key.text.startswith(f"tk_{key.id}_")
    assert key_id_of(key.text) == key.id
    assert len(key_digest(key.text)) == 32
    assert new_key().text != key.text


@pytest.mark.parametrize(
    "text",
    ["", "tk_", "tk_abc_def", "x" * 200, new_key().text + "0", new_key().text[:-1]],
    ids=["empty", "bare", "short", "long", "one-more", "one-less"],
)
def test_what_is_no_key_has_no_id(text: str) -> None:
    assert key_id_of(text) is None


async def test_a_revoked_key_is_nobodys_and_stays_listed() -> None:
    keys, key = InprocApiKeys(), new_key()
    await keys.add(key, OwnerId("ann"), "laptop")
    assert await keys.owner_of(key.text) == "ann"
    assert await keys.revoke(key.id)
    assert await keys.owner_of(key.text) is None
    [kept] = await keys.list(OwnerId("ann"))
    assert kept.revoked_at is not None
    assert not await keys.revoke(KeyId("nobody"))
