"""The document stores as their kit wants them: one in memory, one over a database."""

from __future__ import annotations

from memory_pipeline.namespaces.address import MemoryNamespace
from memory_pipeline.namespaces.owners import OwnerIdentity
from memory_pipeline.store.documents import MemoryKey, NamespaceAddress
from memory_pipeline.store.inproc import InprocMemoryStore
from memory_pipeline.store.port import MemoryStore
from memory_pipeline.store.postgres import PostgresMemoryStore
from tests.conformance.subjects import Names, PostgresWorld

KIT_NAMESPACES = MemoryNamespace.define("kit", 1, OwnerIdentity)


class MemoryNames(Names):
    """Fresh namespaces besides."""

    def new_namespace(self) -> NamespaceAddress:
        return KIT_NAMESPACES.make(owner=self.new("owners")).address


class InprocMemoryStoreSubject(MemoryNames):
    """One store in memory; every handle is that store."""

    def __init__(self) -> None:
        super().__init__()
        self.store = InprocMemoryStore()

    async def open(self) -> MemoryStore:
        return self.store

    async def tamper(self, key: MemoryKey, generation: int, document: str) -> None:
        self.store.documents[key.namespace, key.id].versions[generation - 1] = document


class PostgresMemoryStoreSubject(PostgresWorld, MemoryNames):
    """One database; every handle has a pool of its own."""

    async def open(self) -> MemoryStore:
        return PostgresMemoryStore(await self.database())

    async def tamper(self, key: MemoryKey, generation: int, document: str) -> None:
        statement = (
            "UPDATE memory_versions SET document = %s WHERE namespace = %s AND id = %s AND generation = %s"
        )
        await self._execute(statement, [document, key.namespace, key.id, generation])
