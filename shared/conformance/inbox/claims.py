"""Checks of the inbox: what an inbox turn claims as it opens, and who else claims nothing."""

from __future__ import annotations

from typing import Final

from shared.conformance.check import check, checks_of, refused, same
from shared.conformance.inbox.stage import InboxSubject, inbox_stage
from shared.conformance.turn_stage import commit_id, started, step
from shared.domain.errors import InboxMoved


@check("an inbox turn claims what it names in its opening commit", "INB-07")
async def claiming(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    claim = await s.opened(session, "one", "two")
    same(await s.waiting(session), [], "nothing waits any more")
    same((await s.turns.check_session(session)).inbox_waiting, 0, "the head says so too")
    queue = s.turns.queue
    again = await queue.open(claim, commit_id(claim, "open"), [started(claim)], claims=["one", "two"])
    same(again.result, "adopted", "a repeat adopts it")
    same((await s.deliver(session, "three")).turn_id, None, "what comes later waits for the next one")
    same(await s.waiting(session), ["three"], "it alone")
    answer = await s.end(claim)
    same((answer.pending, (await s.view(answer.promoted)).origin), (1, "inbox"), "which follows")
    await s.check(session)


@check(
    "an inbox turn that names the oldest items claims them alone, and the next one follows its end",
    "INB-07",
    "INB-30",
)
async def oldest(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    for item in ("one", "two", "three"):
        await s.deliver(session, item)
    claim = await s.open(await s.claim(), ["one", "two"])
    same(await s.waiting(session), ["three"], "what it does not name waits on")
    same((await s.deliver(session, "four")).pending, 2, "and is counted")
    await s.check(session)
    answer = await s.end(claim, "failed")
    same(answer.pending, 4, "what it gives back waits before the others")
    same(await s.waiting(session), ["one", "two", "three", "four"], "in its order")
    same(await s.attempts(session), {"one": 1, "two": 1, "three": 0, "four": 0}, "it alone was tried")
    answer = await s.end(await s.open(await s.claim(), ["one", "two"]))
    same((answer.pending, (await s.view(answer.promoted)).origin), (2, "inbox"), "the next one follows")
    answer = await s.end(await s.open(await s.claim(), ["three"]))
    same(answer.pending, 1, "as often as it takes")
    answer = await s.end(await s.open(await s.claim(), ["four"]))
    same((answer.pending, answer.promoted), (0, None), "until nothing waits")
    await s.check(session)


@check("a turn that names other items than the oldest does not open, and nothing changes", "INB-07")
async def moved(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    await s.deliver(session, "one")
    claim = await s.claim()
    await s.deliver(session, "two")
    await s.deliver(session, "three")
    others: tuple[list[str], ...] = (
        *(["two"], ["one", "three"], ["two", "one"], ["two", "three"]),
        *(["one", "two", "three", "four"], ["one", "else"], ["one", "one"], []),
    )
    for items in others:
        async with refused(InboxMoved, f"naming {items}", session=session):
            await s.open(claim, items)
    same(await s.waiting(session), ["one", "two", "three"], "all still wait")
    same((await s.view(claim.turn_id)).status, "running", "and the row is still held")
    await s.open(claim, ["one", "two", "three"])
    same(await s.waiting(session), [], "read again, it opens")


@check(
    "a user's turn claims nothing, and a user's message never enters the inbox", "INB-05", "INB-06", "INB-11"
)
async def users(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    first, second = await s.turns.admit(session), await s.turns.admit(session)
    same(await s.waiting(session), [], "what users ask waits in the queue")
    claim = await s.turns.claim()
    await s.turns.open(claim)
    given = await s.deliver(session, "one")
    same((given.pending, given.turn_id), (1, None), "a delivery waits behind them")
    ended = await s.turns.end(claim)
    same((ended.promoted, ended.pending), (second.turn_id, 1), "the next of theirs goes first")
    claim = await s.turns.claim()
    await s.turns.open(claim)
    same(await s.waiting(session), ["one"], "and claims nothing")
    ended = await s.turns.end(claim)
    s.know(session, ended.promoted)
    same((await s.view(ended.promoted)).origin, "inbox", "then the inbox's turn")
    same(first.turn_id == claim.turn_id, False, "each of theirs was a turn of its own")
    await s.check(session)


@check("another worker's attempt at an inbox turn continues the one claim", "INB-18")
async def continued(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    claim = await s.opened(session, "one")
    await s.turns.queue.append(claim, "a", [step()])
    await s.turns.lose_leases()
    taken = await s.turns.take_over()
    opened = await s.turns.queue.open(taken, commit_id(taken, "open"), [started(taken)], claims=[])
    same(opened.result, "took-over", "it takes the turn over, whatever waits")
    same(await s.waiting(session), [], "its items stay claimed")
    same((await s.deliver(session, "two")).turn_id, None, "and no second inbox turn stands beside it")
    answer = await s.end(taken, "failed")
    same((answer.pending, await s.attempts(session)), (2, {"one": 1, "two": 0}), "one attempt is counted")
    await s.check(session)


CHECKS: Final = checks_of(globals())
