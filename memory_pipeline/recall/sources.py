"""The three shipped sources of an owner's memory: direct, keyword and semantic; each revalidated against the store."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from memory_pipeline.namespaces.owners import owner_namespace
from memory_pipeline.recall.render import render
from memory_pipeline.recall.revalidate import lines_of, passage_of, revalidate
from memory_pipeline.recall.values import (
    PASSAGES_PER_LOOKUP_MAX,
    Found,
    Lookup,
    NoMatch,
    RecallLimits,
    RecallSource,
    Unavailable,
)
from memory_pipeline.remembering.target import current_profile_key
from memory_pipeline.store.documents import NamespaceAddress, Passage
from memory_pipeline.store.port import MemoryReader, MemorySearch
from memory_pipeline.store.words import query_words, words_of
from shared.agents.memory import MemoryPolicy
from shared.domain.errors import Unavailable as TemporarilyUnavailable
from shared.domain.ids import OwnerId

_log: Final = logging.getLogger(__name__)

#: Looks for passages near a text in meaning; may raise ``Unavailable`` errors. None: there is no semantic index.
SearchByMeaning = Callable[[NamespaceAddress, str], Awaitable[Sequence[Passage]]]

CANDIDATES: Final = 16


@dataclass(frozen=True, slots=True)
class OwnerMemory:
    """What recall of an owner's memory works with; built by the roots."""

    policy: MemoryPolicy
    reader: MemoryReader
    search: MemorySearch
    by_meaning: SearchByMeaning | None = None


def limits_of(policy: MemoryPolicy) -> RecallLimits:
    """Return the bounds that a policy sets for a turn's recall."""
    return RecallLimits(
        max_items=policy.recall_items,
        max_bytes=policy.recall_bytes,
        max_tokens=policy.recall_tokens,
        timeout_s=policy.recall_timeout_s,
    )


def sources_of(memory: OwnerMemory, owner: OwnerId, query: str) -> list[RecallSource]:
    """Return the sources for one owner and one query; none is essential, so that memory never fails a turn.

    ``direct`` is the owner's current profile, whole; ``keyword`` and ``semantic`` find other documents and excerpts.
    """
    namespace = owner_namespace(memory.policy, owner).address
    scope = memory.policy.scope

    async def direct() -> Lookup:
        key = await current_profile_key(memory.reader, namespace)
        document = await memory.reader.read(key)
        if document is None or document.withdrawn or scope not in document.scopes:
            return NoMatch()
        return Found((passage_of(document, namespace),))

    async def keyword() -> Lookup:
        candidates = await memory.search.search(namespace, scope, query, limit=CANDIDATES)
        if not candidates:
            return NoMatch()
        found = await revalidate(candidates, memory.reader, namespace, scope)
        return _fitting(found, query, limits_of(memory.policy))

    async def semantic() -> Lookup:
        if memory.by_meaning is None:
            return Unavailable("no semantic index")
        candidates = await memory.by_meaning(namespace, query)
        return await revalidate(candidates, memory.reader, namespace, scope) if candidates else NoMatch()

    reads = {"direct": direct, "keyword": keyword, "semantic": semantic}
    return [RecallSource(name, False, _tolerant(name, read)) for name, read in reads.items()]


def _fitting(lookup: Lookup, query: str, limits: RecallLimits) -> Lookup:
    """Offer a passage that is too large to be shown by those of its lines that hold a word of the query, best first.

    Attributions make a text several times as large as it is, so that a document of a dozen facts may not fit whole.
    """
    if not isinstance(lookup, Found):
        return lookup
    words, room = set(query_words(query)), min(limits.max_bytes, limits.max_tokens)
    passages: list[Passage] = []
    for passage in lookup.passages:
        if len(render([("", passage)]).encode()) <= room:
            passages.append(passage)
            continue
        held = [(len(words.intersection(words_of(p.content.text))), p) for p in lines_of(passage)]
        best = [line for count, line in sorted(held, key=lambda pair: -pair[0]) if count]
        passages.extend(best or [passage])
    return Found(tuple(passages[:PASSAGES_PER_LOOKUP_MAX]))


def _tolerant(name: str, read: Callable[[], Awaitable[Lookup]]) -> Callable[[], Awaitable[Lookup]]:
    """Map trouble outside to an outcome: the application's choice for these sources; defects and refusals pass."""

    async def tolerant() -> Lookup:
        try:
            return await read()
        except TemporarilyUnavailable as error:
            _log.warning("recall source %s is unavailable", name, extra={"code": error.code})
            return Unavailable(error.code)

    return tolerant
