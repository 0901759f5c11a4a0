"""The document store's kit sees a fault: each broken store here fails the checks that are about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from memory_pipeline.store.conformance import memory_store_conformance
from memory_pipeline.store.documents import Command, Document, MemoryKey, Passage, decode_document
from memory_pipeline.store.inproc import InprocMemoryStore
from memory_pipeline.store.transition import Verdict
from shared.conformance import ConformanceFailure
from shared.domain.errors import MemoryConflict
from shared.domain.ids import OwnerId
from tests.conformance.memory_subjects import InprocMemoryStoreSubject


class Forgetful(InprocMemoryStore):
    """Keeps no receipts."""

    async def write(self, command: Command, *, owner: OwnerId) -> Document:
        self.receipts.clear()
        return await super().write(command, owner=owner)


class Trusting(InprocMemoryStore):
    """Answers a receipt without looking at what was asked."""

    def _replay(self, receipt: Any, command: Command, prepared: Any) -> Verdict:
        return super()._replay(replace(receipt, key=command.key, digest=prepared.digest), command, prepared)


class LastWriterWins(InprocMemoryStore):
    """Writes at whatever revision stands."""

    async def write(self, command: Command, *, owner: OwnerId) -> Document:
        try:
            return await super().write(command, owner=owner)
        except MemoryConflict as conflict:
            stands = command.model_copy(update={"expected_revision": conflict.fields["actual"]})
            return await super().write(stands, owner=owner)


class Everybodys(InprocMemoryStore):
    """Asks nobody whose document it is."""

    async def write(self, command: Command, *, owner: OwnerId) -> Document:
        stored = self.documents.get((command.key.namespace, command.key.id))
        return await super().write(command, owner=stored.owner if stored else owner)


class Reviving(InprocMemoryStore):
    """Lets a put begin anew after a withdrawal."""

    async def write(self, command: Command, *, owner: OwnerId) -> Document:
        place = command.key.namespace, command.key.id
        stored = self.documents.get(place)
        fresh = (command.key.namespace, command.operation_id) not in self.receipts
        if fresh and stored and decode_document(stored.versions[-1]).withdrawn and command.kind == "put":
            del self.documents[place]
        return await super().write(command, owner=owner)


class Unscoped(InprocMemoryStore):
    """Searches whatever the namespace holds, for any scope."""

    async def search(self, namespace: Any, scope: str, query: str, *, limit: int = 8) -> Sequence[Passage]:
        scopes = {s for d in self._of_namespace(namespace) for s in d.scopes}
        found = [await super(Unscoped, self).search(namespace, s, query, limit=limit) for s in sorted(scopes)]
        return [passage for passages in found for passage in passages][:limit]


class Mixing(InprocMemoryStore):
    """Lists the documents of every namespace."""

    def _of_namespace(self, namespace: Any) -> Sequence[Document]:
        return [decode_document(stored.versions[-1]) for _, stored in sorted(self.documents.items())]


class Amnesic(InprocMemoryStore):
    """Keeps the newest generation's history only."""

    async def history(self, key: MemoryKey, *, limit: int = 50) -> Sequence[Document]:
        return (await super().history(key, limit=limit))[:1]


class Subject(InprocMemoryStoreSubject):
    def __init__(self, store: InprocMemoryStore) -> None:
        super().__init__()
        self.store = store


@pytest.mark.parametrize(
    ("store", "check"),
    [
        (Forgetful(), "one operation submitted twice at once"),
        (Forgetful(), "one operation id with other content"),
        (Forgetful(), "a replay after a withdrawal"),
        (Trusting(), "one operation id with other content"),
        (LastWriterWins(), "of 50 writers at one revision"),
        (LastWriterWins(), "a competing edit"),
        (Everybodys(), "another owner's document"),
        (Reviving(), "a withdrawal is final"),
        (Reviving(), "forgetting everything of one namespace"),
        (Unscoped(), "a search answers active documents of this namespace and scope"),
        (Mixing(), "forgetting everything of one namespace"),
        (Mixing(), "the same id in two namespaces"),
        (Mixing(), "the documents of a namespace are listed"),
        (Amnesic(), "history has every generation"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, InprocMemoryStore) else given[:40],
)
async def test_a_broken_store_fails_the_check_that_is_about_its_fault(
    store: InprocMemoryStore, check: str
) -> None:
    [found] = [c for c in memory_store_conformance(Subject(store)) if c.name.startswith(check)]
    with pytest.raises(ConformanceFailure, match=check):
        await found.run()
