"""The kit of the session log: what any adapter of :class:`shared.sessions.log.SessionLog` must show."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, Protocol

from shared.conformance.check import ConformanceCheck, check, checks_of, outcomes, refused, require, same
from shared.domain.canonical import first_tail
from shared.domain.errors import (
    CommitTooLate,
    InputTooLarge,
    KeyConflict,
    ReservedKind,
    RevisionConflict,
    SessionExists,
    SessionMissing,
)
from shared.domain.ids import OwnerId, SessionId, new_session_id
from shared.sessions.log import Committed, NewSession, SessionLog
from shared.sessions.records import Draft, Head, Record, draft, verify_log
from shared.sessions.vocabulary import RESERVED_KINDS

KIND = "note.added"
#: Nearly as much as one record may hold.
LARGE_CHARACTERS = 4_000_000
MIB = 1024 * 1024


class SessionLogSubject(Protocol):
    """An adapter under test."""

    async def open(self) -> SessionLog:
        """Return a new handle over the same data; the subject closes it in the end, not before."""
        ...

    def new_owner(self) -> OwnerId:
        """Return an owner who has nothing yet."""
        ...

    async def make_child(self, child: SessionId, parent: SessionId) -> None:
        """Make one stored session another's child, as a fork does."""
        ...


def session_log_conformance(subject: SessionLogSubject) -> Sequence[ConformanceCheck]:
    """Return the checks of a session log for this subject (KIT-29). Each uses owners and sessions of its own."""
    return [each.on(subject) for each in CHECKS]


async def new_session(log: SessionLog, owner: OwnerId, **given: Any) -> SessionId:
    """Create a session of this owner and return its id."""
    return (await log.create(NewSession(new_session_id(), owner, **given))).session_id


def note(n: object = 1, kind: str = KIND) -> Draft:
    """Return a host's record."""
    return draft(kind, {"n": n})


async def read_whole(log: SessionLog, session_id: SessionId) -> list[Record]:
    """Read a log to its end, page by page."""
    records: list[Record] = []
    while page := await log.read(session_id, after=records[-1].seq if records else 0, limit=100):
        records += page
    return records


async def require_whole(log: SessionLog, session_id: SessionId, owner: OwnerId) -> Head:
    """Require that the log verifies against its head: dense seqs, digests, chain."""
    head = await log.head(session_id, owner)
    verify_log(session_id, await read_whole(log, session_id), seq=head.seq, tail=head.tail)
    return head


