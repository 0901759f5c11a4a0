"""Import of a transfer file into a session that does not exist yet: whole, or nothing (THR-107)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import BinaryIO, Final
from uuid import UUID, uuid5

from shared.domain.bounds import check_identity
from shared.domain.canonical import chain_tail, first_tail
from shared.domain.errors import TransferInvalid, TransferUnsettled
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.records import Record
from shared.transfer.port import Import, TransferStore
from shared.transfer.reading import TransferFile
from shared.transfer.values import (
    FACTS,
    PAGE_MAX_BYTES,
    PAGE_MAX_RECORDS,
    AnyFact,
    CallFact,
    KeyFact,
    Section,
    TurnFact,
)
from shared.transfer.verify import Progress

#: Where the ids of turns come from when a session is imported under another id: the same ones at every try.
_TURNS: Final = UUID("6d0fd0c5-4d6e-4f0a-9a3c-8a2ea2a0b7a1")
_SECTION_OF: Final[dict[type, Section]] = {kind: section for section, kind in FACTS.items()}


@dataclass(frozen=True, slots=True)
class Imported:
    """The answer of an import; ``duplicate`` when the session had been made from this very file before."""

    session_id: SessionId
    owner: OwnerId
    seq: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class _Renamed:
    """Gives what a file holds its place in the session that is made."""

    source: SessionId
    session_id: SessionId

    def record(self, record: Record) -> Record:
        return replace(record, session_id=self.session_id)

    def turn(self, turn_id: UUID) -> UUID:
        return turn_id if self.source == self.session_id else uuid5(_TURNS, f"{self.session_id} {turn_id}")

    def fact(self, fact: AnyFact) -> AnyFact | None:
        match fact:
            case KeyFact(space="task") if self.source != self.session_id:
                return None  # its task is a child of the session that was exported
            case TurnFact():
                resumes = None if fact.resumes is None else self.turn(fact.resumes)
                return fact.model_copy(update={"id": self.turn(fact.id), "resumes": resumes})
            case KeyFact(space="turn" | "run"):
                return fact.model_copy(update={"answer": str(self.turn(UUID(fact.answer)))})
            case KeyFact():
                return fact
            case CallFact():
                # Nobody works on it any more, and what it did is not known: never guessed (law 5).
                settled = {"state": "unknown"} if fact.state in ("planned", "started") else {}
                return fact.model_copy(update={"turn_id": self.turn(fact.turn_id), **settled})


async def import_session(
    store: TransferStore,
    file: BinaryIO,
    *,
    session_id: SessionId | None = None,
    owner: OwnerId | None = None,
    failpoints: Failpoints | None = None,
    progress: Progress | None = None,
) -> Imported:
    """Make a session from a seekable file: under its own id and owner, or the given ones.

    The file is checked to its end before anything is written, and again line by line while it is. Records keep seq, text
    and digest; under another id the chain is computed anew, and turns get ids of their own. A repeat with the same file and
    id answers what the first one made. Raises ``TransferInvalid`` and ``TransferVersion`` for the file,
    ``TransferUnsettled`` when the session was not at rest, ``SessionExists`` when the id or its creation key is taken.
    """
    points = failpoints if failpoints is not None else Failpoints()
    checked = TransferFile(file)
    manifest = checked.manifest
    target = (
        checked.session_id if session_id is None else SessionId(check_identity(session_id, field="session"))
    )
    tail = _tail_under(checked, target, progress)
    if manifest.obligations.open:
        raise TransferUnsettled(
            "the session was not at rest when it was exported",
            session=checked.session_id,
            obligations=dict(manifest.obligations.open),
        )
    target = (
        checked.session_id if session_id is None else SessionId(check_identity(session_id, field="session"))
    )
    holder = OwnerId(check_identity(owner or manifest.session.owner, field="owner"))
    head = manifest.session.model_copy(update={"id": target, "owner": holder, "parent": None})
    if target != checked.session_id or holder != manifest.session.owner:
        # The key made the session that was exported; this one is another.
        head = head.model_copy(update={"create_key": None, "create_print": None})
    file.seek(0)
    again = TransferFile(file)
    opened = store.importing(head, seq=manifest.seq, tail=tail, mark=f"import:{checked.check}")
    duplicate = await _fill(opened, again, checked.check, _Renamed(checked.session_id, target), points)
    await points.hit("import.committed")
    return Imported(target, holder, manifest.seq, duplicate)


async def _fill(
    opened: AbstractAsyncContextManager[Import | None],
    file: TransferFile,
    check: str | None,
    renamed: _Renamed,
    failpoints: Failpoints,
) -> bool:
    """Add everything; answers whether there was nothing to do."""
    async with opened as made:
        if made is None:
            return True
        for page in _pages(file):
            first = page[0]
            if isinstance(first, Record):
                await made.add_records([renamed.record(one) for one in page if isinstance(one, Record)])
            else:
                found = [renamed.fact(one) for one in page if not isinstance(one, Record)]
                facts = [one for one in found if one is not None]
                await made.add_facts(_SECTION_OF[type(first)], facts)
            await failpoints.hit("import.page-added")
        if file.check != check:
            raise TransferInvalid("the file changed while it was read", field="check", line=1, byte=0)
        await failpoints.hit("import.filled")
    return False


def _pages(items: Iterable[Record | AnyFact]) -> Iterator[list[Record | AnyFact]]:
    """Cut what a file yields into pages of one kind, of bounded count and size."""
    page: list[Record | AnyFact] = []
    size = 0
    for item in items:
        if page and (
            type(item) is not type(page[0]) or len(page) == PAGE_MAX_RECORDS or size >= PAGE_MAX_BYTES
        ):
            yield page
            page, size = [], 0
        page.append(item)
        size += _size(item)
    if page:
        yield page


def _size(item: Record | AnyFact) -> int:
    match item:
        case Record():
            return len(item.text)
        case TurnFact():
            return len(item.message or "") + len(item.command or "") + len(item.meta or "")
        case KeyFact():
            return len(item.answer)
        case CallFact():
            return len(item.result or "")


def _tail_under(file: TransferFile, session_id: SessionId, progress: Progress | None) -> bytes:
    """Check the file to its end; answers the tail that its records lead to under this session's id."""
    tail = first_tail(session_id)
    for number, item in enumerate(file, 1):
        if isinstance(item, Record):
            tail = chain_tail(tail, item.seq, item.turn, item.digest)
        if progress is not None and number % PAGE_MAX_RECORDS == 0:
            progress(file.done, file.total)
    return tail
