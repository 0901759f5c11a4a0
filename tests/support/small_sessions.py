"""A host's sessions over the twin: begin and end of turns through the real writer, with the faults that a test asks for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from shared.domain.ids import WorkerId, new_run_id, new_turn_id
from shared.host.commits import WriterRules
from shared.host.port import InboxTurn, NewTurn, SessionAddress
from shared.host.sessions import HostSessions
from shared.host.writer import QueuedTurnWriter
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.records import Draft
from shared.sessions.vocabulary import draft_of
from shared.turns.queue import Admission, AdmissionLimits, Claim, ClaimRequest, Ended, Ending
from tests.support.turn_world import FaultyQueue
from workers.turns.opening import started_of


class HostQueue(FaultyQueue):
    """A queue whose ends leave ``waiting_items`` inbox items behind, and keeps how they ended."""

    waiting_items = 0

    def __init__(self, store: InprocStore) -> None:
        super().__init__(store)
        self.endings: list[Ending] = []

    async def end(
        self, claim: Claim, commit_id: str, drafts: Sequence[Draft], ending: Ending, **how: Any
    ) -> Ended:
        ended = await super().end(claim, commit_id, drafts, ending, **how)
        self.endings.append(ending)
        return replace(ended, pending=self.waiting_items)


class SmallSessions(HostSessions):
    """The host's sessions over the twin. A store that is away is not waited for; ``writers`` are those of begun turns."""

    def __init__(self, store: InprocStore) -> None:
        self.queue = HostQueue(store)
        self.log = InprocSessionLog(store)
        self.writers: list[QueuedTurnWriter] = []
        super().__init__(self.log, self.queue, rules=WriterRules(patience_s=0))

    @asynccontextmanager
    async def begin(
        self, address: SessionAddress, turn: NewTurn | InboxTurn
    ) -> AsyncIterator[QueuedTurnWriter]:
        """Begin a turn, and note its writer."""
        async with super().begin(address, turn) as writer:
            self.writers.append(writer)
            yield writer

    async def open(self, address: SessionAddress, turn: NewTurn) -> QueuedTurnWriter:
        """Begin a turn outside any scope, which the caller ends."""
        admission = Admission(
            new_turn_id(),
            turn.run_id or new_run_id(),
            address.id,
            address.owner,
            turn.message,
            key=turn.key,
            command=turn.command,
            meta=turn.meta,
            on_busy="reject",
        )
        await self.queue.admit(admission, AdmissionLimits())
        [claim] = await self.queue.claim(ClaimRequest(WorkerId("host"), 1, lease_s=600))
        writer = QueuedTurnWriter(self.queue, self.log, claim, rules=WriterRules(patience_s=0))
        await writer.open([draft_of(started_of(claim))], title=None)
        return writer
