"""The turn's one way to write: numbered commits under the claim's fence, repeated by id until their outcome is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from shared.domain.errors import Unavailable
from shared.sessions.records import Draft
from shared.sessions.vocabulary import Payload, draft_of
from shared.turns.queue import CallEntry, Claim, Ended, Ending, Opened, TurnQueue

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 2.0


class TurnWriter:
    """Writes one attempt's commits, in order, one at a time.

    A commit whose answer was lost is repeated under the same id, so nothing is stored twice; it is repeated for as long
    as the attempt lives: the lease's watchdog ends that. Raises ``FenceLost`` or ``TurnClosed`` when the turn is no longer
    ours; nothing of such a commit is stored. ``on_commit`` hears of every commit with the log's seq, ``on_step`` of each
    that stored a whole step; ``opened`` is the answer of :meth:`open`, once there is one.
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
        self.opened: Opened | None = None

    async def open(self, payloads: Sequence[Payload], *, title: str | None) -> Opened:
        """Open the turn, or take it over; see :meth:`shared.turns.queue.TurnQueue.open`."""
        commit, drafts = self._next_commit(), _drafts(payloads)
        async for attempt in _until_known():
            with attempt:
                opened = await self._queue.open(self._claim, commit, drafts, title=title)
        self.opened = opened
        if opened.result == "opened":
            self._on_commit(opened.seq)
        return opened

    async def append(
        self, payloads: Sequence[Payload], *, stepped: bool = False, calls: Sequence[CallEntry] = ()
    ) -> int:
        """Append records and ledger lines in one commit; return the log's seq."""
        commit, drafts = self._next_commit(), _drafts(payloads)
        async for attempt in _until_known():
            with attempt:
                seq = await self._queue.append(self._claim, commit, drafts, stepped=stepped, calls=calls)
        if stepped:
            self._on_step()
        self._on_commit(seq)
        return seq

    async def end(
        self, payloads: Sequence[Payload], ending: Ending, *, calls: Sequence[CallEntry] = ()
    ) -> Ended:
        """Write the closing commit, exactly once."""
        commit, drafts = self._next_commit(), _drafts(payloads)
        async for attempt in _until_known():
            with attempt:
                ended = await self._queue.end(self._claim, commit, drafts, ending, calls=calls)
        self._on_commit(ended.seq)
        return ended

    def _next_commit(self) -> str:
        self._commits += 1
        return f"{self._claim.fence.token}:{self._commits}"


def _until_known() -> AsyncRetrying:
    return AsyncRetrying(
        retry=retry_if_exception_type(Unavailable),
        wait=wait_random_exponential(multiplier=RETRY_FIRST_S, max=RETRY_MAX_S),
        reraise=True,
    )


def _drafts(payloads: Sequence[Payload]) -> list[Draft]:
    return [draft_of(p) for p in payloads]
