"""The kit of transfer and archives: what any store that moves sessions, and ages them, must show."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Protocol
from uuid import uuid4

from shared.conformance.check import ConformanceCheck, check, checks_of, refused, require, same
from shared.conformance.turn_stage import Stage, TurnQueueSubject, stage
from shared.domain.errors import (
    ArchiveRefused,
    KeyConflict,
    SessionCorrupt,
    SessionExists,
    SessionMissing,
    TransferUnsettled,
)
from shared.domain.failpoints import FailpointError, Failpoints
from shared.domain.ids import OwnerId, SessionId, new_session_id
from shared.sessions.log import NewSession
from shared.sessions.records import Record, draft
from shared.transfer.archiving import archive_session, plan_ranges
from shared.transfer.export import begin_export, export_page, stream_export
from shared.transfer.importing import import_session
from shared.transfer.port import Anchor, Archives, TransferStore
from shared.transfer.verify import verify_file, verify_session

ALWAYS: Final = datetime.max.replace(tzinfo=UTC)


class TransferSubject(TurnQueueSubject, Protocol):
    """Adapters of one database under test: the turn queue's subject, with these beside it."""

    async def transfer(self) -> TransferStore:
        """Return a handle of the transfer store over the same data."""
        ...

    async def archives(self) -> Archives:
        """Return a handle of the archives over the same data."""
        ...


def transfers_conformance(subject: TransferSubject) -> Sequence[ConformanceCheck]:
    """Return the checks of transfer and archives for this subject. Each uses names of its own."""
    return [each.on(subject) for each in CHECKS]


@dataclass(slots=True)
class Scene:
    """One check's own world."""

    on: Stage
    store: TransferStore
    archives: Archives

    async def told(self, *, commits: int = 3, records: int = 4) -> SessionId:
        """Make a session with a finished turn and commits before and behind it."""
        made = await self.on.log.create(
            NewSession(
                new_session_id(), self.on.owner, key=uuid4().hex, title="t", meta={"a": [1, {"b": None}]}
            )
        )
        session = made.session_id
        await self.note(session, "first", records)
        await self.on.admit(session, key="hello")
        claim = await self.on.claim(takeovers=False)
        await self.on.open(claim)
        await self.on.reply(claim)
        await self.on.end(claim)
        for n in range(commits):
            await self.note(session, f"later {n}", records)
        return session

    async def note(self, session: SessionId, name: str, records: int = 1) -> None:
        """Commit records that are hard to carry: quotes, escapes, other alphabets, large integers."""
        drafts = [
            draft("note", {"name": name, "n": n, "text": '"\\u00e9 é 世\n', "big": 2**80})
            for n in range(records)
        ]
        await self.on.log.commit(session, self.on.owner, drafts, commit_id=name)

    async def exported(self, session: SessionId) -> io.BytesIO:
        """Export a session whole."""
        return io.BytesIO(
            b"".join(
                [page.lines async for page in stream_export(self.on.log, self.store, session, self.on.owner)]
            )
        )

    async def imported(
        self, file: io.BytesIO, session: SessionId, failpoints: Failpoints | None = None
    ) -> bool:
        """Import a file under another id; says whether that changed nothing."""
        file.seek(0)
        done = await import_session(self.store, file, session_id=session, failpoints=failpoints)
        return done.duplicate

    async def archived(self, session: SessionId) -> int:
        """Archive whatever may be archived."""
        parts = (self.on.log, self.store, self.archives, session, self.on.owner)
        return await archive_session(*parts, before=ALWAYS)

    async def planned(self, session: SessionId) -> Anchor:
        """Plan the first range, and archive nothing."""
        parts = (self.on.log, self.store, self.archives, session, self.on.owner)
        return await anext(plan_ranges(*parts, before=ALWAYS))

    async def verified(self, session: SessionId) -> int:
        """Verify a stored session; returns through where it is archived."""
        found = await verify_session(self.on.log, self.store, self.archives, session, self.on.owner)
        return found.archived_through

    async def records(self, session: SessionId) -> list[Record]:
        """Read the whole log."""
        return list(await self.on.log.read(session))


async def scene(subject: TransferSubject) -> Scene:
    """Return a new scene over a subject."""
    return Scene(await stage(subject), await subject.transfer(), await subject.archives())


@check("a capture names the head, counts what there is, and says what is owed", "THR-103")
async def capture(subject: TransferSubject) -> None:
    s = await scene(subject)
    session = await s.told()
    found = await s.store.capture(session, s.on.owner)
    head = await s.on.log.head(session, s.on.owner)
    same((found.seq, found.tail), (head.seq, head.tail.hex()), "the captured tail is the head's")
    same((found.counts.records, found.counts.turns), (head.seq, 1), "records and finished turns are counted")
    require(found.counts.keys >= 6, f"every key is counted, not {found.counts.keys}")
    same(dict(found.obligations.open), {}, "a session at rest owes nothing")
    await s.on.admit(session)
    busy = await s.store.capture(session, s.on.owner)
    same(dict(busy.obligations.open), {"unfinished_turns": 1}, "an unfinished turn is owed")
    same(busy.counts.turns, 1, "and is no finished one")


