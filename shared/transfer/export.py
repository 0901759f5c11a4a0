"""Export of a session as pages of lines, all as of one captured moment, in short reads and constant memory (THR-103)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import ValidationError

from shared.database.schema import VERSION
from shared.domain.canonical import chain_tail, first_tail, record_digest
from shared.domain.errors import InvalidInput, SessionCorrupt, SourceMoved
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.log import SessionLog
from shared.sessions.records import Record
from shared.transfer.lines import FIRST_CHECK, encode_line
from shared.transfer.port import TransferStore
from shared.transfer.values import (
    FACTS,
    FORMAT,
    PAGE_MAX_BYTES,
    PAGE_MAX_RECORDS,
    SECTIONS,
    AnyFact,
    Fact,
    Section,
    Snapshot,
)

Place = Literal["manifest", "records", "turns", "keys", "calls", "end"]
_PLACES: Final[tuple[Place, ...]] = ("manifest", "records", *SECTIONS, "end")


class Cursor(Fact):
    """Where an export goes on: the captured moment, what was written of it, and the chains so far.

    ``encode`` and ``decode`` carry it over processes; its pages are the same ones whoever asks for them.
    """

    snapshot: Snapshot
    place: Place
    done: int
    last: str | None
    check: str
    tail: str

    def encode(self) -> str:
        """Return the cursor as text."""
        return self.model_dump_json()

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """Read a cursor; raises ``InvalidInput`` for anything else."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise InvalidInput("this is no cursor of an export", field="cursor", bound="a cursor") from error


@dataclass(frozen=True, slots=True)
class Page:
    """Some lines, ready to write; ``next`` is None after the closing line. ``done`` of ``total`` records and facts are written."""

    lines: bytes
    records: int
    done: int
    total: int
    next: Cursor | None


async def begin_export(store: TransferStore, session_id: SessionId, owner: OwnerId | None = None) -> Cursor:
    """Capture a session and return the cursor of its first page; raises ``SessionMissing``."""
    snapshot = await store.capture(session_id, owner)
    return Cursor(
        snapshot=snapshot,
        place="manifest",
        done=0,
        last=None,
        check=FIRST_CHECK,
        tail=first_tail(snapshot.session.id).hex(),
    )


async def stream_export(
    log: SessionLog,
    store: TransferStore,
    session_id: SessionId,
    owner: OwnerId | None = None,
    *,
    cursor: Cursor | None = None,
) -> AsyncIterator[Page]:
    """Yield the pages of a session's export, from its beginning or from a cursor.

    A page holds at most ``PAGE_MAX_RECORDS`` lines and ends once they hold ``PAGE_MAX_BYTES`` together. Between two pages
    nothing is locked and no transaction is open. Records after the captured tail are left out. Raises ``SessionCorrupt`` at
    the first record that does not verify, ``SourceMoved`` when captured facts are no longer there.
    """
    at = cursor if cursor is not None else await begin_export(store, session_id, owner)
    while True:
        page = await export_page(log, store, at)
        yield page
        if page.next is None:
            return
        at = page.next


async def export_page(log: SessionLog, store: TransferStore, cursor: Cursor) -> Page:
    """Return the page at a cursor."""
    match cursor.place:
        case "manifest":
            return _page(cursor, [_manifest(cursor.snapshot)], cursor.model_copy(update={"place": "records"}))
        case "records":
            return await _records(log, cursor)
        case "end":
            return _page(cursor, [_end(cursor)], None)
        case section:
            return await _facts(store, cursor, section)


def _manifest(snapshot: Snapshot) -> dict[str, object]:
    return {"line": "manifest", "format": FORMAT, "schema": VERSION} | snapshot.model_dump()


def _end(cursor: Cursor) -> dict[str, object]:
    return {"line": "end", "tail": cursor.tail} | cursor.snapshot.counts.model_dump()


