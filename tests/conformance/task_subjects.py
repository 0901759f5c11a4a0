"""The stores of tasks as their kit wants them."""

from __future__ import annotations

from collections.abc import Callable

from shared.sessions.inproc import InprocStore
from shared.tasks.inproc import InprocTaskStore
from shared.tasks.port import TaskStore
from shared.tasks.postgres import PostgresTaskStore
from tests.conformance.subjects import InprocTurnQueueSubject, PostgresTurnQueueSubject


class InprocTaskStoreSubject(InprocTurnQueueSubject):
    """The twin, or one that is broken on purpose."""

    def __init__(self, make: Callable[[InprocStore], TaskStore] = InprocTaskStore) -> None:
        super().__init__()
        self._make = make

    async def tasks(self) -> TaskStore:
        return self._make(self.store)


class PostgresTaskStoreSubject(PostgresTurnQueueSubject):
    async def tasks(self) -> TaskStore:
        return PostgresTaskStore(await self.database())