@check("another owner's session is missing for capture and archive")
async def owners_apart(subject: TransferSubject) -> None:
    s = await scene(subject)
    session, other = await s.told(), OwnerId("somebody else")
    async with refused(SessionMissing, "it is not captured for another owner"):
        await s.store.capture(session, other)
    async with refused(SessionMissing, "its limit is not told to another owner"):
        await s.archives.limit(session, other)
    anchor = await s.planned(session)
    async with refused(SessionMissing, "it is not archived for another owner"):
        await s.archives.archive(session, other, anchor)
    same(await s.archives.created_before(ALWAYS, owner=other), [], "nor listed for one")


@check("an export ends at its captured tail while a writer appends, and its file verifies", "THR-103")
async def export_beside_a_writer(subject: TransferSubject) -> None:
    s = await scene(subject)
    session = await s.told()
    cursor = await begin_export(s.store, session, s.on.owner)
    lines = b""
    n = 0
    while True:
        await s.note(session, f"beside {n}")
        n += 1
        page = await export_page(s.on.log, s.store, cursor)
        lines += page.lines
        if page.next is None:
            break
        cursor = page.next
    checked = verify_file(io.BytesIO(lines))
    same(checked.manifest.seq, cursor.snapshot.seq, "it ends at the captured tail")
    require(
        (await s.on.log.head(session, s.on.owner)).seq > cursor.snapshot.seq, "the writer was not held up"
    )


@check("an import makes the same records, keys and turns, and repeats still answer", "THR-107")
async def same_session(subject: TransferSubject) -> None:
    s = await scene(subject)
    session, copy = await s.told(), new_session_id()
    file = await s.exported(session)
    same(await s.imported(file, copy), False, "a first import makes the session")
    stored, made = await s.records(session), await s.records(copy)
    same(
        [replace(r, session_id=session) for r in made], stored, "every record has seq, text, digest and time"
    )
    await s.verified(copy)
    before = await s.on.log.head(copy, s.on.owner)
    await s.note(copy, "first", 4)
    same(
        (await s.on.log.head(copy, s.on.owner)).seq, before.seq, "a repeated commit answers its first result"
    )
    async with refused(KeyConflict, "its key with other content is refused"):
        await s.on.log.commit(copy, s.on.owner, [draft("note", {})], commit_id="first")
    turn = await s.on.log.find_turn(copy, s.on.owner, "hello")
    require(turn is not None, "the key of a turn finds its turn")
    same(
        (before.title, before.meta, before.turns),
        ("t", {"a": [1, {"b": None}]}, 1),
        "the head is the one captured",
    )
    assert turn is not None
    view = await s.on.queue.get(turn, s.on.owner)
    same((view.status, view.outcome, view.number), ("ended", "completed", 1), "the turn ended as it did")


@check("what was imported goes on: the next turn has the next number", "THR-107")
async def goes_on(subject: TransferSubject) -> None:
    s = await scene(subject)
    copy = new_session_id()
    await s.imported(await s.exported(await s.told()), copy)
    await s.on.admit(copy)
    claim = await s.on.claim(takeovers=False)
    same(await s.on.open(claim), 2, "its number follows")
    await s.on.end(claim)
    await s.verified(copy)


@check("a cut import leaves nothing behind, and a repeat makes it whole", "THR-107")
async def cut_import(subject: TransferSubject) -> None:
    s = await scene(subject)
    copy, file = new_session_id(), await s.exported(await s.told())

    async def cut() -> None:
        try:
            await s.on.log.head(copy, s.on.owner)
        except SessionMissing:
            raise FailpointError("cut") from None

    for point in ("import.page-added", "import.filled"):
        try:
            await s.imported(file, copy, Failpoints({point: cut}))
        except FailpointError:
            pass
        else:
            require(False, "nothing of it is seen before its end")
        async with refused(SessionMissing, "nothing of a cut import stays"):
            await s.on.log.head(copy, s.on.owner)
        same(await s.records(copy), [], "nor any record")
    same(await s.imported(file, copy), False, "a repeat makes the session")


@check("a repeated import changes nothing, and no other session is overwritten", "THR-107")
async def repeated_import(subject: TransferSubject) -> None:
    s = await scene(subject)
    session, copy = await s.told(), new_session_id()
    file = await s.exported(session)
    await s.imported(file, copy)
    await s.note(copy, "since then")
    there = await s.records(copy)
    same(await s.imported(file, copy), True, "the same file says that it was imported before")
    same(await s.records(copy), there, "and changes nothing")
    async with refused(SessionExists, "the exported session itself is not overwritten"):
        await s.imported(file, session)
    async with refused(SessionExists, "nor the copy by another file"):
        await s.imported(await s.exported(session), copy)


