"""Check of a stored session, or of a transfer file, against its digest chain: what is wrong first, and where."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from shared.domain.canonical import chain_tail, first_tail, record_digest
from shared.domain.errors import SessionCorrupt
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.log import SessionLog
from shared.sessions.records import Record
from shared.transfer.port import Anchor, Archives, TransferStore
from shared.transfer.reading import TransferFile
from shared.transfer.values import PAGE_MAX_BYTES, PAGE_MAX_RECORDS

_NOWHERE: Final = "the digest chain"

#: Told how many of how many records were checked, after each page.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found sound: a log up to this seq and tail, and how many archived ranges hold its oldest part."""

    session_id: SessionId
    owner: OwnerId
    seq: int
    tail: bytes
    archived_ranges: int = 0
    archived_through: int = 0


@dataclass(slots=True)
class ChainCheck:
    """Follows one log from an anchor on; pure, one record at a time.

    The chain alone says only that something between two anchors is wrong. Which record it is, is told by what the record
    itself shows: its digest, its place, its turn, its time.
    """

    session_id: SessionId
    seq: int
    tail: bytes
    anchored: int = 0
    _open: int | None = None
    _knows_open: bool = False
    _last: Record | None = None
    _suspect: tuple[int, str] | None = field(default=None)

    def take(self, record: Record) -> None:
        """Take the next record; raises ``SessionCorrupt`` when it is wrong by itself."""
        if record.seq != self.seq + 1:
            raise self._corrupt("a record is missing", self.seq + 1, "seq")
        if record_digest(record.kind, record.text) != record.digest:
            raise self._corrupt("a record does not match its digest", record.seq, "kind, data or digest")
        if not _is_object(record.text):
            raise self._corrupt("a record is no JSON object", record.seq, "data")
        self._watch(record)
        self.seq = record.seq
        self.tail = chain_tail(self.tail, record.seq, record.turn, record.digest)
        self._last = record

    def require(self, tail: bytes) -> None:
        """Raise ``SessionCorrupt`` unless the chain has come to this tail, which then is the next anchor."""
        if self.tail != tail:
            seq, name = self._suspect or (self.anchored + 1, _NOWHERE)
            raise self._corrupt("the records do not lead to their tail", seq, name, after=self.anchored)
        self.anchored, self._suspect = self.seq, None

    def _watch(self, record: Record) -> None:
        """Note the first record that cannot stand where it stands, should the chain not come out."""
        if self._suspect is not None:
            return
        if self._last is not None and record.at < self._last.at:
            self._suspect = (record.seq, "order")
        elif record.kind == "turn.started":
            if record.turn is None or (self._open is not None and self._knows_open):
                self._suspect = (record.seq, "turn")
            self._open, self._knows_open = record.turn, True
        elif self._knows_open and record.turn is not None and record.turn != self._open:
            self._suspect = (record.seq, "turn")
        if record.kind == "turn.ended":
            if record.turn is None:
                self._suspect = self._suspect or (record.seq, "turn")
            self._open = None

    def _corrupt(self, message: str, seq: int, name: str, **more: int) -> SessionCorrupt:
        return SessionCorrupt(
            f"{message}: session {self.session_id}, seq {seq}, {name}",
            session=self.session_id,
            seq=seq,
            field=name,
            **more,
        )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


async def verify_session(
    log: SessionLog,
    store: TransferStore,
    archives: Archives,
    session_id: SessionId,
    owner: OwnerId | None = None,
    *,
    progress: Progress | None = None,
) -> Verified:
    """Check a stored session's whole log as of now: every digest, every seq, every archive's anchors, its head's tail.

    Reads bounded pages and holds one at a time, so that a writer appends meanwhile and memory does not grow. Raises
    ``SessionMissing``, and ``SessionCorrupt`` at the first record that is wrong.
    """
    snapshot = await store.capture(session_id, owner)
    check = ChainCheck(session_id, 0, first_tail(session_id))
    ranges = AnchorsAhead(archives, session_id)
    while check.seq < snapshot.seq:
        left = snapshot.seq - check.seq
        page = await log.read(
            session_id, after=check.seq, limit=min(PAGE_MAX_RECORDS, left), max_bytes=PAGE_MAX_BYTES
        )
        if not page:
            raise SessionCorrupt(
                f"records are missing: session {session_id}, seq {check.seq + 1}",
                session=session_id,
                seq=check.seq + 1,
                field="seq",
            )
        for record in page:
            await ranges.require_before(record.seq, check)
            check.take(record)
        if progress is not None:
            progress(check.seq, snapshot.seq)
    await ranges.require_before(snapshot.seq + 1, check)
    check.require(bytes.fromhex(snapshot.tail))
    if snapshot.counts.records != snapshot.seq:
        raise SessionCorrupt(
            f"there are more records than the head knows: session {session_id}, seq {snapshot.seq + 1}",
            session=session_id,
            seq=snapshot.seq + 1,
            field="seq",
        )
    return Verified(
        session_id, OwnerId(snapshot.session.owner), check.seq, check.tail, ranges.count, ranges.through
    )


class AnchorsAhead:
    """The archived ranges of a session, met in order while its records are read."""

    def __init__(self, archives: Archives, session_id: SessionId) -> None:
        self._archives = archives
        self._session_id = session_id
        self._page: list[Anchor] = []
        self._is_over = False
        self.count = 0
        self.through = 0

    async def require_before(self, seq: int, check: ChainCheck) -> None:
        """Hold the chain against the anchors of every range that begins at this seq or ended before it."""
        while (anchor := await self._next()) is not None:
            if anchor.first_seq == check.seq + 1 == seq:
                check.require(anchor.tail_before)
            if anchor.last_seq >= seq:
                return
            if anchor.last_seq != check.seq or anchor.first_seq != self.through + 1:
                raise SessionCorrupt(
                    f"an archived range does not follow the one before: session {self._session_id}, seq {anchor.first_seq}",
                    session=self._session_id,
                    seq=anchor.first_seq,
                    field="anchor",
                )
            check.require(anchor.tail_after)
            self.through = anchor.last_seq
            self.count += 1
            self._page.pop(0)

    async def _next(self) -> Anchor | None:
        if not self._page and not self._is_over:
            found: Sequence[Anchor] = await self._archives.anchors(self._session_id, after=self.through)
            self._page = list(found)
            self._is_over = not found
        return self._page[0] if self._page else None


def verify_file(file: BinaryIO, *, progress: Progress | None = None) -> TransferFile:
    """Check a transfer file to its end, a line at a time; raises ``TransferInvalid`` where it is wrong first."""
    found = TransferFile(file)
    for number, _ in enumerate(found, 1):
        if progress is not None and number % PAGE_MAX_RECORDS == 0:
            progress(found.done, found.total)
    return found
