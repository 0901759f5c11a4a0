"""Forgetting everything of a namespace."""

from __future__ import annotations

from memory_pipeline.store.documents import Document, NamespaceAddress, Withdraw
from memory_pipeline.store.port import PAGE_MAX, MemoryStore
from shared.domain.canonical import digest_of
from shared.domain.errors import MemoryConflict, MemoryWithdrawn
from shared.domain.ids import OwnerId

#: How often one document is tried again after another writer was first.
TRIES_MAX = 16


async def forget_namespace(
    store: MemoryStore, namespace: NamespaceAddress, *, owner: OwnerId, reason: str
) -> int:
    """Withdraw every document of a namespace that is there when its page is read; return how many this call withdrew.

    Calling it again after a failure goes on where it stopped. A document that is edited meanwhile is withdrawn at its newer
    revision; raises ``MemoryConflict`` after ``TRIES_MAX`` such edits, ``MemoryMissing`` for another owner's document.
    What is remembered later is a new document: stop what writes first.
    """
    withdrawn = 0
    after: str | None = None
    while page := await store.list(namespace, limit=PAGE_MAX, after=after):
        for document in page:
            withdrawn += await _withdraw(store, document, owner, reason)
        after = page[-1].key.id
    return withdrawn


async def _withdraw(store: MemoryStore, document: Document, owner: OwnerId, reason: str) -> int:
    for left in reversed(range(TRIES_MAX)):
        if document.withdrawn:
            return 0
        revision = document.source.revision
        command = Withdraw(
            key=document.key,
            operation_id=f"forget:{digest_of([document.key.id, revision, reason])}",
            expected_revision=revision,
            reason=reason,
        )
        try:
            await store.write(command, owner=owner)
        except MemoryWithdrawn:
            return 0
        except MemoryConflict:
            newer = await store.read(document.key)
            if newer is None or not left:
                raise
            document = newer
        else:
            return 1
    return 0
