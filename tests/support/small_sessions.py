"""A host's sessions over the twin: begin and end of turns, with the faults that a test asks for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from shared.domain.errors import FenceLost, StoreUnavailable, TurnClosed, TurnDuplicate
from shared.domain.ids import WorkerId, new_run_id, new_turn_id
from shared.host.port import AdmittedTurn, CloseReason, EndedTurn, NewTurn, SessionAddress, TurnEnding
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.records import Draft
from shared.sessions.vocabulary import TurnEnded, draft_of, refuse_reserved
from shared.turns.inproc import InprocTurnQueue
from shared.turns.queue import Admission, AdmissionLimits, Claim, ClaimRequest, Ending
from workers.turns.opening import admitted_of, started_of

T = TypeVar("T")


class SmallWriter:
    """Writes at once what it is given. ``failing_ends`` ends fail before one is stored."""

    def __init__(self, queue: InprocTurnQueue, claim: Claim, admitted: AdmittedTurn) -> None:
        self.failing_ends = 0
        self.ended: TurnEnding | None = None
        self.tried: TurnEnding | None = None
        self._queue = queue
        self._claim = claim
        self._admitted = admitted
        self._commits = 0
        self._seq = 0
        self._closed: asyncio.Future[CloseReason] = asyncio.get_running_loop().create_future()

    @property
    def session(self) -> SessionAddress:
        return SessionAddress(self._claim.session_id, self._claim.owner)

    @property
    def admitted(self) -> AdmittedTurn:
        return self._admitted

    async def append(self, drafts: Sequence[Draft], *, framework: bool = False) -> None:
        if not framework:
            refuse_reserved([d.kind for d in drafts])
        try:
            self._seq = await self._queue.append(self._claim, self._commit(), drafts)
        except FenceLost as error:
            self.lose(error.fields.get("reason", "interrupted"))
            raise

    async def write(self, op: Callable[[], Awaitable[T]]) -> T:
        return await op()

    async def transact(self, decide: Any, **how: Any) -> Any:
        raise NotImplementedError

    async def flush(self) -> int:
        if self._closed.done():
            raise TurnClosed("closed", reason=self._closed.result())
        return self._seq

    async def end(self, ending: TurnEnding, drafts: Sequence[Draft] = ()) -> EndedTurn:
        self.tried = ending
        if self.failing_ends:
            self.failing_ends -= 1
            raise StoreUnavailable("the database is away")
        last = draft_of(TurnEnded(reason=ending.reason, code=ending.code, failure=ending.failure))
        row = Ending(ending.reason, ending.code, ending.failure, ending.usage)
        ended = await self._queue.end(self._claim, self._commit(), [*drafts, last], row)
        self.ended = ending
        return EndedTurn(ended.seq, 3)

    async def closed(self) -> CloseReason:
        return await asyncio.shield(self._closed)

    def lose(self, reason: CloseReason) -> None:
        """Tell whoever waits that someone else closed the turn."""
        if not self._closed.done():
            self._closed.set_result(reason)

    def _commit(self) -> str:
        self._commits += 1
        return f"{self._claim.fence.token}:{self._commits}"


class SmallSessions:
    """Begins turns on the twin; ``writers`` are those it made."""

    def __init__(self, store: InprocStore) -> None:
        self.queue = InprocTurnQueue(store)
        self.log = InprocSessionLog(store)
        self.writers: list[SmallWriter] = []
        self.failing_ends = 0

    @asynccontextmanager
    async def begin(self, address: SessionAddress, turn: NewTurn) -> AsyncIterator[SmallWriter]:
        writer = await self.open(address, turn)
        error: BaseException | None = None
        try:
            yield writer
        except BaseException as raised:
            error = raised
            raise
        finally:
            if writer.ended is None and not writer._closed.done():
                cancelled = isinstance(error, asyncio.CancelledError)
                scope = TurnEnding("interrupted", "turn.interrupted")
                await writer.end(
                    writer.tried or (scope if cancelled else TurnEnding("failed", "turn.unended"))
                )

    async def open(self, address: SessionAddress, turn: NewTurn) -> SmallWriter:
        """Begin a turn that the caller ends."""
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
        receipt = await self.queue.admit(admission, AdmissionLimits())
        if receipt.duplicate:
            raise TurnDuplicate("begun before", turn_id=str(receipt.turn_id))
        [claim] = await self.queue.claim(ClaimRequest(WorkerId("host"), 1, lease_s=600))
        started = started_of(claim)
        opened = await self.queue.open(claim, f"{claim.fence.token}:open", [draft_of(started)])
        writer = SmallWriter(self.queue, claim, admitted_of(claim, started, opened.number))
        writer.failing_ends = self.failing_ends
        self.writers.append(writer)
        return writer
