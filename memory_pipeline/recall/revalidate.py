"""Candidates against the authoritative store, right before they are shown (MEM-09 to 23)."""

from __future__ import annotations

from collections.abc import Sequence

from memory_pipeline.recall.values import Found, Lookup, NoMatch
from memory_pipeline.store.documents import Document, MemoryKey, NamespaceAddress, Passage, encode
from memory_pipeline.store.port import MemoryReader
from shared.domain.errors import MemoryCorrupt, RecallFailed

INPUT_MAX_BYTES = 16_777_216
WHOLE = "document"


async def revalidate(
    candidates: Sequence[Passage],
    reader: MemoryReader,
    namespace: NamespaceAddress,
    scope: str,
    *,
    max_input_bytes: int = INPUT_MAX_BYTES,
) -> Lookup:
    """Return what of the candidates may be shown now, in their order, read from the store in one round trip.

    Missing, withdrawn and out-of-scope sources are dropped. An excerpt of the current revision that stands in the current
    text is kept, with the current attribution and metadata; stale text is replaced by the whole current document. The
    namespace becomes the private authority, whatever a candidate claimed. Raises ``RecallFailed`` with reason ``budget``.
    """
    ids = list(dict.fromkeys(p.source.id for p in candidates))
    documents = await reader.read_many([MemoryKey(namespace=namespace, id=i) for i in ids])
    current = dict(zip(ids, documents, strict=True))
    kept: list[Passage] = []
    total = 0
    for candidate in candidates:
        document = current[candidate.source.id]
        if document is None or document.withdrawn or scope not in document.scopes:
            continue
        if document.key != MemoryKey(namespace=namespace, id=candidate.source.id):
            raise MemoryCorrupt("the store answered another document than asked for")
        passage = _replace(candidate, document, namespace)
        total += len(encode(passage).encode())
        if total > max_input_bytes:
            raise RecallFailed("revalidated passages are larger than the input bound", reason="budget")
        kept.append(passage)
    return Found(tuple(kept)) if kept else NoMatch()


def passage_of(document: Document, namespace: NamespaceAddress) -> Passage:
    """Return a whole active document as a passage."""
    assert document.content is not None, "withdrawn documents are never shown"
    return Passage(authority=namespace, source=document.source, passage_id=WHOLE, content=document.content)


def _replace(candidate: Passage, document: Document, namespace: NamespaceAddress) -> Passage:
    content = document.content
    assert content is not None, "withdrawn documents were dropped"
    same = candidate.source.revision == document.source.revision
    if candidate.passage_id == WHOLE or not same or candidate.content.text not in content.text:
        return passage_of(document, namespace)
    return Passage(
        authority=namespace,
        source=document.source,
        passage_id=candidate.passage_id,
        content=content.model_copy(update={"text": candidate.content.text}),
    )
