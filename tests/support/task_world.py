"""Background tasks over the twins and over Postgres, with sessions of one host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from shared.conformance import MadeTasks
from shared.database.pool import Database
from shared.host.ownership import LeaseOwnership, Ownership
from shared.host.sessions import HostSessions
from shared.host.tasks.port import TaskExecutor, TaskRunner
from shared.host.tasks.tasks import HostTasks
from shared.inbox.inproc import InprocInbox
from shared.inbox.port import Inbox
from shared.inbox.postgres import PostgresInbox
from shared.leases.inproc import Clock, utc_now
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.log import SessionLog
from shared.sessions.postgres import PostgresSessionLog
from shared.tasks.inproc import InprocTaskStore
from shared.tasks.port import TaskStore
from shared.tasks.postgres import PostgresTaskStore
from shared.turns.admission import TurnAdmission
from shared.turns.inproc.queue import InprocTurnQueue
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import TurnQueue


@dataclass(frozen=True)
class TaskParts:
    """The ports that one host's tasks stand on, over one store."""

    log: SessionLog
    queue: TurnQueue
    inbox: Inbox
    store: TaskStore

    def sessions(
        self, *, admission: TurnAdmission | None = None, ownership: Ownership | None = None
    ) -> HostSessions:
        """A host's sessions."""
        return HostSessions(
            self.log,
            self.queue,
            inbox=self.inbox,
            admission=admission,
            ownership=ownership or LeaseOwnership(),
        )


def inproc_parts(clock: Clock = utc_now) -> TaskParts:
    """Parts over a store of their own in memory."""
    store = InprocStore(clock)
    return TaskParts(
        InprocSessionLog(store), InprocTurnQueue(store), InprocInbox(store), InprocTaskStore(store)
    )


@asynccontextmanager
async def postgres_parts(url: str) -> AsyncIterator[TaskParts]:
    """Parts over a database."""
    database = Database(url, connections=5, name="tasks")
    await database.open()
    try:
        yield TaskParts(
            PostgresSessionLog(database),
            PostgresTurnQueue(database),
            PostgresInbox(database),
            PostgresTaskStore(database),
        )
    finally:
        await database.close()


#: Makes the tasks under test: a broken one, to try the kit.
MakeHostTasks = Callable[[HostSessions, TaskStore, TaskRunner, TaskExecutor], HostTasks]


class MadeOver:
    """``make`` of the tasks kit, over a backend's parts."""

    def __init__(self, url: str | None, tasks: MakeHostTasks = HostTasks) -> None:
        self.url = url
        self.tasks = tasks

    @asynccontextmanager
    async def __call__(
        self, runner: TaskRunner, executor: TaskExecutor, *, admission: TurnAdmission | None = None
    ) -> AsyncIterator[MadeTasks]:
        """Open tasks over new parts."""
        if self.url is None:
            yield self._made(inproc_parts(), runner, executor, admission)
            return
        async with postgres_parts(self.url) as parts:
            yield self._made(parts, runner, executor, admission)

    def _made(
        self,
        parts: TaskParts,
        runner: TaskRunner,
        executor: TaskExecutor,
        admission: TurnAdmission | None,
    ) -> MadeTasks:
        sessions = parts.sessions(admission=admission)
        return MadeTasks(self.tasks(sessions, parts.store, runner, executor), sessions)
