"""Candidates against the authoritative store, right before they are shown (MEM-09 to 23)."""

from __future__ import annotations

from collections.abc import Sequence

from memory_pipeline.recall.values import Found, Lookup, NoMatch
from memory_pipeline.store.documents import (
    WHOLE,
    Content,
    Document,
    MemoryKey,
    NamespaceAddress,
    Passage,
    encode,
)
from memory_pipeline.store.port import MemoryReader
from shared.domain.errors import MemoryCorrupt, RecallFailed

INPUT_MAX_BYTES = 16_777_216


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
        if document is None:
            continue
        _check_answer(document, MemoryKey(namespace=namespace, id=candidate.source.id))
        if document.withdrawn or scope not in document.scopes:
            continue
        passage = _replace(candidate, document, namespace)
        total += len(encode(passage).encode())
        if total > max_input_bytes:
            raise RecallFailed("revalidated passages are larger than the input bound", reason="budget")
        kept.append(passage)
    return Found(tuple(kept)) if kept else NoMatch()


def lines_of(passage: Passage) -> list[Passage]:
    """Return each line of a passage that says something as a passage of its own, with that line's attributions."""
    return [
        passage.model_copy(
            update={
                "passage_id": f"{passage.passage_id}:line:{n}",
                "content": _excerpt(passage.content, line),
            }
        )
        for n, line in enumerate(passage.content.text.split("\n"), start=1)
        if line.strip()
    ]


def _check_answer(document: Document, key: MemoryKey) -> None:
    if document.key != key or document.source.id != key.id:
        raise MemoryCorrupt("the store answered another document than asked for")


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
        content=_excerpt(content, candidate.content.text),
    )


def _excerpt(content: Content, text: str) -> Content:
    """Return an excerpt with its own attributions: those of its lines, where each line has one; else all of them.

    A document of many facts would otherwise show every witness beside each line, and no line of it would fit. Only whole
    lines are told apart: the witness of a line that is cut would be lost, so such an excerpt keeps them all.
    """
    lines, wanted = content.text.split("\n"), text.strip("\n").split("\n")
    if len(lines) != len(content.attributions):
        return content.model_copy(update={"text": text})
    size = len(wanted)
    places = [at for at in range(len(lines) - size + 1) if lines[at : at + size] == wanted]
    kept = sorted({n for at in places for n in range(at, at + size)})
    if not kept:
        return content.model_copy(update={"text": text})
    metadata = {
        key: [value[n] for n in kept] if isinstance(value, list) and len(value) == len(lines) else value
        for key, value in content.metadata.items()
    }
    attributions = tuple(content.attributions[n] for n in kept)
    return content.model_copy(update={"text": text, "attributions": attributions, "metadata": metadata})
