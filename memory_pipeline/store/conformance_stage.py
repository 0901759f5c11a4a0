"""What the kit's checks stand on: the subject, and commands that are told apart by their words."""

from __future__ import annotations

from typing import Any, Protocol
from uuid import uuid4

from memory_pipeline.store.documents import (
    Attribution,
    Content,
    Document,
    MemoryKey,
    NamespaceAddress,
    Put,
    Withdraw,
)
from memory_pipeline.store.port import MemoryStore
from shared.conformance.check import require
from shared.domain.ids import OwnerId

SCOPE = "private"


class MemoryStoreSubject(Protocol):
    """An adapter under test."""

    async def open(self) -> MemoryStore:
        """Return a new handle over the same data; the subject closes it in the end."""
        ...

    def new_namespace(self) -> NamespaceAddress:
        """Return a namespace that holds nothing."""
        ...

    def new_owner(self) -> OwnerId:
        """Return an owner that has nothing."""
        ...

    async def tamper(self, key: MemoryKey, generation: int, document: str) -> None:
        """Replace the stored text of a generation behind the store's back."""
        ...


class Stage:
    """One handle, one namespace and one owner of a check."""

    def __init__(self, store: MemoryStore, namespace: NamespaceAddress, owner: OwnerId) -> None:
        self.store = store
        self.namespace = namespace
        self.owner = owner

    def key(self, document_id: str = "d") -> MemoryKey:
        return MemoryKey(namespace=self.namespace, id=document_id)

    async def put(self, text: str = "text", expected: str | None = None, **given: Any) -> Document:
        """Store a text; ``given`` overrides parts of the command."""
        return await self.store.write(put(self.key(), text, expected, **given), owner=self.owner)

    async def withdraw(self, expected: str | None, **given: Any) -> Document:
        """Withdraw the document."""
        return await self.store.write(withdraw(self.key(), expected, **given), owner=self.owner)

    async def now(self, document_id: str = "d") -> Document:
        """Read a document that must be there."""
        document = await self.store.read(self.key(document_id))
        require(document is not None, "the document is there")
        assert document is not None
        return document


async def stage(subject: MemoryStoreSubject) -> Stage:
    """Return a fresh stage."""
    return Stage(await subject.open(), subject.new_namespace(), subject.new_owner())


def said(text: str, **given: Any) -> Content:
    """Return content that says a text."""
    attribution = Attribution(
        origin_id="ses:1",
        speaker="user",
        locator="session/ses/records/1",
        activity_at=7,
        interpretation="as it was said",
    )
    parts = {"text": text, "attributions": (attribution,), "recorded_at": 11, "extracted_at": 12}
    return Content.model_validate(parts | given)


def put(key: MemoryKey, text: str = "text", expected: str | None = None, **given: Any) -> Put:
    """Return a put of its own operation id unless one is given."""
    parts = {
        "key": key,
        "operation_id": f"op-{uuid4().hex}",
        "expected_revision": expected,
        "locator": "memory/d",
        "content": said(text),
        "scopes": (SCOPE,),
    }
    return Put.model_validate(parts | given)


def withdraw(key: MemoryKey, expected: str | None, **given: Any) -> Withdraw:
    """Return a withdrawal of its own operation id unless one is given."""
    parts = {
        "key": key,
        "operation_id": f"op-{uuid4().hex}",
        "expected_revision": expected,
        "reason": "asked for",
    }
    return Withdraw.model_validate(parts | given)
