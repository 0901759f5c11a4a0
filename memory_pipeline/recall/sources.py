"""The three shipped sources of an owner's memory: direct, keyword and semantic; each revalidated against the store."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from memory_pipeline.namespaces.owners import owner_namespace
from memory_pipeline.recall.revalidate import passage_of, revalidate
from memory_pipeline.recall.values import Found, Lookup, NoMatch, RecallLimits, RecallSource, Unavailable
from memory_pipeline.remembering.target import current_profile_key
from memory_pipeline.store.documents import NamespaceAddress, Passage
from memory_pipeline.store.port import MemoryReader, MemorySearch
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
        return await revalidate(candidates, memory.reader, namespace, scope) if candidates else NoMatch()

    async def semantic() -> Lookup:
        if memory.by_meaning is None:
            return Unavailable("no semantic index")
        candidates = await memory.by_meaning(namespace, query)
        return await revalidate(candidates, memory.reader, namespace, scope) if candidates else NoMatch()

    reads = {"direct": direct, "keyword": keyword, "semantic": semantic}
    return [RecallSource(name, False, _tolerant(name, read)) for name, read in reads.items()]


def _tolerant(name: str, read: Callable[[], Awaitable[Lookup]]) -> Callable[[], Awaitable[Lookup]]:
    """Map trouble outside to an outcome: the application's choice for these sources; defects and refusals pass."""

    async def tolerant() -> Lookup:
        try:
            return await read()
        except TemporarilyUnavailable as error:
            _log.warning("recall source %s is unavailable", name, extra={"code": error.code})
            return Unavailable(error.code)

    return tolerant
