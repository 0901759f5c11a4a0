"""The canonical source of remembering: a user's committed statement, as its session's log holds it.

Only the user's own words of a ``turn.started`` are a source. What an assistant said, a tool answered or a recall showed
never is, so that nothing remembered can become its own evidence (ACT-30, REM-35).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

from memory_pipeline.remembering.intents import Position, Source, parse_record_id, record_id
from memory_pipeline.store.documents import MemoryKey, NamespaceAddress
from shared.domain.canonical import record_digest
from shared.domain.errors import CorruptRecord, SessionMissing
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.log import SessionLog
from shared.sessions.records import Record
from shared.sessions.vocabulary import EndReason, TurnEnded, TurnStarted, read_stored

STATEMENT_KIND: Final = "turn.started"
END_KIND: Final = "turn.ended"

#: How a turn must have ended before what it began with may be remembered: nothing of a cancelled, failed or interrupted
#: turn is.
REMEMBERED_ENDS: Final[frozenset[str]] = frozenset({"completed", "partial"})

TurnOutcome = EndReason | Literal["open"]


@dataclass(frozen=True, slots=True)
class SourceText:
    """A source as it is now, and its text. ``recorded_at`` is the record's commit time in epoch milliseconds."""

    source: Source
    text: str
    recorded_at: int


#: Loads what an intent's source names, as its owner may read it now; None when that is no statement (any more).
LoadSource = Callable[[Source, OwnerId], Awaitable[SourceText | None]]


def read_statement(record: Record) -> TurnStarted | None:
    """Return what a record begins if it is a user's statement with text, else None. Raises ``CorruptRecord``."""
    if record.kind != STATEMENT_KIND:
        return None
    started = read_stored(TurnStarted, record)
    return started if started.origin == "user" and started.user_message.text.strip() else None


def source_of(record: Record, namespace: NamespaceAddress) -> Source:
    """Return a record as a source. Its revision is the digest of its kind and text, recomputed here (ACT-20)."""
    return Source(
        key=MemoryKey(namespace=namespace, id=record_id(record.session_id, record.seq)),
        locator=f"session/{record.session_id}/records/{record.seq}",
        revision=checked_digest(record),
        position=Position(authority_generation=record.session_id, sequence=record.seq),
    )


def checked_digest(record: Record) -> str:
    """Return a record's digest in hex; raise ``CorruptRecord`` when the stored one is not that of its text."""
    digest = record_digest(record.kind, record.text)
    if digest != record.digest:
        raise CorruptRecord("a record's digest is not its text's", session=record.session_id, seq=record.seq)
    return digest.hex()


async def turn_outcome(
    log: SessionLog, session_id: SessionId, turn: int, *, after: int, through: int | None = None
) -> TurnOutcome:
    """Read how a turn stands in the log behind ``after`` and up to ``through``: its end, or ``open``."""
    found = await log.read(session_id, after=after, limit=1, kinds=(END_KIND,), turn=turn)
    if not found or (through is not None and found[0].seq > through):
        return "open"
    return read_stored(TurnEnded, found[0]).reason


def session_sources(log: SessionLog) -> LoadSource:
    """Return the loader of statements in session logs. Two reads: the head, which checks the owner, and the record."""

    async def load(source: Source, owner: OwnerId) -> SourceText | None:
        place = parse_record_id(source.key.id)
        if place is None:
            return None
        record = await owned_record(log, owner, *place)
        statement = read_statement(record) if record is not None else None
        if record is None or statement is None:
            return None
        recorded_at = int(record.at.timestamp() * 1000)
        return SourceText(source_of(record, source.key.namespace), statement.user_message.text, recorded_at)

    return load


async def owned_record(log: SessionLog, owner: OwnerId, session_id: SessionId, seq: int) -> Record | None:
    """Read one record of an owner's session; None when there is none, or the session is another's."""
    try:
        head = await log.head(session_id, owner)
    except SessionMissing:
        return None
    if seq > head.seq:
        return None
    found = await log.read(session_id, after=seq - 1, limit=1)
    return found[0] if found and found[0].seq == seq else None
