"""The producer's memory parts: stores, recall and what a query by meaning needs; built by the root."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from memory_pipeline.activity.port import ActivityStore
from memory_pipeline.activity.postgres import PostgresActivityStore
from memory_pipeline.index.embedding import open_embedder, search_by_meaning
from memory_pipeline.index.port import SemanticIndex
from memory_pipeline.index.postgres import PostgresSemanticIndex
from memory_pipeline.namespaces.owners import owner_namespace
from memory_pipeline.recall.sources import OwnerMemory
from memory_pipeline.remembering.port import RememberingStore
from memory_pipeline.remembering.postgres import PostgresRememberingStore
from memory_pipeline.store.documents import MemoryKey, NamespaceAddress
from memory_pipeline.store.port import MemoryStore
from memory_pipeline.store.postgres import PostgresMemoryStore
from shared.agents.memory import MemoryPolicy
from shared.database.pool import Database
from shared.domain.ids import OwnerId
from shared.settings import Settings


def now_in_ms() -> int:
    """Return this process's clock in epoch milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """What the memory routes work with. ``now_ms`` is the clock of what an owner records, in epoch milliseconds."""

    recalled: OwnerMemory
    store: MemoryStore
    remembering: RememberingStore
    activity: ActivityStore
    index: SemanticIndex
    now_ms: Callable[[], int] = now_in_ms

    @property
    def policy(self) -> MemoryPolicy:
        """What the app says about memory."""
        return self.recalled.policy

    def namespace(self, owner: OwnerId) -> NamespaceAddress:
        """Return where an owner's memory is. The door settled who that is (NSP-12)."""
        return owner_namespace(self.policy, owner).address

    def key(self, owner: OwnerId, document_id: str) -> MemoryKey:
        """Return the key of an owner's document."""
        return MemoryKey(namespace=self.namespace(owner), id=document_id)


def build_memory(
    policy: MemoryPolicy | None, settings: Settings, database: Database, stack: AsyncExitStack
) -> MemoryParts | None:
    """Build the parts for a policy; None for none. No model is loaded: the first query by meaning does, in a thread."""
    if policy is None:
        return None
    store = PostgresMemoryStore(database)
    index = PostgresSemanticIndex(database)
    embedder = open_embedder(settings, stack) if policy.semantic else None
    by_meaning = None
    if embedder is not None:
        by_meaning = search_by_meaning(index, embedder, timeout_s=policy.recall_timeout_s)
    return MemoryParts(
        recalled=OwnerMemory(policy, store, store, by_meaning),
        store=store,
        remembering=PostgresRememberingStore(database, intents_per_owner=settings.pending_intents_per_owner),
        activity=PostgresActivityStore(database),
        index=index,
    )