async def _records(log: SessionLog, cursor: Cursor) -> Page:
    snapshot = cursor.snapshot
    if cursor.done >= snapshot.seq:
        if cursor.tail != snapshot.tail:
            raise SessionCorrupt(
                "the log does not lead to its captured tail",
                session=snapshot.session.id,
                seq=snapshot.seq,
                field="tail",
            )
        return await _moved_on(cursor, "turns")
    session_id = SessionId(snapshot.session.id)
    found = await log.read(
        session_id,
        after=cursor.done,
        limit=min(PAGE_MAX_RECORDS, snapshot.seq - cursor.done),
        max_bytes=PAGE_MAX_BYTES,
    )
    tail, done = bytes.fromhex(cursor.tail), cursor.done
    for record in found:
        done += 1
        _require_sound(record, done)
        tail = chain_tail(tail, record.seq, record.turn, record.digest)
    if not found:
        # Removed since, or a hole: either way the captured tail is out of reach.
        raise SourceMoved("the session's records are no longer there", session=session_id, seq=done + 1)
    return _page(
        cursor,
        [line_of_record(record) for record in found],
        cursor.model_copy(update={"done": done, "tail": tail.hex()}),
        records=len(found),
    )


def _require_sound(record: Record, expected: int) -> None:
    if record.seq != expected:
        raise SessionCorrupt("a record is missing", session=record.session_id, seq=expected, field="seq")
    if record_digest(record.kind, record.text) != record.digest:
        raise SessionCorrupt(
            "a record does not match its digest",
            session=record.session_id,
            seq=record.seq,
            field="kind, data or digest",
        )


def line_of_record(record: Record) -> dict[str, object]:
    """Return what a record's line says: its text as text, so that every byte of it comes back."""
    return {
        "line": "record",
        "seq": record.seq,
        "turn": record.turn,
        "kind": record.kind,
        "at": record.at,
        "data": record.text,
        "digest": record.digest.hex(),
    }


async def _facts(store: TransferStore, cursor: Cursor, section: Section) -> Page:
    expected = getattr(cursor.snapshot.counts, section)
    last = None if cursor.last is None else FACTS[section].model_validate_json(cursor.last)
    found = await store.facts(cursor.snapshot, section, last, max_bytes=PAGE_MAX_BYTES)
    done = cursor.done + len(found)
    # The section is read to its end, past the captured count, so that one too many is seen as well as one too few.
    if done > expected or (not found and done < expected):
        raise SourceMoved(
            f"the session's {section} are no longer as captured",
            session=cursor.snapshot.session.id,
            section=section,
        )
    if not found:
        return await _moved_on(cursor, _PLACES[_PLACES.index(section) + 1])
    kept = {"done": done, "last": short(found[-1]).model_dump_json()}
    return _page(cursor, [line_of_fact(section, fact) for fact in found], cursor.model_copy(update=kept))


def short(fact: AnyFact) -> AnyFact:
    """Return a fact without its long texts: a cursor needs only its place."""
    long = {
        "message",
        "command",
        "meta",
        "usage",
        "result",
        "last_failure",
        "answer",
    } & fact.__class__.model_fields.keys()
    return fact.model_copy(update={name: "" for name in long})


def line_of_fact(section: Section, fact: AnyFact) -> dict[str, object]:
    """Return what a fact's line says."""
    return {"line": section[:-1]} | fact.model_dump()


async def _moved_on(cursor: Cursor, place: Place) -> Page:
    """An empty page at the end of a section."""
    return _page(cursor, [], cursor.model_copy(update={"place": place, "done": 0, "last": None}))


def _page(
    cursor: Cursor, said: Sequence[dict[str, object]], then: Cursor | None, *, records: int = 0
) -> Page:
    check, lines = cursor.check, bytearray()
    for one in said:
        line, check = encode_line(check, one)
        lines += line
    counts = cursor.snapshot.counts
    total = counts.records + counts.turns + counts.keys + counts.calls
    return Page(
        bytes(lines),
        records,
        total if then is None else _written(then),
        total,
        None if then is None else then.model_copy(update={"check": check}),
    )


def _written(cursor: Cursor) -> int:
    """How many records and facts lie before a cursor."""
    counts = cursor.snapshot.counts
    before = {"manifest": 0, "records": 0, "turns": counts.records}
    before["keys"] = before["turns"] + counts.turns
    before["calls"] = before["keys"] + counts.keys
    before["end"] = before["calls"] + counts.calls
    return before[cursor.place] + (cursor.done if cursor.place != "end" else 0)
