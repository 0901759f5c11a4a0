"""The ports of the document store: reading and writing are two capabilities (MEM-01)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from memory_pipeline.store.documents import Command, Document, MemoryKey, NamespaceAddress, Passage
from shared.domain.ids import OwnerId

READ_MAX_KEYS = 1_024
PAGE_MAX = 128


class MemoryReader(Protocol):
    """Reads documents as they are now, never from a caller's snapshot."""

    async def read(self, key: MemoryKey) -> Document | None:
        """Read a document, withdrawn ones included; None when there never was one."""
        ...

    async def read_many(self, keys: Sequence[MemoryKey]) -> Sequence[Document | None]:
        """Read documents in the order of ``keys`` (at most ``READ_MAX_KEYS``) in one round trip (MEM-56)."""
        ...


class MemoryWriter(Protocol):
    """Writes documents conditionally, with receipts."""

    async def write(self, command: Command, *, owner: OwnerId) -> Document:
        """Apply a command, or answer the receipt of the very same one.

        Judged in this order: the command's own bounds (``InvalidInput``, ``InputTooLarge``; nothing is asked or written);
        another owner's document (reads as none: the refusals below with ``actual`` None); the receipt of ``operation_id``
        (same command: the first document, whatever happened since; another: ``MemoryOperationConflict``); a withdrawn
        document (``MemoryWithdrawn``, final); nothing to withdraw (``MemoryMissing``); another revision than expected
        (``MemoryConflict`` with both); the document's size (``InputTooLarge``). A receipt that does not match its command
        is ``MemoryCorrupt``. Document, its generation, receipt and the index's debt are one transaction; ``modified_at``
        is the store's clock. The outcome of ``StoreUnavailable`` is unknown: repeat the very same command (MEM-32).
        """
        ...


class MemorySearch(Protocol):
    """Finds candidates by words; they are revalidated before they are shown."""

    async def search(
        self, namespace: NamespaceAddress, scope: str, query: str, *, limit: int = 8
    ) -> Sequence[Passage]:
        """Find passages of active documents that the scope may recall, best document first, at most ``limit`` (to 128).

        Any word of the query will do (case aside, without stop words); a query without a word finds nothing. A short
        document is one passage, ``document``; of a longer one each run of lines with such words is one.
        """
        ...


class MemoryHistory(Protocol):
    """Every generation of a document."""

    async def history(self, key: MemoryKey, *, limit: int = 50) -> Sequence[Document]:
        """Read the generations of a document, newest first, at most ``limit`` (to 128)."""
        ...

    async def list(
        self, namespace: NamespaceAddress, *, limit: int = 50, after: str | None = None
    ) -> Sequence[Document]:
        """Read the documents of a namespace after an id, by id (code points), withdrawn ones included; ``limit`` to 128."""
        ...


class MemoryStore(MemoryReader, MemoryWriter, MemorySearch, MemoryHistory, Protocol):
    """All four capabilities over one store."""
