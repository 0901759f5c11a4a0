"""Where a turn's body writes: each call is stored when it returns, in the order of the turn's one writer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from shared.domain.errors import Unavailable
from shared.host.port import TurnWriter
from shared.host.writer import QueuedTurnWriter
from shared.sessions.vocabulary import Payload, draft_of
from shared.turns.queue import CallEntry

T = TypeVar("T")

RETRY_FIRST_S: Final = 0.05
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