@check("a session that was not at rest is exported, and refused as an import", "THR-107")
async def unsettled(subject: TransferSubject) -> None:
    s = await scene(subject)
    session, copy = await s.told(), new_session_id()
    await s.on.admit(session)
    file = await s.exported(session)
    async with refused(TransferUnsettled, "it says what is owed", obligations={"unfinished_turns": 1}):
        await s.imported(file, copy)
    same(await s.records(copy), [], "and nothing is stored")


@check(
    "archived records read, verify and export as the live ones did, while newer ones are appended", "THR-104"
)
async def archived_reads(subject: TransferSubject) -> None:
    s = await scene(subject)
    session = await s.told()
    live = await s.records(session)
    back = await s.on.log.read_back(session, limit=7)
    moved = await s.archived(session)
    same(moved, len(live) - 1, "everything but the newest record may be archived")
    same(await s.records(session), live, "a read is the same, digests included")
    same(await s.on.log.read_back(session, limit=7), back, "backwards too")
    for record in live:
        same(await s.on.log.read(session, after=record.seq - 1, limit=1), [record], "and by each seq")
    notes = [r for r in live if r.kind == "note"]
    same(await s.on.log.read(session, kinds=["note"]), notes, "and by kind")
    same(await s.on.log.read(session, turn=1), [r for r in live if r.turn == 1], "and by turn")
    size = len(live[0].text.encode())
    same(await s.on.log.read(session, max_bytes=size + 1), live[:2], "and by size")
    await s.note(session, "newer", 3)
    same((await s.records(session))[: len(live)], live, "newer records change nothing of it")
    same(await s.verified(session), moved, "anchors and chain verify")
    same(verify_file(await s.exported(session)).manifest.seq, len(live) + 3, "and it exports whole")


@check("ranges follow one another, and their anchors chain", "THR-104")
async def anchors_chain(subject: TransferSubject) -> None:
    s = await scene(subject)
    session = await s.told()
    first = await s.archived(session)
    await s.note(session, "more", 5)
    second = await s.archived(session)
    found = list(await s.archives.anchors(session))
    same(
        [(a.first_seq, a.last_seq) for a in found],
        [(1, first), (first + 1, first + second)],
        "no gap, no overlap",
    )
    same(found[1].tail_before, found[0].tail_after, "the second begins at the first one's tail")
    same(await s.archives.anchors(session, after=first), found[1:], "they are paged by their last seq")


@check("a range with wrong anchors, or out of turn, is refused and moves nothing", "THR-104")
async def wrong_ranges(subject: TransferSubject) -> None:
    s = await scene(subject)
    session = await s.told()
    right = await s.planned(session)
    async with refused(ArchiveRefused, "it begins at the oldest live record", reason="moved"):
        await s.archives.archive(session, s.on.owner, replace(right, first_seq=2))
    async with refused(ArchiveRefused, "it begins at the tail that was", reason="moved"):
        await s.archives.archive(session, s.on.owner, replace(right, tail_before=bytes(32)))
    async with refused(SessionCorrupt, "it ends at the tail that the records lead to"):
        await s.archives.archive(session, s.on.owner, replace(right, tail_after=bytes(32)))
    same(await s.archives.anchors(session), [], "and no range was made")


@check("the newest record and an open turn's records stay live", "THR-104")
async def what_stays(subject: TransferSubject) -> None:
    s = await scene(subject)
    session = await s.told()
    whole = await s.planned(session)
    async with refused(ArchiveRefused, "the newest record stays", reason="open"):
        await s.archives.archive(session, s.on.owner, replace(whole, last_seq=whole.last_seq + 1))
    await s.on.admit(session)
    claim = await s.on.claim(takeovers=False)
    before = await s.on.log.head(session, s.on.owner)
    await s.on.open(claim)
    await s.on.reply(claim)
    same(
        await s.archives.limit(session, s.on.owner),
        before.seq,
        "an open turn's records are not for the archive",
    )
    same(await s.archived(session), before.seq, "what lies before it is")
    await s.on.end(claim)
    await s.verified(session)


@check("a removed session leaves no range behind", "THR-104")
async def removal(subject: TransferSubject) -> None:
    s = await scene(subject)
    session = await s.told()
    await s.archived(session)
    await s.on.log.remove(session, s.on.owner)
    same(await s.archives.anchors(session), [], "its ranges are gone")
    same(await s.records(session), [], "and read as nothing")


CHECKS: Final = checks_of(globals())