@check("a new session has an empty head that says what it was created with", "SES-04", "SES-06", "KIT-29")
async def new_head(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session = await new_session(log, owner, title="Tea", meta={"page": "home", "n": 10**30})
    head = await log.head(session, owner)
    same((head.id, head.owner, head.title, head.parent), (session, owner, "Tea", None), "the head names it")
    same(
        (dict(head.meta), dict(head.state)), ({"page": "home", "n": 10**30}, {}), "meta is whole, state empty"
    )
    same((head.seq, head.revision, head.turns, head.inbox_waiting), (0, 0, 0, 0), "nothing is in it")
    same((head.tail, head.open), (first_tail(session), None), "no record is chained, no turn open")
    require(head.created_at <= head.updated_at <= head.now, "its times are the store's")


@check("the same creation key answers the first session, and one session exists")
async def creation_key(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    first = await log.create(NewSession(new_session_id(), owner, key="k", title="T", meta={"a": 1}))
    again = await log.create(NewSession(new_session_id(), owner, key="k", title="T", meta={"a": 1}))
    same((first.duplicate, again.duplicate), (False, True), "only the repeat is a duplicate")
    same(again.session_id, first.session_id, "it answers the first session")
    same([h.id for h in await log.list(owner)], [first.session_id], "nothing else was stored")


@check("a creation repeated with its own id after a lost answer makes no second session")
async def creation_repeat(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    for new in (NewSession(new_session_id(), owner), NewSession(new_session_id(), owner, key="k")):
        same((await log.create(new)).session_id, new.id, "the first try creates it")
        await log.commit(new.id, owner, [note()])
        same((await log.create(new)).session_id, new.id, "the repeat answers it")
        same((await log.head(new.id, owner)).seq, 1, "and leaves it as it is")
    same(len(await log.list(owner)), 2, "no third session exists")


@check("a creation key or id used with other content is refused, and nothing is stored")
async def creation_conflict(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    first = NewSession(new_session_id(), owner, key="k", title="T", meta={"a": 1})
    await log.create(first)
    for title, meta in (("T", {"a": 2}), ("U", {"a": 1}), (None, None)):
        async with refused(SessionExists, f"key with {title} and {meta}", key="k"):
            await log.create(NewSession(new_session_id(), owner, key="k", title=title, meta=meta))
        async with refused(SessionExists, f"id with {title} and {meta}"):
            await log.create(NewSession(first.id, owner, title=title, meta=meta))
    same([h.id for h in await log.list(owner)], [first.id], "only the first session is there")


@check("creation keys are each owner's own, and nobody takes another owner's session id", "SES-35")
async def creation_by_owner(subject: SessionLogSubject) -> None:
    log, owner, other = await subject.open(), subject.new_owner(), subject.new_owner()
    mine = await new_session(log, owner, key="k")
    theirs = await log.create(NewSession(new_session_id(), other, key="k"))
    require(
        theirs.session_id != mine and not theirs.duplicate, "the same key of another owner is another key"
    )
    async with refused(SessionExists, "an id that another owner has"):
        await log.create(NewSession(mine, other))
    same((await log.head(mine, owner)).owner, owner, "the session stays its owner's")


@check("of many creations with one key at once one session is made")
async def creation_race(subject: SessionLogSubject) -> None:
    handles, owner = [await subject.open(), await subject.open()], subject.new_owner()
    made = await outcomes(
        [handles[n % 2].create(NewSession(new_session_id(), owner, key="k")) for n in range(20)]
    )
    same(len({c.session_id for c in made}), 1, "all are answered with the one session")
    same(sum(not c.duplicate for c in made), 1, "one made it")
    same(len(await handles[0].list(owner)), 1, "it is the only one")


@check("another owner's session reads as absent in every operation", "SES-35")
async def other_owner(subject: SessionLogSubject) -> None:
    log, owner, other = await subject.open(), subject.new_owner(), subject.new_owner()
    session = await new_session(log, owner)
    for missing, asker in ((session, other), (new_session_id(), owner)):
        async with refused(SessionMissing, "head", session=missing):
            await log.head(missing, asker)
        async with refused(SessionMissing, "commit", session=missing):
            await log.commit(missing, asker, [note()], commit_id="c")
        same(list(await log.remove(missing, asker)), [], "remove")
    same(list(await log.list(other)), [], "list")
    head = await log.head(session, owner)
    same((head.seq, head.revision), (0, 0), "nothing of it was stored or removed")


@check("a list gives one owner's sessions, last active first", "SES-10")
async def list_order(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    sessions = [await new_session(log, owner) for _ in range(4)]
    await new_session(log, subject.new_owner())
    for session in (sessions[2], sessions[0]):
        await log.commit(session, owner, [note()])
    heads = await log.list(owner)
    same({h.id for h in heads}, set(sessions), "all of this owner's and no other's")
    keys = [(h.updated_at, h.id) for h in heads]
    same(keys, sorted(keys, reverse=True), "newest first, ids decide between equal times")
    first_two = {h.id for h in heads if h.updated_at == heads[0].updated_at} | {heads[1].id}
    require({sessions[0]} <= first_two, "a commit moves a session to the front")


@check("pages of a list meet without a gap or a double, also when sessions come in between", "SES-10")
async def list_pages(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    sessions = {await new_session(log, owner) for _ in range(7)}
    found: list[Head] = []
    while page := await log.list(
        owner, limit=3, before=(found[-1].updated_at, found[-1].id) if found else None
    ):
        require(len(page) <= 3, "a page holds no more than asked for")
        found += page
        await new_session(log, owner)
        require(len(found) <= 30, "the pages come to an end")
    ids = [h.id for h in found]
    same(len(ids), len(set(ids)), "no session comes twice")
    require(sessions <= set(ids), "none that was there at the beginning is left out")


@check("records get dense seqs from 1 and the store's time, and the log verifies", "SES-05", "SES-15")
async def dense_seqs(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session = await new_session(log, owner)
    before = (await log.head(session, owner)).now
    for n in range(5):
        await log.commit(session, owner, [note((n, i)) for i in range(n)])
    head = await require_whole(log, session, owner)
    records = await read_whole(log, session)
    same([r.seq for r in records], list(range(1, 11)), "seqs are dense from 1")
    same((head.seq, head.revision), (10, 5), "the head counts records and commits")
    require(all(before <= r.at <= head.now for r in records), "each record carries the store's time")
    same({(r.session_id, r.turn, r.kind) for r in records}, {(session, None, KIND)}, "and whose it is")
    same([list(r.data["n"]) for r in records], [[n, i] for n in range(5) for i in range(n)], "in order")


@check("a read starts after its cursor, stops at its limit, and filters by kind and turn", "SES-11")
async def reading(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session = await new_session(log, owner)
    await log.commit(session, owner, [note(n, f"kind.{n % 3}") for n in range(9)])

    async def seqs(**how: Any) -> list[int]:
        return [r.seq for r in await log.read(session, **how)]

    same(await seqs(after=0, limit=4), [1, 2, 3, 4], "the first page")
    same(await seqs(after=4, limit=4), [5, 6, 7, 8], "the next page")
    same(await seqs(after=9), [], "nothing stands after the end")
    same(await seqs(kinds=["kind.1"]), [2, 5, 8], "one kind")
    same(await seqs(kinds=["kind.1", "kind.2"], after=2, limit=3), [3, 5, 6], "two kinds after a cursor")
    same(await seqs(kinds=["kind.9"]), [], "a kind that is not there")
    same(await seqs(turn=1), [], "no record of a turn is there")
    same(list(await log.read(new_session_id())), [], "a missing session reads as empty")
    size = len((await log.read(session, limit=1))[0].text.encode())
    same(await seqs(max_bytes=2 * size), [1, 2], "a page ends with the record that fills it")
    same(
        await seqs(max_bytes=2 * size + 1, kinds=["kind.1"]),
        [2, 5, 8],
        "and holds whole records of its kinds",
    )
    same(await seqs(max_bytes=1, after=4), [5], "the first record comes, however large it is")


@check("a log is read backwards from its end or before a seq, to a limit and by kind", "SES-11")
async def reading_back(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session = await new_session(log, owner)
    await log.commit(session, owner, [note(n, f"kind.{n % 3}") for n in range(9)])

    async def seqs(**how: Any) -> list[int]:
        return [r.seq for r in await log.read_back(session, **how)]

    same(await seqs(limit=4), [9, 8, 7, 6], "the last page")
    same(await seqs(before=6, limit=4), [5, 4, 3, 2], "the page before")
    same(await seqs(before=1), [], "nothing stands before the first")
    same(await seqs(kinds=["kind.1", "kind.2"], before=8, limit=3), [6, 5, 3], "two kinds before a seq")
    same(list(await log.read_back(new_session_id())), [], "a missing session reads as empty")


@check("a commit answers the head after it, and may carry state and no records", "SES-16")
async def commit_state(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session = await new_session(log, owner)
    first = await log.commit(session, owner, [note()], state={"step": 1})
    second = await log.commit(session, owner, [], state={"step": 2})
    third = await log.commit(session, owner, [note()])
    same([(c.seq, c.revision) for c in (first, second, third)], [(1, 1), (1, 2), (2, 3)], "seq and revision")
    head = await require_whole(log, session, owner)
    same((head.seq, head.revision, dict(head.state)), (2, 3, {"step": 2}), "state stays until it is replaced")
    require(first.now <= second.now <= third.now <= head.now, "each answer carries the store's clock")


@check("a commit with an expected revision applies only while it is that one", "SES-13")
async def commit_expect(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session = await new_session(log, owner)
    same((await log.commit(session, owner, [note()], expect=0)).revision, 1, "the expected one applies")
    for stale in (0, 2):
        async with refused(RevisionConflict, "another one does not", expected=stale, actual=1):
            await log.commit(session, owner, [note()], expect=stale, state={"a": 1})
    head = await require_whole(log, session, owner)
    same((head.seq, head.revision, dict(head.state)), (1, 1, {}), "nothing of a refused commit is stored")


@check("of 50 concurrent commits on one revision exactly one wins", "SES-17", "KIT-30")
async def commit_race(subject: SessionLogSubject) -> None:
    handles, owner = [await subject.open(), await subject.open()], subject.new_owner()
    session = await new_session(handles[0], owner)
    for revision in range(3):
        answers = await outcomes(
            [handles[n % 2].commit(session, owner, [note(n)], expect=revision) for n in range(50)]
        )
        same(sum(isinstance(a, Committed) for a in answers), 1, "one winner")
        same(sum(isinstance(a, RevisionConflict) for a in answers), 49, "49 conflicts")
    same((await require_whole(handles[0], session, owner)).seq, 3, "one record a round")


@check("concurrent commits without an expected revision all apply, one after another", "SES-15")
async def commit_together(subject: SessionLogSubject) -> None:
    handles, owner = [await subject.open(), await subject.open()], subject.new_owner()
    session = await new_session(handles[0], owner)
    answers = await outcomes([handles[n % 2].commit(session, owner, [note(n)] * 2) for n in range(30)])
    same(sorted(a.seq for a in answers), list(range(2, 61, 2)), "each has its own place")
    same((await require_whole(handles[1], session, owner)).revision, 30, "each is one revision")


@check("a commit after its last moment is refused by the store's clock, and nothing is stored", "SES-14")
async def too_late(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session = await new_session(log, owner)
    now = (await log.head(session, owner)).now
    await log.commit(session, owner, [note()], not_after=now + timedelta(minutes=5))
    async with refused(CommitTooLate, "a moment that passed", session=session):
        await log.commit(
            session, owner, [note()], not_after=now - timedelta(milliseconds=1), state={"a": 1}, commit_id="c"
        )
    head = await require_whole(log, session, owner)
    same((head.seq, head.revision, dict(head.state)), (1, 1, {}), "nothing of the late one is stored")
    same((await log.commit(session, owner, [note(2)], commit_id="c")).seq, 2, "its commit id is free")


@check("a repeated commit id answers the first result and stores nothing again")
async def commit_repeat(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session = await new_session(log, owner)
    first = await log.commit(session, owner, [note(1)], commit_id="c", expect=0)
    await log.commit(session, owner, [note(2)])
    again = await log.commit(session, owner, [note(1)], commit_id="c", expect=0)
    same((again.seq, again.revision), (first.seq, first.revision), "the first result, though others wrote")
    same((await require_whole(log, session, owner)).seq, 2, "no record is stored twice")


@check("a commit id with other content is a key conflict, and ids are each session's own")
async def commit_conflict(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session, other = await new_session(log, owner), await new_session(log, owner)
    await log.commit(session, owner, [note(1)], commit_id="c")
    for drafts in ([note(2)], [note(1, "note.other")], [note(1), note(1)], []):
        async with refused(KeyConflict, "other content", key="c"):
            await log.commit(session, owner, drafts, commit_id="c")
    same((await log.commit(other, owner, [note(2)], commit_id="c")).seq, 1, "another session's id is free")
    same((await require_whole(log, session, owner)).seq, 1, "nothing of the conflicts is stored")


@check(
    "every kind of the framework is refused, also beside good records, and nothing is stored",
    "SES-63",
    "SES-143",
)
async def reserved_kinds(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session = await new_session(log, owner)
    for kind in sorted(RESERVED_KINDS):
        async with refused(ReservedKind, f"{kind} is refused", kind=kind):
            await log.commit(session, owner, [note(), note(kind=kind)], state={"a": 1}, commit_id=kind)
    head = await require_whole(log, session, owner)
    same((head.seq, head.revision, dict(head.state)), (0, 0, {}), "nothing of those calls is stored")


@check("a commit that is too large is refused, and nothing is stored")
async def oversized(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session = await new_session(log, owner)
    quarter = draft(KIND, {"text": "x" * (4 * MIB - 100)})
    async with refused(InputTooLarge, "more than 16 MiB in one commit", field="records"):
        await log.commit(session, owner, [quarter] * 4 + [note("x" * 500)])
    async with refused(InputTooLarge, "more than 4 MiB in one record", field=KIND):
        await log.commit(session, owner, [draft(KIND, {"text": "x" * (4 * MIB)})])
    same((await require_whole(log, session, owner)).revision, 0, "nothing is stored")


@check("large records and all of Unicode come back whole")
async def round_trip(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session = await new_session(log, owner)
    data: list[dict[str, Any]] = [
        {"image": "QUJD" * (LARGE_CHARACTERS // 4)},
        {"text": 'tab\t six \\u0000 quote" back\\ é 漢 \U0001f600 \ue000 \x7f', "ключ": None},
        {"ints": [2**63, -(2**64), 10**40], "floats": [0.1, -1e-9], "nest": [[{"a": [True, False]}]]},
    ]
    await log.commit(session, owner, [draft(KIND, one) for one in data])
    await require_whole(log, session, owner)
    for stored, expected in zip(await log.read(session), data, strict=True):
        require(stored.data == expected, "a record reads back as it was written")


@check("what is returned or handed in is a copy: changing it changes nothing stored")
async def copies(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    meta, state = {"list": [1]}, {"list": [1]}
    session = await new_session(log, owner, meta=meta)
    await log.commit(session, owner, [draft(KIND, {"list": [1]})], state=state)
    for handed in (meta, state):
        handed["list"].append(2)
    for _ in range(2):
        head, [record] = await log.head(session, owner), await log.read(session)
        for value in (head.meta, head.state, record.data):
            same(value["list"], [1], "the stored value is as it was")
            value["list"].append(3)
    await require_whole(log, session, owner)


@check("a removal takes the session with its children and everything of theirs, and no other", "SES-12")
async def removal(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    parent, child, other = [await new_session(log, owner, key=k) for k in ("parent", "child", "other")]
    await subject.make_child(child, parent)
    for session in (parent, child, other):
        await log.commit(session, owner, [note()], commit_id="c")
    same((await log.head(child, owner)).parent, parent, "the child names its parent")
    same(list(await log.remove(parent, owner)), [parent, child], "the parent and its child are answered")
    same(list(await log.remove(parent, owner)), [], "a second removal finds nothing")
    for session in (parent, child):
        async with refused(SessionMissing, "it is gone"):
            await log.head(session, owner)
        same(list(await log.read(session)), [], "so are its records")
    same([h.id for h in await log.list(owner)], [other], "the other session stays")
    await log.create(NewSession(parent, owner, key="parent"))
    same((await log.commit(parent, owner, [note(5)], commit_id="c")).seq, 1, "its id and keys are free again")


@check("a removed child leaves its parent, and the current seqs of many sessions are read at once")
async def child_and_seqs(subject: SessionLogSubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    parent, child, gone = [await new_session(log, owner) for _ in range(3)]
    await subject.make_child(child, parent)
    await log.commit(parent, owner, [note(), note()])
    await log.commit(child, owner, [note()])
    await log.remove(gone, owner)
    same(dict(await log.seqs([parent, child, gone])), {parent: 2, child: 1}, "absent ones are left out")
    same(dict(await log.seqs([])), {}, "none is none")
    same(list(await log.remove(child, owner)), [child], "only the child is removed")
    same((await require_whole(log, parent, owner)).seq, 2, "the parent is whole")


CHECKS: Final = checks_of(globals())
