"""The document store on Postgres: one statement, one transaction, one round trip an operation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from memory_pipeline.store.documents import (
    STORED_MAX_BYTES,
    Command,
    Document,
    MemoryKey,
    NamespaceAddress,
    Passage,
    Put,
    Withdraw,
    decode_document,
)
from memory_pipeline.store.port import PAGE_MAX, READ_MAX_KEYS
from memory_pipeline.store.transition import (
    Verdict,
    answer,
    check_count,
    check_head,
    check_key,
    check_texts,
    prepare,
)
from memory_pipeline.store.words import (
    QUERY_MAX_CHARS,
    QUERY_MAX_WORDS,
    STOP_WORDS,
    passages_of,
    query_words,
)
from shared.database.pool import Database, Row
from shared.database.statements import load_statements
from shared.domain.bounds import clean_text
from shared.domain.errors import MemoryCorrupt
from shared.domain.ids import OwnerId

_SQL = load_statements(Path(__file__).with_name("queries.sql"))


class PostgresMemoryStore:
    """Implements :class:`memory_pipeline.store.port.MemoryStore`.

    ``database`` checked the schema when it connected and is the owner of its connections. Reads are single statements
    on them, never in a caller's transaction (MEM-44), and need no right to write (MEM-50).
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    async def read(self, key: MemoryKey) -> Document | None:
        """See the port."""
        [document] = await self.read_many([key])
        return document

    async def read_many(self, keys: Sequence[MemoryKey]) -> Sequence[Document | None]:
        """See the port."""
        if not keys:
            return []
        check_count(len(keys), READ_MAX_KEYS, field="keys")
        params = {"namespaces": [check_key(k).namespace for k in keys], "ids": [k.id for k in keys]}
        rows = await self._db.read("memory.read", _SQL["read"], params)
        return [
            None if row["generation"] is None else _document(row, key)
            for row, key in zip(rows, keys, strict=True)
        ]

    async def write(self, command: Command, *, owner: OwnerId) -> Document:
        """See the port."""
        prepared = prepare(command)
        put = command if isinstance(command, Put) else None
        params = {
            "namespace": command.key.namespace,
            "id": command.key.id,
            "owner": owner,
            "operation": command.operation_id,
            "command": prepared.digest,
            "kind": command.kind,
            "expected": prepared.expected,
            "locator": put.locator if put else None,
            "scopes": list(put.scopes) if put else [],
            "content": prepared.content,
            "body": put.content.text if put else "",
            "reason": command.reason if isinstance(command, Withdraw) else None,
            "max_bytes": STORED_MAX_BYTES,
        }
        [row] = await self._db.call("memory.write", _SQL["write"], params, repeatable=True)
        return answer(command, Verdict(row["result"], row["document"], row["generation"]))

    async def search(
        self, namespace: NamespaceAddress, scope: str, query: str, *, limit: int = 8
    ) -> Sequence[Passage]:
        """See the port."""
        check_count(limit, PAGE_MAX)
        check_texts(namespace=namespace, scope=scope)
        asked = clean_text(query[:QUERY_MAX_CHARS])[0]
        params = {
            "namespace": namespace,
            "scope": scope,
            "query": asked,
            "stop_words": sorted(STOP_WORDS),
            "max_words": QUERY_MAX_WORDS,
            "limit": limit,
        }
        rows = await self._db.read("memory.search", _SQL["search"], params)
        words = frozenset(query_words(asked))
        return [passage for row in rows for passage in passages_of(_document(row), words)][:limit]

    async def history(self, key: MemoryKey, *, limit: int = 50) -> Sequence[Document]:
        """See the port."""
        check_key(key)
        params = {"namespace": key.namespace, "id": key.id, "limit": check_count(limit, PAGE_MAX)}
        rows = await self._db.read("memory.history", _SQL["history"], params)
        return [decode_document(row["document"]) for row in rows]

    async def list(
        self, namespace: NamespaceAddress, *, limit: int = 50, after: str | None = None
    ) -> Sequence[Document]:
        """See the port."""
        check_texts(namespace=namespace, after=after or "")
        params = {"namespace": namespace, "after": after, "limit": check_count(limit, PAGE_MAX)}
        rows = await self._db.read("memory.list", _SQL["list"], params)
        return [_document(row) for row in rows]


def _document(row: Row, key: MemoryKey | None = None) -> Document:
    """Return the document of a row, compared with the row's own columns and, where one was asked for, its key."""
    if row["document"] is None:
        raise MemoryCorrupt("a stored document has no version", generation=row["generation"])
    document = decode_document(row["document"])
    if key is not None and document.key != key:
        raise MemoryCorrupt("a stored document is another one", id=key.id)
    return check_head(document, (row["generation"], row["status"], row["locator"], tuple(row["scopes"])))
