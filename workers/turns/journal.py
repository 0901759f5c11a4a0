"""Where a turn's body writes: each call is stored when it returns, in the order of the turn's one writer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from shared.agents import Agent
from shared.domain.errors import Unavailable
from shared.domain.retrying import retried
from shared.host.port import TurnWriter
from shared.host.writer import QueuedTurnWriter
from shared.sessions.vocabulary import Payload, draft_of
from shared.turns.queue import CallEntry, Claim

T = TypeVar("T")

RETRY_MAX_S: Final = 2.0


class StepJournal(Protocol):
    """Where a turn's body writes: everything of one call is stored, in order, when it returns (law 5)."""

    async def append(
        self, payloads: Sequence[Payload], *, stepped: bool = False, calls: Sequence[CallEntry] = ()
    ) -> int:
        """Store records and ledger lines in one commit and return the log's seq; ``stepped`` marks a whole step."""
        ...

    async def flush(self) -> int:
        """Return the log's seq once all that was written before is stored."""
        ...

    async def write(self, op: Callable[[], Awaitable[T]]) -> T:
        """Run a write of the host's own at its place in the order and return its result."""
        ...


class HostJournal:
    """Writes through a host's writer: each call waits until its records are committed.

    A turn of a host's process is never continued by another, so its calls have no ledger: ``calls`` are not kept.
    """

    def __init__(self, writer: TurnWriter) -> None:
        self._writer = writer

    async def append(
        self, payloads: Sequence[Payload], *, stepped: bool = False, calls: Sequence[CallEntry] = ()
    ) -> int:
        """See the port."""
        await self._writer.append([draft_of(p) for p in payloads], framework=True)
        return await self._writer.flush()

    async def flush(self) -> int:
        """See the port."""
        return await self._writer.flush()

    async def write(self, op: Callable[[], Awaitable[T]]) -> T:
        """See the port."""
        return await self._writer.write(op)


class ClaimJournal:
    """Writes under a worker's claim, with the ledger of calls and the marks of whole steps."""

    def __init__(self, writer: QueuedTurnWriter) -> None:
        self._writer = writer

    async def append(
        self, payloads: Sequence[Payload], *, stepped: bool = False, calls: Sequence[CallEntry] = ()
    ) -> int:
        """See the port."""
        return await self._writer.commit([draft_of(p) for p in payloads], stepped=stepped, calls=calls)

    async def flush(self) -> int:
        """See the port."""
        return await self._writer.flush()

    async def write(self, op: Callable[[], Awaitable[T]]) -> T:
        """See the port."""
        return await self._writer.write(op)


class WholeTurnJournal:
    """Collects what a whole turn under a worker's claim writes, for its closing commit; one object an attempt.

    Nothing is stored before, so there is no ledger either: such a turn is never continued (decision 0020).
    """

    def __init__(self, writer: QueuedTurnWriter) -> None:
        self._writer = writer
        self.collected: list[Payload] = []

    async def append(
        self, payloads: Sequence[Payload], *, stepped: bool = False, calls: Sequence[CallEntry] = ()
    ) -> int:
        """Keep the records; the seq answered is the log's as it stands."""
        self.collected += payloads
        return await self._writer.flush()

    async def flush(self) -> int:
        """See the port."""
        return await self._writer.flush()

    async def write(self, op: Callable[[], Awaitable[T]]) -> T:
        """See the port. What the host writes is its own: it stands also when the turn is not kept."""
        return await self._writer.write(op)


def journal_of(agent: Agent, claim: Claim, writer: QueuedTurnWriter) -> StepJournal:
    """Return where a claimed turn writes: a whole turn collects, unless its row says that another worker may go on with it."""
    if agent.history == "whole-turn" and claim.on_worker_loss == "interrupt":
        return WholeTurnJournal(writer)
    return ClaimJournal(writer)


async def until_known(call: Callable[[], Awaitable[T]]) -> T:
    """Return what a call of the store answers, asked again while it is away; the lease's watchdog ends that."""
    return await retried(call, when=Unavailable, pause_max_s=RETRY_MAX_S)
