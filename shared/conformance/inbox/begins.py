"""Checks of the inbox: turns that a host begins in its own process, over items or beside them."""

from __future__ import annotations

from typing import Final

from shared.conformance.check import check, checks_of, refused, same
from shared.conformance.inbox.stage import InboxSubject, inbox_stage
from shared.conformance.turn_stage import ended
from shared.conformance.turns.begins import begin
from shared.domain.errors import InboxMoved, NothingPending, SessionBusy
from shared.turns.queue import Ending

COMPLETED: Final = Ending("completed")


@check(
    "a host begins an inbox turn over what waits, in the place of one that nobody holds", "INB-07", "INB-10"
)
async def over_items(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    async with refused(NothingPending, "nothing waits", session=session):
        await begin(s.turns, s.turns.admission(session, origin="inbox"))
    same((await s.turns.log.head(session, s.turns.owner)).seq, 0, "nothing of it is stored")
    given = await s.deliver(session, "one")
    await s.deliver(session, "two")
    for items in (("two",), ("two", "one"), ("one", "three"), ()):
        async with refused(InboxMoved, "it names other items", session=session):
            await begin(s.turns, s.turns.admission(session, origin="inbox", claims=items))
    same((await s.view(given.turn_id)).status, "ready", "the waiting turn is untouched by that")
    begun = await begin(s.turns, s.turns.admission(session, origin="inbox", claims=("one", "two")))
    same((begun.claim.origin, begun.opened.number), ("inbox", 1), "it is the inbox's turn")
    view = await s.view(given.turn_id)
    same((view.status, view.code), ("cancelled", "turn.superseded"), "the waiting one made way")
    same(await s.waiting(session), [], "all is claimed")
    answer = await s.turns.queue.end(begun.claim, "e", [ended()], COMPLETED)
    same((answer.pending, answer.promoted), (0, None), "and done")
    await s.check(session)


@check(
    "a host's user turn goes before an inbox turn that nobody holds, which then follows it",
    "INB-11",
    "INB-30",
)
async def beside_items(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    given = await s.deliver(session, "one")
    begun = await begin(s.turns, s.turns.admission(session))
    view = await s.view(given.turn_id)
    same((view.status, view.position), ("queued", 2), "it waits behind: the user's has its position")
    same(await s.waiting(session), ["one"], "a user's turn claims nothing")
    await s.check(session)
    answer = await s.turns.queue.end(begun.claim, "e", [ended()], COMPLETED)
    same((answer.pending, answer.promoted), (1, given.turn_id), "it is next, and the end says that one waits")
    again = await begin(s.turns, s.turns.admission(session))
    answer = await s.turns.queue.end(again.claim, "e2", [ended()], COMPLETED)
    same(answer.promoted, given.turn_id, "as often as the host asks")
    await s.end(await s.open(await s.claim(), ["one"]))
    await s.check(session)


@check(
    "beside an inbox turn that someone holds, or that is open and waits to go on, a host's begin is busy",
    "INB-10",
)
async def busy(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    await s.deliver(session, "one")
    claim = await s.claim()
    for claims in ((), ("one",)):
        origin = "inbox" if claims else "user"
        async with refused(SessionBusy, "a worker holds it", turn=str(claim.turn_id)):
            await begin(s.turns, s.turns.admission(session, origin=origin, claims=claims))
    await s.open(claim, ["one"])
    await s.turns.release(claim)
    for origin in ("user", "inbox"):
        async with refused(SessionBusy, "it is open", turn=str(claim.turn_id)):
            await begin(s.turns, s.turns.admission(session, origin=origin))
    await s.check(session)


CHECKS: Final = checks_of(globals())
