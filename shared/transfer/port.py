"""The ports of transfer and archives: what a store must offer beside its log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from shared.domain.ids import OwnerId, SessionId
from shared.sessions.records import Record
from shared.transfer.values import AnyFact, Section, SessionFact, Snapshot

#: Bounds of one archived range (THR-104): they bound what one transaction moves under the head's lock.
RANGE_MAX_RECORDS: Final = 1_000
RANGE_MAX_BYTES: Final = 4 * 1024 * 1024
ANCHORS_PAGE: Final = 256


@dataclass(frozen=True, slots=True)
class Anchor:
    """An archived range: its first and last seq, and the chain's tail before and after it."""

    first_seq: int
    last_seq: int
    tail_before: bytes
    tail_after: bytes


class Import(Protocol):
    """A session that is being made: nobody else sees any of it before the block around it ends."""

    async def add_records(self, records: Sequence[Record]) -> None:
        """Add the next records of the log, already under the new session's id."""
        ...

    async def add_facts(self, section: Section, facts: Sequence[AnyFact]) -> None:
        """Add facts of one section, already under their new ids. Raises ``SessionExists`` when a turn's id is taken."""
        ...


class TransferStore(Protocol):
    """Reads one session's facts as of a captured moment, and makes a session whole or not at all.

    All may raise ``StoreBusy`` and ``StoreUnavailable``.
    """

    async def capture(self, session_id: SessionId, owner: OwnerId | None = None) -> Snapshot:
        """Capture a session in one statement; raises ``SessionMissing``. ``owner`` None is the operator: whoever owns it."""
        ...

    async def facts(
        self, captured: Snapshot, section: Section, after: AnyFact | None, *, max_bytes: int
    ) -> Sequence[AnyFact]:
        """Read the facts of a section behind ``after``, in order, up to and with the one that fills ``max_bytes``.

        Only finished turns, calls of those, and what existed at the captured moment; a section that ends with another
        count than captured has moved, which the caller judges.
        """
        ...

    def importing(
        self, session: SessionFact, *, seq: int, tail: bytes, mark: str
    ) -> AbstractAsyncContextManager[Import | None]:
        """Make a session that does not exist yet: what the block adds becomes visible at its end, together, or never.

        ``mark`` names the file: when this very session was made from it before, the block gets None and adds nothing. Raises
        ``SessionExists`` for any other session of this id, or when another of the owner has its creation key. The block
        has no lease, no claim and no attempt to copy. What the outcome is after ``StoreUnavailable`` a repeat tells.
        """
        ...


class Archives(Protocol):
    """Moves the oldest records of a log into another form of the same store; the log reads both alike (THR-104)."""

    async def anchors(self, session_id: SessionId, *, after: int = 0) -> Sequence[Anchor]:
        """Read the ranges with ``last_seq > after`` in order, at most ``ANCHORS_PAGE``; empty for a missing session."""
        ...

    async def archive(self, session_id: SessionId, owner: OwnerId, anchor: Anchor) -> None:
        """Move this range, which follows the last archived one, in one transaction.

        At most ``RANGE_MAX_RECORDS`` and ``RANGE_MAX_BYTES``, one larger record alone. Raises ``ArchiveRefused`` (another
        range is next, an open turn needs it, the newest record stays, it is too large), ``SessionCorrupt`` when the stored
        records do not lead from one tail to the other, and ``SessionMissing``. Nothing is changed then.
        """
        ...

    async def limit(self, session_id: SessionId, owner: OwnerId) -> int:
        """Read the last seq that may be archived now: neither the newest record nor one of an open turn. Raises ``SessionMissing``."""
        ...

    async def created_before(
        self,
        moment: datetime,
        *,
        owner: OwnerId | None = None,
        after: SessionId | None = None,
        limit: int = 100,
    ) -> Sequence[tuple[SessionId, OwnerId]]:
        """Page through the sessions made before a moment, in order of their ids, behind ``after``."""
        ...
