"""What a host's sessions do with a turn that was claimed for them: open it, hold it for a block, close one nobody holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from shared.domain.ids import WorkerId
from shared.host.activity import CountedTurns
from shared.host.beginning import Beginning
from shared.host.port import SessionAddress
from shared.host.writer import QueuedTurnWriter
from shared.sessions.log import SessionLog
from shared.sessions.records import Draft, Head
from shared.turns.queue import Begun, Claim, TurnQueue


class ClaimedTurns(ABC):
    """The part of :class:`shared.host.sessions.HostSessions` for turns that wait in the queue before they are opened."""

    _log: SessionLog
    _queue: TurnQueue
    _holder: WorkerId
    _lease_s: float | None
    _door: Beginning
    _turns: CountedTurns

    @property
    def holder(self) -> WorkerId:
        """What this instance is called where it holds a turn."""
        return self._holder

    @property
    def lease_s(self) -> float | None:
        """How long this instance's claims are trusted, in seconds; None: as long as its process runs."""
        return self._lease_s

    @asynccontextmanager
    async def open_claimed(
        self, claim: Claim, drafts: Sequence[Draft], *, sent_at: float
    ) -> AsyncIterator[QueuedTurnWriter]:
        """Open, for the block, a turn that :attr:`holder` claimed by a call sent at ``sent_at`` (loop time).

        The block leaves as that of :meth:`begin`. Raises, and holds nothing then, ``TurnRefused`` by the host's admission,
        ``TurnClosed`` for a turn that was ended meanwhile, or a store error.
        """
        with self._turns.beginning():
            begun = await self._door.open(claim, drafts)
            writer = self._hold(begun, sent_at, ())
        async with self._scope(begun, writer):
            yield writer

    async def reap(self, address: SessionAddress) -> None:
        """Close the session's open turn if nobody holds it any more, as the next begin would; raises ``SessionMissing``."""
        head = await self._log.head(address.id, address.owner)
        if not await self._reap(head):
            await self._queue.reap()

    @asynccontextmanager
    async def _scope(self, begun: Begun, writer: QueuedTurnWriter) -> AsyncIterator[None]:
        with self._turns.open(begun.claim.session_id, begun.opened.number):
            try:
                yield
            except BaseException as error:
                await self._leave(begun, writer, error)
                raise
            await self._leave(begun, writer, None)

    @abstractmethod
    def _hold(self, begun: Begun, sent_at: float, claimed: Sequence[str]) -> QueuedTurnWriter: ...

    @abstractmethod
    async def _leave(self, begun: Begun, writer: QueuedTurnWriter, error: BaseException | None) -> None: ...

    @abstractmethod
    async def _reap(self, head: Head) -> bool: ...
