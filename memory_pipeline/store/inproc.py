"""The document store in memory: the twin of the one on Postgres for tests and single processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from memory_pipeline.store.documents import (
    STORED_MAX_BYTES,
    Command,
    Document,
    MemoryKey,
    NamespaceAddress,
    Passage,
    decode_document,
    encode,
)
from memory_pipeline.store.port import PAGE_MAX, READ_MAX_KEYS
from memory_pipeline.store.transition import (
    Prepared,
    Verdict,
    answer,
    check_count,
    check_key,
    check_texts,
    next_document,
    prepare,
)
from memory_pipeline.store.words import passages_of, query_words, words_of
from shared.domain.ids import OwnerId
from shared.leases.inproc import Clock, utc_now


@dataclass(slots=True)
class StoredMemory:
    """The owner of a document and the text of each of its generations, the first one first."""

    owner: OwnerId
    versions: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What an operation was, and the generation that it made."""

    key: MemoryKey
    digest: bytes
    generation: int


class InprocMemoryStore:
    """Implements :class:`memory_pipeline.store.port.MemoryStore` for one event loop; ``clock`` is the store's.

    Values are kept as their stored text and read anew each time. There is no semantic index that it could owe anything.
    """

    def __init__(self, clock: Clock = utc_now) -> None:
        self._clock = clock
        self.documents: dict[tuple[str, str], StoredMemory] = {}
        self.receipts: dict[tuple[str, str], Receipt] = {}

    async def read(self, key: MemoryKey) -> Document | None:
        """See the port."""
        stored = self.documents.get(_place(check_key(key)))
        return None if stored is None else decode_document(stored.versions[-1])

    async def read_many(self, keys: Sequence[MemoryKey]) -> Sequence[Document | None]:
        """See the port."""
        if keys:
            check_count(len(keys), READ_MAX_KEYS, field="keys")
        return [await self.read(key) for key in keys]

    async def write(self, command: Command, *, owner: OwnerId) -> Document:
        """See the port."""
        prepared = prepare(command)
        # No other task runs until this returned: the twin's transaction.
        return answer(command, self._apply(command, prepared, owner))

    async def search(
        self, namespace: NamespaceAddress, scope: str, query: str, *, limit: int = 8
    ) -> Sequence[Passage]:
        """See the port."""
        check_count(limit, PAGE_MAX)
        check_texts(namespace=namespace, scope=scope)
        words = frozenset(query_words(query))
        found = [
            (len(words.intersection(words_of(document.content.text))), document)
            for document in self._of_namespace(namespace)
            if document.content is not None and scope in document.scopes
        ]
        ranked = sorted((pair for pair in found if pair[0]), key=lambda pair: (-pair[0], pair[1].key.id))
        return [passage for _, document in ranked for passage in passages_of(document, words)][:limit]

    async def history(self, key: MemoryKey, *, limit: int = 50) -> Sequence[Document]:
        """See the port."""
        check_count(limit, PAGE_MAX)
        stored = self.documents.get(_place(check_key(key)))
        return [decode_document(text) for text in reversed(stored.versions if stored else [])][:limit]

    async def list(
        self, namespace: NamespaceAddress, *, limit: int = 50, after: str | None = None
    ) -> Sequence[Document]:
        """See the port."""
        check_count(limit, PAGE_MAX)
        check_texts(namespace=namespace, after=after or "")
        return [d for d in self._of_namespace(namespace) if after is None or d.key.id > after][:limit]

    def _of_namespace(self, namespace: NamespaceAddress) -> Sequence[Document]:
        places = sorted(place for place in self.documents if place[0] == namespace)
        return [decode_document(self.documents[place].versions[-1]) for place in places]

    def _apply(self, command: Command, prepared: Prepared, owner: OwnerId) -> Verdict:
        place = _place(command.key)
        stored = self.documents.get(place)
        head = None if stored is None else decode_document(stored.versions[-1])
        if stored is not None and stored.owner != owner:
            return Verdict("conflict" if command.kind == "put" else "missing")
        receipt = self.receipts.get((command.key.namespace, command.operation_id))
        if receipt is not None:
            return self._replay(receipt, command, prepared)
        if head is not None and head.withdrawn:
            return Verdict("withdrawn", generation=head.generation)
        if head is None and command.kind == "withdraw":
            return Verdict("missing")
        if (None if head is None else head.generation) != prepared.expected:
            return Verdict("conflict", generation=None if head is None else head.generation)
        return self._store(command, prepared, owner, head)

    def _replay(self, receipt: Receipt, command: Command, prepared: Prepared) -> Verdict:
        if (receipt.key, receipt.digest) != (command.key, prepared.digest):
            return Verdict("operation-conflict")
        return Verdict("replayed", self.documents[_place(receipt.key)].versions[receipt.generation - 1])

    def _store(self, command: Command, prepared: Prepared, owner: OwnerId, head: Document | None) -> Verdict:
        document = next_document(command, head, int(self._clock().timestamp() * 1000))
        text = encode(document)
        if len(text.encode()) > STORED_MAX_BYTES:
            return Verdict("too-large")
        stored = self.documents.setdefault(_place(command.key), StoredMemory(owner))
        stored.versions.append(text)
        self.receipts[command.key.namespace, command.operation_id] = Receipt(
            command.key, prepared.digest, document.generation
        )
        return Verdict("written", text)


def _place(key: MemoryKey) -> tuple[str, str]:
    return key.namespace, key.id
