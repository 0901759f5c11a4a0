"""Broken sessions: each fails the checks of its fault by their names, and every check has one that fails it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from shared.conformance import ConformanceFailure
from shared.conformance.sessions import CHECKS
from shared.domain.errors import InvalidInput, ReservedKind, SessionBusy
from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId, new_run_id
from shared.host.activity import TurnActivity, TurnsInFlight
from shared.host.news import News
from shared.host.ownership import HolderProcess, Ownership, process_of
from shared.host.port import (
    Decide,
    Decision,
    Drained,
    InboxTurn,
    NewTurn,
    RunInbox,
    SessionAddress,
    SessionView,
)
from shared.host.sessions import HostSessions
from shared.host.writer import QueuedTurnWriter
from shared.inbox.port import Delivered, Inbox
from shared.sessions.inproc import InprocSessionLog
from shared.sessions.log import SessionLog
from shared.sessions.records import Draft, Head, Record, draft
from shared.turns.admission import TurnAdmission
from shared.turns.inproc import InprocTurnQueue
from shared.turns.queue import Admission, Begun, Claim, Ended, Ending, TurnQueue
from tests.conformance.session_subjects import InprocSessionsSubject, Processes, SaidLiveness


class Unshown(HostSessions):
    """Forgets to show what a session was created with."""

    async def view(self, address: SessionAddress) -> SessionView:
        return replace(await super().view(address), meta={})


class Ownerless(HostSessions):
    """Reads whatever exists."""

    async def read(
        self,
        address: SessionAddress,
        *,
        after: int = 0,
        limit: int = 1_000,
        kinds: Sequence[str] | None = None,
    ) -> Sequence[Record]:
        return await self._log.read(address.id, after=after, limit=limit, kinds=kinds)


class Untyped(HostSessions):
    """Raises errors of its own."""

    @asynccontextmanager
    async def begin(
        self, address: SessionAddress, turn: NewTurn | InboxTurn
    ) -> AsyncIterator[QueuedTurnWriter]:
        try:
            async with super().begin(address, turn) as writer:
                yield writer
        except (SessionBusy, InvalidInput) as error:
            raise RuntimeError(error.code) from error


class Blind(HostSessions):
    """Transacts without looking whether another was first."""

    async def transact(
        self, address: SessionAddress, decide: Decide, *, after: int = 0, kinds: Sequence[str] | None = None
    ) -> Any:
        decision = decide(await self.read(address, after=after, kinds=kinds))
        assert isinstance(decision, Decision)
        await self._log.commit(address.id, address.owner, decision.drafts)
        return decision.answer


class Impatient(HostSessions):
    """Plans a transaction once more than it is told to."""

    def __init__(self, log: SessionLog, queue: TurnQueue, **how: Any) -> None:
        super().__init__(log, queue, **how | {"retries": 9})


class Swallowing(HostSessions):
    """Ignores what it may not store."""

    async def transact(self, *given: Any, **how: Any) -> Any:
        with suppress(ReservedKind):
            return await super().transact(*given, **how)


class Endless(HostSessions):
    """Leaves a turn as it is when its scope closes."""

    async def _leave(self, begun: Begun, writer: QueuedTurnWriter, error: BaseException | None) -> None:
        await writer.stop()


class Soft(HostSessions):
    """Only says that it cancelled."""

    async def cancel(self, address: SessionAddress, turn: int) -> bool:
        return True


class Childless(HostSessions):
    """Forks without the history."""

    async def fork(self, parent: SessionAddress, *, inherit: bool) -> SessionView:
        return await super().fork(parent, inherit=False)


class NoNews(News):
    def tell(self, session: SessionId, seq: int) -> None:
        pass


class Deaf(HostSessions):
    """Tells nobody of its commits."""

    def __init__(self, log: SessionLog, queue: TurnQueue, **how: Any) -> None:
        super().__init__(log, queue, **how)
        self._news = NoNews()


class Hookless(HostSessions):
    """Asks no admission."""

    def __init__(self, log: SessionLog, queue: TurnQueue, **how: Any) -> None:
        super().__init__(log, queue, **how | {"admission": None})


class Uncounted(HostSessions):
    """Counts nothing."""

    @property
    def activity(self) -> TurnActivity:
        class Nothing:
            current = TurnsInFlight()

        return Nothing()


class Eager(HostSessions):
    """Closes a leased turn as soon as its process is gone."""

    async def _reap(self, head: Head) -> bool:
        if head.open is not None:
            view = await self._queue.get(TurnId(head.open.turn_id), head.owner)
            process = process_of(view.holder)
            if process is not None and self._liveness.is_running(process) is False:
                await self._queue.cancel(view.turn_id, head.owner)
                return True
        return await super()._reap(head)


class Doubling(HostSessions):
    """Stores an item each time it is delivered."""

    async def deliver(self, address: SessionAddress, *, id: str, **item: Any) -> Delivered:
        return await super().deliver(address, id=f"{id}-{new_run_id()}", **item)


class Credulous(HostSessions):
    """Says that it took what cannot be stored."""

    async def deliver(self, address: SessionAddress, **item: Any) -> Delivered:
        try:
            return await super().deliver(address, **item)
        except InvalidInput:
            return Delivered(1, False, 1, None)


class Unbounded(HostSessions):
    """Lets any number of items wait."""

    def __init__(self, log: SessionLog, queue: TurnQueue, **how: Any) -> None:
        super().__init__(log, queue, **how | {"max_pending": 10**6})


class Jealous(HostSessions):
    """Lets no user's turn begin while items wait."""

    @asynccontextmanager
    async def begin(
        self, address: SessionAddress, turn: NewTurn | InboxTurn
    ) -> AsyncIterator[QueuedTurnWriter]:
        if isinstance(turn, NewTurn) and (await self.view(address)).pending:
            raise SessionBusy("items wait", session=address.id)
        async with super().begin(address, turn) as writer:
            yield writer


