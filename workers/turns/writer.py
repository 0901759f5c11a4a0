"""The turn's one way to write: numbered commits under the claim's fence, repeated by id until their outcome is known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from shared.domain.errors import FenceLost, Unavailable
from shared.sessions.records import Draft
from shared.sessions.vocabulary import Payload, draft_of
from shared.turns.queue import CallEntry, Claim, Ended, Ending, Opened, TurnQueue

T = TypeVar("T")

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 2.0


class StepJournal(Protocol):
    """Where a turn's body writes: everything of one call is stored, in order, when it returns (law 5)."""

    async def append(
        self, payloads: Sequence[Payload], *, stepped: bool = False, calls: Sequence[CallEntry] = ()
    ) -> int:
        """Store records and ledger lines in one commit and return the log's seq; ``stepped`` marks a whole step."""
        ...


class TurnWriter:
    """Writes one attempt's commits, in order, one at a time.

    A commit whose answer was lost is repeated under the same id, so nothing is stored twice; it is repeated for as long
    as the attempt lives: the lease's watchdog ends that. Raises ``FenceLost`` or ``TurnClosed`` when the turn is no longer
    ours; nothing of such a commit is stored. ``on_commit`` hears of every commit with the log's seq, ``on_step`` of each
    that stored a whole step; ``opened`` is the answer of :meth:`open`, once there is one. The first refusal is latched in
    ``refused``: every later call raises it again.
    """

    def __init__(
        self,
        queue: TurnQueue,
        claim: Claim,
        on_commit: Callable[[int], None] = lambda _: None,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._queue = queue
        self._claim = claim
        self._on_commit = on_commit
        self._on_step = on_step
        self._commits = 0
        self._seq = 0
        self.opened: Opened | None = None
        self.refused: FenceLost | None = None

    async def open(self, payloads: Sequence[Payload], *, title: str | None) -> Opened:
        """Open the turn, or take it over; see :meth:`shared.turns.queue.TurnQueue.open`."""
        commit, drafts = self._next_commit(), _drafts(payloads)
        opened = await self._known(lambda: self._queue.open(self._claim, commit, drafts, title=title))
        self.opened = opened
        if opened.result == "opened":
            self._note(opened.seq)
        return opened

    async def append(
        self, payloads: Sequence[Payload], *, stepped: bool = False, calls: Sequence[CallEntry] = ()
    ) -> int:
        """Append records and ledger lines in one commit; return the log's seq."""
        commit, drafts = self._next_commit(), _drafts(payloads)
        seq = await self._known(
            lambda: self._queue.append(self._claim, commit, drafts, stepped=stepped, calls=calls)
        )
        if stepped:
            self._on_step()
        self._note(seq)
        return seq

    async def end(
        self, payloads: Sequence[Payload], ending: Ending, *, calls: Sequence[CallEntry] = ()
    ) -> Ended:
        """Write the closing commit, exactly once."""
        commit, drafts = self._next_commit(), _drafts(payloads)
        ended = await self._known(lambda: self._queue.end(self._claim, commit, drafts, ending, calls=calls))
        self._note(ended.seq)
        return ended

    async def flush(self) -> int:
        """Return the log's seq after the last commit: nothing waits, each call above stored what it was given."""
        if self.refused is not None:
            raise self.refused
        return self._seq

    def _next_commit(self) -> str:
        self._commits += 1
        return f"{self._claim.fence.token}:{self._commits}"

    def _note(self, seq: int) -> None:
        self._seq = seq
        self._on_commit(seq)

    async def _known(self, write: Callable[[], Awaitable[T]]) -> T:
        """Repeat a write until its outcome is known; latch a refusal."""
        if self.refused is not None:
            raise self.refused
        try:
            return await until_known(write)
        except FenceLost as error:
            self.refused = error
            raise


async def until_known(call: Callable[[], Awaitable[T]]) -> T:
    """Return what a call of the store answers, asked again while it is away; the lease's watchdog ends that."""
    tries = AsyncRetrying(
        retry=retry_if_exception_type(Unavailable),
        wait=wait_random_exponential(multiplier=RETRY_FIRST_S, max=RETRY_MAX_S),
        reraise=True,
    )
    async for attempt in tries:
        with attempt:
            return await call()
    raise AssertionError("unreachable: the tries have no end")


def _drafts(payloads: Sequence[Payload]) -> list[Draft]:
    return [draft_of(p) for p in payloads]
