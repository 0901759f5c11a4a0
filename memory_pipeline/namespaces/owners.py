"""The namespaces of the default memory policy: one for each owner of sessions."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

from memory_pipeline.namespaces.address import MemoryNamespace, Namespace
from memory_pipeline.namespaces.canonical import invalid
from shared.agents.memory import MemoryPolicy
from shared.domain.bounds import check_identity
from shared.domain.errors import InvalidInput
from shared.domain.ids import OwnerId


class OwnerIdentity(BaseModel):
    """Whose memory it is."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    owner: Annotated[str, StringConstraints(min_length=1, max_length=256)]


def owner_definition(policy: MemoryPolicy) -> MemoryNamespace[OwnerIdentity]:
    """Return the definition that a policy names."""
    return MemoryNamespace.define(policy.namespace, policy.version, OwnerIdentity)


def owner_namespace(policy: MemoryPolicy, owner: OwnerId) -> Namespace[OwnerIdentity]:
    """Return the namespace in which a policy keeps what is remembered of an owner. The host settled who that is."""
    try:
        check_identity(owner, field="owner")
    except InvalidInput as error:
        raise invalid("identity", error.message, field="identity.owner", bound=error.bound) from error
    return owner_definition(policy).of(OwnerIdentity(owner=owner))