class Single(HostSessions):
    """Runs one turn a drain."""

    async def drain(self, address: SessionAddress, run: RunInbox, **how: Any) -> Drained:
        return await super().drain(address, run, **how | {"max_turns": 1})


class Idle(HostSessions):
    """Drains nothing."""

    async def drain(self, address: SessionAddress, run: RunInbox, **how: Any) -> Drained:
        return Drained(0, 0, "empty")


class UncountingQueue(InprocTurnQueue):
    """Never counts an attempt of an interrupted turn."""

    counts = False

    async def end(
        self, claim: Claim, commit_id: str, drafts: Sequence[Draft], ending: Ending, **how: Any
    ) -> Ended:
        if ending.outcome == "interrupted":
            ending = replace(ending, counts_attempt=self.counts)
        return await super().end(claim, commit_id, drafts, ending, **how)


class CountingQueue(UncountingQueue):
    """Always counts an attempt of an interrupted turn."""

    counts = True


class BeginQueue(InprocTurnQueue):
    """A queue whose begin is another than was asked for."""

    def changed(self, admission: Admission) -> Admission:
        return admission

    def stored(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        return drafts

    async def begin(
        self, admission: Admission, holder: WorkerId, *, drafts: Sequence[Draft], **how: Any
    ) -> Begun:
        return await super().begin(self.changed(admission), holder, drafts=self.stored(drafts), **how)


class KeylessQueue(BeginQueue):
    def changed(self, admission: Admission) -> Admission:
        return replace(admission, key=None)


class RunlessQueue(BeginQueue):
    def changed(self, admission: Admission) -> Admission:
        return replace(admission, run_id=new_run_id())


class TaciturnQueue(BeginQueue):
    def stored(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        return [draft(d.kind, {"v": 1}) for d in drafts]


class TerseQueue(BeginQueue):
    """Opens inbox turns without what they are asked."""

    def stored(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        held = [json.loads(d.text) for d in drafts]
        asked = [h | {"user_message": {"text": "news"}} if h.get("origin") == "inbox" else h for h in held]
        return [draft(d.kind, h) for d, h in zip(drafts, asked, strict=True)]


class LongLeaseQueue(BeginQueue):
    async def begin(
        self, admission: Admission, holder: WorkerId, *, drafts: Sequence[Draft], **how: Any
    ) -> Begun:
        return await super().begin(admission, holder, drafts=drafts, **how | {"lease_s": 1e6})


class LossyQueue(InprocTurnQueue):
    """Stores all but the last record of a commit."""

    async def append(self, claim: Claim, commit_id: str, drafts: Sequence[Draft], **how: Any) -> int:
        return await super().append(claim, commit_id, drafts[:-1], **how)


class UncheckedQueue(InprocTurnQueue):
    async def append(self, claim: Claim, commit_id: str, drafts: Sequence[Draft], **how: Any) -> int:
        return await super().append(claim, commit_id, drafts, **how | {"expect": None})


class UnextendedQueue(InprocTurnQueue):
    async def append(self, claim: Claim, commit_id: str, drafts: Sequence[Draft], **how: Any) -> int:
        return await super().append(claim, commit_id, drafts, **how | {"extend_s": None})


class CheerfulQueue(InprocTurnQueue):
    """Stores every end as completed."""

    async def end(
        self, claim: Claim, commit_id: str, drafts: Sequence[Draft], ending: Ending, **how: Any
    ) -> Ended:
        completed = draft("turn.ended", {"v": 1, "reason": "completed"})
        return await super().end(claim, commit_id, [*drafts[:-1], completed], Ending("completed"), **how)


class OrphaningLog(InprocSessionLog):
    """Removes a session and leaves its children."""

    async def remove(self, session_id: SessionId, owner: OwnerId) -> Sequence[SessionId]:
        self._store.owned(session_id, owner)
        self._store.remove([session_id])
        return [session_id]


class Blank(HostSessions):
    """Reads no ``resumes``."""

    @asynccontextmanager
    async def begin(
        self, address: SessionAddress, turn: NewTurn | InboxTurn
    ) -> AsyncIterator[QueuedTurnWriter]:
        plain = replace(turn, resumes=None) if isinstance(turn, NewTurn) else turn
        async with super().begin(address, plain) as writer:
            yield writer


class Rounding(HostSessions):
    """Makes a number of what is none."""

    @asynccontextmanager
    async def begin(
        self, address: SessionAddress, turn: NewTurn | InboxTurn
    ) -> AsyncIterator[QueuedTurnWriter]:
        if isinstance(turn, NewTurn) and turn.resumes in (1, "1", 1.5):
            turn = replace(turn, resumes=int(turn.resumes))
        async with super().begin(address, turn) as writer:
            yield writer


class FreeQueue(InprocTurnQueue):
    """Lets anyone resume anything, as often as they like, and takes no key for it."""

    async def begin(self, admission: Admission, holder: WorkerId, **how: Any) -> Begun:
        bare = replace(admission, resumes=None, key=None)
        return await super().begin(admission if admission.resumes is None else bare, holder, **how)


class Immortal(SaidLiveness):
    """Takes every process for a running one."""

    def is_running(self, process: HolderProcess) -> bool | None:
        return True


class Omniscient(SaidLiveness):
    """Judges processes of hosts that it cannot ask."""

    def is_running(self, process: HolderProcess) -> bool | None:
        return process not in self.stopped


class BrokenProcesses(Processes):
    sessions: type[HostSessions] = HostSessions
    liveness: type[SaidLiveness] = SaidLiveness

    def make(
        self,
        log: SessionLog,
        queue: TurnQueue,
        inbox: Inbox,
        ownership: Ownership,
        liveness: SaidLiveness,
        admission: TurnAdmission | None,
    ) -> HostSessions:
        judged = self.liveness(liveness.process, liveness.stopped)
        return self.sessions(
            log, queue, inbox=inbox, ownership=ownership, liveness=judged, admission=admission
        )


class BrokenSubject(InprocSessionsSubject):
    """A subject with one broken part."""

    def __init__(self, broken: type[object]) -> None:
        super().__init__()
        self._log = broken if issubclass(broken, InprocSessionLog) else InprocSessionLog
        self._queue = broken if issubclass(broken, InprocTurnQueue) else InprocTurnQueue
        self.processes = processes = BrokenProcesses()
        processes.sessions = broken if issubclass(broken, HostSessions) else HostSessions
        processes.liveness = broken if issubclass(broken, SaidLiveness) else SaidLiveness

    async def log(self) -> SessionLog:
        return self._log(self.store)

    async def queue(self) -> TurnQueue:
        return self._queue(self.store)


#: What is broken, and a beginning of the name of each check that must see it.
FAULTS: Mapping[type[object], Sequence[str]] = {
    Unshown: ["a new session has a view"],
    TaciturnQueue: ["a begin opens the turn with its turn.started"],
    Untyped: ["a begin beside an open turn is busy", "what cannot be stored is refused"],
    KeylessQueue: ["the same key again names its turn", "of two begins with one key at once"],
    RunlessQueue: ["a run id is used once"],
    Ownerless: ["another owner's address finds nothing"],
    LossyQueue: ["what is flushed is stored"],
    UncheckedQueue: ["a turn's transaction decides again"],
    CheerfulQueue: ["an end closes the turn once"],
    Endless: ["a scope that closes unended"],
    Swallowing: ["every reserved kind is refused"],
    Soft: ["a cancel ends exactly that turn", "cancelling a turn that nobody holds"],
    OrphaningLog: ["removing a session closes"],
    Blind: ["of transactions from two instances"],
    Impatient: ["a transaction whose commit keeps losing"],
    Childless: ["a fork that inherits"],
    Deaf: ["an instance signals the commits"],
    Hookless: ["a host's admission wraps", "a drain beside an open turn"],
    Uncounted: ["a begin counts from the moment"],
    LongLeaseQueue: ["a lease that ran out reads closed", "a turn whose holder stopped counts"],
    UnextendedQueue: ["under on-commit a write renews"],
    Blank: [
        "a resume is the user's next turn",
        "what was interrupted can be resumed",
        "what names no turn is missing",
        "a fork's inherited turns",
        "a refused resume takes neither",
    ],
    Rounding: ["what names no turn is missing"],
    FreeQueue: ["resumed, cancelled, resumed again", "of two resumes of one turn at once"],
    Immortal: [
        "a turn whose holder stopped is reaped",
        "a turn that a process holds is busy",
        "a turn is judged as it was taken: a process holds",
    ],
    Eager: ["a turn is judged as it was taken: a lease holds"],
    Omniscient: ["a holder on another host"],
    Doubling: ["a delivery is one record"],
    Credulous: ["what cannot be delivered"],
    Unbounded: ["one more item than may wait"],
    TerseQueue: ["an inbox turn claims every waiting item"],
    Jealous: ["a user's turn goes before waiting items"],
    Single: ["a drain answers what waits"],
    Idle: ["of two drains at once"],
    UncountingQueue: ["a run that fails ends its turn", "a drain that is cancelled ends its turn"],
    CountingQueue: ["items are done with a turn"],
}


@pytest.mark.parametrize("broken", FAULTS, ids=[broken.__name__ for broken in FAULTS])
async def test_broken_sessions_fail_the_checks_of_their_fault_by_their_names(broken: type[object]) -> None:
    for beginning in FAULTS[broken]:
        [named] = [check for check in CHECKS if check.name.startswith(beginning)]
        check = named.on(BrokenSubject(broken), timeout_s=2)
        with pytest.raises(ConformanceFailure) as failure:
            await check.run()
        assert str(failure.value).startswith(f"{check.name}: ")


def test_every_check_of_sessions_has_a_fault_that_fails_it() -> None:
    names = {check.name for check in CHECKS}
    seen = {name for name in names for faults in FAULTS.values() if name.startswith(tuple(faults))}
    assert seen == names
