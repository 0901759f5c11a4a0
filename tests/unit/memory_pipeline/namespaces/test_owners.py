"""The namespaces of owners under the default policy."""

from __future__ import annotations

import pytest

from memory_pipeline.namespaces.owners import owner_definition, owner_namespace
from shared.agents import MemoryPolicy
from shared.domain.errors import NamespaceInvalid
from shared.domain.ids import OwnerId


@pytest.mark.behaviour("NSP-12")
def test_each_owner_has_one_namespace_of_each_policy() -> None:
    one = owner_namespace(MemoryPolicy(), OwnerId("one"))
    assert one.address == '[1,"profile",1,{"owner":"one"}]'
    assert owner_definition(MemoryPolicy()).restore(one.address) == one
    others = [
        owner_namespace(MemoryPolicy(), OwnerId("two")),
        owner_namespace(MemoryPolicy(version=2), OwnerId("one")),
        owner_namespace(MemoryPolicy(namespace="notes"), OwnerId("one")),
    ]
    assert len({one.address, *(other.address for other in others)}) == 4


@pytest.mark.parametrize("owner", ["", " a", "a\n", "\u00e9", "x" * 257])
def test_what_is_no_owner_has_no_namespace(owner: str) -> None:
    with pytest.raises(NamespaceInvalid) as refusal:
        owner_namespace(MemoryPolicy(), OwnerId(owner))
    assert refusal.value.field == "identity.owner"
