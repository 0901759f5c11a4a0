"""Checks of the inbox: what a delivery stores, once, and what it is refused for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shared.conformance.check import check, checks_of, outcomes, refused, require, same
from shared.conformance.inbox.stage import RETRY_S, SOURCE, InboxSubject, inbox_stage
from shared.domain.bounds import TEXT_MAX_BYTES
from shared.domain.errors import InboxFull, InputTooLarge, InvalidInput, KeyConflict, SessionMissing
from shared.domain.ids import OwnerId, new_session_id
from shared.inbox.port import MAX_PENDING, Delivered, Delivery


@check("a delivery is an item that waits, a record, and a turn that will answer it", "INB-01", "INB-04")
async def delivering(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    given = await s.deliver(session, "one", content="Rain.", meta={"tenant": "t"}, agent="tea")
    same(given, Delivered(1, False, 1, given.turn_id), "what is answered")
    [record] = await s.turns.log.read(session)
    data = {"v": 1, "id": "one", "source": SOURCE, "content": "Rain."}
    same((record.kind, record.turn, record.data), ("inbox.queued", None, data), "outside any turn")
    [item] = await s.inbox.waiting(session, s.turns.owner)
    same((item.id, item.source, item.content, item.seq), ("one", SOURCE, "Rain.", 1), "it waits as it came")
    same((item.attempts, item.meta, item.agent), (0, {"tenant": "t"}, "tea"), "with what its turn is made of")
    view = await s.view(given.turn_id)
    same((view.origin, view.status, view.position, view.after), ("inbox", "ready", 1, 1), "its turn is ready")
    same((view.agent, view.agent_revision, view.key), ("tea", s.turns.revision, None), "as the item says")
    await s.check(session)


@check("an id is delivered once: again, also after it was done, it adds nothing", "INB-02")
async def once(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session, other = await s.session(), await s.session()
    first = await s.deliver(session, "one")
    same(await s.deliver(session, "one"), replace(first, duplicate=True), "it answers the first")
    same(await s.waiting(session), ["one"], "one item waits")
    async with refused(KeyConflict, "the same id with other content", key="one"):
        await s.deliver(session, "one", content="else")
    async with refused(KeyConflict, "or from another source", key="one"):
        await s.deliver(session, "one", source="else")
    same((await s.deliver(other, "one")).duplicate, False, "another session has ids of its own")
    claims = {claim.session_id: claim for claim in await s.turns.claims(places=2)}
    claim = await s.open(claims[session], ["one"])
    during = await s.deliver(session, "one")
    same((during.duplicate, during.pending, during.turn_id), (True, 0, None), "nor while it is answered")
    await s.end(claim)
    after = await s.deliver(session, "one")
    same((after.seq, after.duplicate, after.pending, after.turn_id), (1, True, 0, None), "nor afterwards")
    kinds = [kind for _, kind in await s.turns.kinds(session)]
    same(kinds.count("inbox.queued"), 1, "one record was written")
    await s.check(session)


@check("twenty at once with one id are one item and one turn", "INB-02")
async def at_once(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    answers = await outcomes([s.deliver(session, "one") for _ in range(MAX_PENDING)])
    require(all(isinstance(answer, Delivered) for answer in answers), "each is answered")
    same({answer.seq for answer in answers}, {1}, "with the first record")
    same([answer.duplicate for answer in answers].count(False), 1, "one of them stored it")
    same(await s.waiting(session), ["one"], "one item waits")
    same(len(await s.turns.claims(places=5)), 1, "for one turn")


@check("so many items wait as may; one more is refused and nothing of it is stored", "INB-03")
async def full(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    ids = [f"n{n:02d}" for n in range(MAX_PENDING)]
    same([(await s.deliver(session, item)).pending for item in ids], list(range(1, 21)), "twenty may wait")
    async with refused(InboxFull, "the next", session=session, bound="<= 20 items"):
        await s.deliver(session, "over")
    same(await s.waiting(session), ids, "the twenty are intact, oldest first")
    same((await s.deliver(session, ids[0])).duplicate, True, "a repeat is no new one")
    claim = await s.open(await s.claim(), ids)
    same((await s.deliver(session, "over")).seq, 22, "claimed items make room; the refused id was not kept")
    async with refused(InboxFull, "a smaller bound", bound="<= 1 items"):
        await s.deliver(session, "more", max_pending=1)
    await s.end(claim)
    await s.check(session)


@check("a session that is another's or nobody's takes no delivery and shows none", "INB-01")
async def strangers(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    await s.deliver(session, "one")
    stranger = subject.new_owner()
    for place, owner in ((session, stranger), (new_session_id(), s.turns.owner)):
        async with refused(SessionMissing, "a delivery", session=place):
            await s.inbox.deliver(Delivery(place, OwnerId(owner), "two", SOURCE, "x"))
        async with refused(SessionMissing, "a look", session=place):
            await s.inbox.waiting(place, OwnerId(owner))
    same(await s.waiting(session), ["one"], "nothing was added")


@check("what cannot be stored is refused with its field, and nothing is", "INB-01")
async def unstorable(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    for field, given in (
        ("source", {"source": ""}),
        ("content", {"content": "\x00"}),
        ("meta/a", {"meta": {"a": float("nan")}}),
        ("agent_revision", {"agent_revision": "r" * 257}),
    ):
        async with refused(InvalidInput, f"a bad {field}", field=field):
            await s.deliver(session, "one", **given)
    async with refused(InvalidInput, "a bad id", field="id"):
        await s.deliver(session, "a\nb")
    async with refused(InputTooLarge, "too much", field="content"):
        await s.deliver(session, "one", content="x" * (TEXT_MAX_BYTES + 1))
    same((await s.turns.check_session(session)).seq, 0, "nothing was stored")
    longest = "i" * 256
    await s.deliver(session, longest, content="x" * TEXT_MAX_BYTES)
    same(await s.waiting(session), [longest], "the bounds themselves hold")


@check("a removed session takes its items with it, and its ids may be anew", "INB-02")
async def removed(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session, kept = await s.session(), await s.session()
    await s.deliver(session, "one")
    await s.deliver(kept, "one")
    await s.turns.log.remove(session, s.turns.owner)
    async with refused(SessionMissing, "it is gone", session=session):
        await s.waiting(session)
    await subject.advance(RETRY_S + 1)
    same(await s.recover(), [], "nothing of it is owed an answer")
    same(await s.waiting(kept), ["one"], "another session's item stays")


CHECKS: Final = checks_of(globals())
