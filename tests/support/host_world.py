"""A host's world in memory: sessions, claims opened by hand and their writers, over a line that fails as told."""

from __future__ import annotations

from typing import Any

from shared.domain.ids import OwnerId, SessionId, WorkerId, new_run_id, new_session_id, new_turn_id
from shared.host.commits import WriterEars, WriterRules
from shared.host.writer import QueuedTurnWriter
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.log import NewSession
from shared.sessions.records import Draft, draft, verify_log
from shared.sessions.vocabulary import TurnStarted, UserMessage, draft_of
from shared.turns.queue import Admission, AdmissionLimits, Begun, Claim, ClaimRequest
from tests.support.turn_world import FaultyQueue
from tests.support.virtual_time import loop_clock

OWNER = OwnerId("owner")
LEASE_S = 60.0


def note(n: object = 1, kind: str = "note.added") -> Draft:
    """A host's record."""
    return draft(kind, {"n": n})


class HostQueue(FaultyQueue):
    """A queue whose begins may fail too."""

    async def begin(self, *given: Any, **how: Any) -> Begun:
        async with self._line("begin"):
            return await super().begin(*given, **how)


class HostWorld:
    """One store with one session; make it inside a running (virtual-time) loop."""

    def __init__(self) -> None:
        self.store = InprocStore(loop_clock)
        self.queue = HostQueue(self.store)
        self.log = InprocSessionLog(self.store)
        self.session = SessionId("")

    async def new_session(self, owner: OwnerId = OWNER) -> SessionId:
        """Create one more session."""
        return (await self.log.create(NewSession(new_session_id(), owner))).session_id

    async def claim(self, *, on_worker_loss: str = "interrupt", lease_s: float = LEASE_S) -> Claim:
        """Admit and claim a turn of the world's session, which the first call makes."""
        self.session = self.session or await self.new_session()
        admission = Admission(
            turn_id=new_turn_id(),
            run_id=new_run_id(),
            session_id=self.session,
            owner=OWNER,
            message={"text": "hello"},
            on_worker_loss="continue" if on_worker_loss == "continue" else "interrupt",
        )
        await self.queue.admit(admission, AdmissionLimits())
        [claim] = await self.queue.claim(ClaimRequest(WorkerId("host"), 1, lease_s=lease_s))
        return claim

    async def writer(
        self, claim: Claim | None = None, *, ears: WriterEars | None = None, **rules: Any
    ) -> QueuedTurnWriter:
        """The writer of a claim, opened."""
        claim = claim or await self.claim()
        writer = QueuedTurnWriter(self.queue, self.log, claim, rules=WriterRules(**rules), ears=ears)
        started = TurnStarted(
            turn_id=str(claim.turn_id),
            run_id=claim.run_id,
            entry=f"{claim.run_id}:0",
            origin="user",
            user_message=UserMessage(text="hello"),
        )
        await writer.open([draft_of(started)], title=None)
        return writer

    def kinds(self) -> list[str]:
        """The kinds of the world's log, which verifies against its head."""
        session = self.store.sessions[self.session]
        verify_log(self.session, session.records, seq=session.seq, tail=session.tail)
        return [record.kind for record in session.records]

    def notes(self) -> list[Any]:
        """What the host's notes hold, in the order of the log."""
        return [r.data["n"] for r in self.store.sessions[self.session].records if r.kind == "note.added"]

    def ends(self) -> list[tuple[Any, Any]]:
        """Reason and code of every closing record."""
        records = self.store.sessions[self.session].records
        return [(r.data["reason"], r.data.get("code")) for r in records if r.kind == "turn.ended"]

    def commits(self) -> list[tuple[str, ...]]:
        """The kinds of each commit that a holder stored, in order, the opening one left out."""
        return [write.kinds for write in self.queue.writes if write.what != "open"]
