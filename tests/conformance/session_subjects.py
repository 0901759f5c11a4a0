"""The sessions of a host as their kit wants them, over both stores, with processes that a test stops by saying so."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from shared.host.activity import TurnActivity
from shared.host.ownership import HolderProcess, Ownership
from shared.host.port import Sessions
from shared.host.sessions import HostSessions
from shared.inbox.inproc import InprocInbox
from shared.inbox.port import Inbox
from shared.inbox.postgres import PostgresInbox
from shared.sessions.log import SessionLog
from shared.sessions.postgres import PostgresSessionLog
from shared.turns.admission import TurnAdmission
from shared.turns.inproc import InprocTurnQueue
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import TurnQueue
from tests.conformance.subjects import InprocWorld, PostgresWorld


@dataclass(frozen=True)
class SaidLiveness:
    """A process as it is said to be; those of its host run until they are in ``stopped``."""

    process: HolderProcess
    stopped: set[HolderProcess]

    def me(self) -> HolderProcess:
        return self.process

    def is_running(self, process: HolderProcess) -> bool | None:
        return None if process.host != self.process.host else process not in self.stopped


@dataclass
class Processes:
    """The processes of one subject's instances."""

    stopped: set[HolderProcess] = field(default_factory=set)
    pids: itertools.count[int] = field(default_factory=lambda: itertools.count(1_000))
    of: dict[int, HolderProcess] = field(default_factory=dict)

    def open(
        self,
        log: SessionLog,
        queue: TurnQueue,
        inbox: Inbox,
        ownership: Ownership,
        host: str,
        admission: TurnAdmission | None,
    ) -> HostSessions:
        process = HolderProcess(host, next(self.pids), 1)
        sessions = self.make(log, queue, inbox, ownership, SaidLiveness(process, self.stopped), admission)
        self.of[id(sessions)] = process
        return sessions

    def make(
        self,
        log: SessionLog,
        queue: TurnQueue,
        inbox: Inbox,
        ownership: Ownership,
        liveness: SaidLiveness,
        admission: TurnAdmission | None,
    ) -> HostSessions:
        return HostSessions(
            log, queue, inbox=inbox, ownership=ownership, liveness=liveness, admission=admission
        )

    def stop(self, sessions: Sessions) -> None:
        self.stopped.add(self.of[id(sessions)])


def activity_of(sessions: Sessions) -> TurnActivity | None:
    return sessions.activity if isinstance(sessions, HostSessions) else None


class InprocSessionsSubject(InprocWorld):
    def __init__(self) -> None:
        super().__init__(tick_s=1e-6)
        self.processes = Processes()

    async def queue(self) -> TurnQueue:
        return InprocTurnQueue(self.store)

    async def open(
        self, ownership: Ownership, *, host: str = "here", admission: TurnAdmission | None = None
    ) -> Sessions:
        log, queue, inbox = await self.log(), await self.queue(), InprocInbox(self.store)
        return self.processes.open(log, queue, inbox, ownership, host, admission)

    def activity(self, sessions: Sessions) -> TurnActivity | None:
        return activity_of(sessions)

    def stop(self, sessions: Sessions) -> None:
        self.processes.stop(sessions)


class PostgresSessionsSubject(PostgresWorld):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.processes = Processes()

    async def open(
        self, ownership: Ownership, *, host: str = "here", admission: TurnAdmission | None = None
    ) -> Sessions:
        database = await self.database()
        log, queue, inbox = PostgresSessionLog(database), PostgresTurnQueue(database), PostgresInbox(database)
        return self.processes.open(log, queue, inbox, ownership, host, admission)

    def activity(self, sessions: Sessions) -> TurnActivity | None:
        return activity_of(sessions)

    def stop(self, sessions: Sessions) -> None:
        self.processes.stop(sessions)
