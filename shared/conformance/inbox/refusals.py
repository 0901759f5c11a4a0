"""Checks of the inbox: a host's say in turns that entered the queue unasked, and their repair."""

from __future__ import annotations

from typing import Final

from shared.conformance.check import check, checks_of, refused, require, same
from shared.conformance.inbox.stage import RETRY_S, InboxStage, InboxSubject, inbox_stage
from shared.conformance.turn_stage import commit_id, started
from shared.conformance.turns.hooks import Counting
from shared.domain.errors import FenceLost, InboxMoved, TurnClosed, TurnRefused
from shared.turns.queue import Claim


async def _refused(s: InboxStage, claim: Claim, *items: str, first: bool = True) -> None:
    async with refused(TurnRefused, "the host says no", reason="quota"):
        await s.open(claim, items, admit=Counting(most=0, first=first))


@check("an inbox turn is judged as it opens; refused, its items wait on and nothing is counted", "SES-132")
async def refusing(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    for first in (True, False):
        session = await s.session()
        await s.deliver(session, "one")
        claim = await s.claim()
        await _refused(s, claim, "one", first=first)
        view = await s.view(claim.turn_id)
        same((view.status, view.code, view.failure), ("refused", "turn.refused", "quota"), "with the reason")
        same(await s.attempts(session), {"one": 0}, "the item waits on, untried")
        same(await s.turns.kinds(session), [(None, "inbox.queued")], "nothing of it is in the log")
        same(await s.turns.claims(), [], "and no turn follows at once")
        async with refused(TurnClosed, "its holder", reason="ended"):
            await s.open(claim, ["one"])
        await s.check(session)


@check(
    "a refused inbox turn is tried again after a while, at the next delivery or at the next end",
    "INB-30",
    "INB-35",
)
async def retried(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    await s.deliver(session, "one")
    await _refused(s, await s.claim(), "one")
    same(await s.recover(), [], "it is not owed yet")
    same(await s.turns.claims(), [], "not before its time")
    await subject.advance(RETRY_S + 1)
    [turn] = await s.recover()
    s.know(session, turn)
    claim = await s.claim()
    same(claim.turn_id, turn, "then the sweep finds it owed, and names the turn to ring for")
    same(await s.recover(), [], "once")
    await _refused(s, claim, "one")
    given = await s.deliver(session, "two")
    same(((await s.view(given.turn_id)).status, given.pending), ("ready", 2), "a delivery inserts one")
    await _refused(s, await s.claim(), "one", "two")
    await s.turns.admit(session)
    users = await s.turns.claim()
    await s.turns.open(users)
    await s.turns.end(users)
    await s.end(await s.open(await s.claim(), ["one", "two"], admit=Counting()))
    same(await s.waiting(session), [], "an end of a user's turn too")
    await s.check(session)


@check(
    "a host is asked once for each inbox turn: not for a user's, nor when one is taken over",
    "SES-132",
    "SES-138",
)
async def asked(subject: InboxSubject) -> None:
    s, hook = await inbox_stage(subject), Counting()
    session = await s.session()
    await s.deliver(session, "one", meta={"tenant": "t"})
    claim = await s.claim()
    await s.deliver(session, "two")
    async with refused(InboxMoved, "it names other items"):
        await s.open(claim, ["two"], admit=hook)
    same(hook.asked, 0, "what cannot open is not asked for")
    await s.open(claim, ["one", "two"], admit=hook)
    [turn] = hook.admitted
    same((turn.door, turn.turn_id, turn.meta), ("begin", claim.turn_id, {"tenant": "t"}), "as it opens")
    same((turn.run_id, turn.owner, turn.key), (claim.run_id, s.turns.owner, None), "with its names")
    opened = await s.turns.queue.open(claim, commit_id(claim, "open"), [started(claim)], admit=hook)
    same((opened.result, hook.asked), ("adopted", 1), "a repeat asks nobody")
    await s.turns.lose_leases()
    taken = await s.turns.take_over()
    opened = await s.turns.queue.open(
        taken, commit_id(taken, "open"), [started(taken)], admit=Counting(most=0)
    )
    same(opened.result, "took-over", "nor does a takeover")
    await s.end(taken)
    await s.turns.admit(session)
    users = await s.turns.claim()
    opened = await s.turns.queue.open(
        users, commit_id(users, "open"), [started(users)], admit=Counting(most=0)
    )
    same(opened.result, "opened", "a user's turn was counted when it was admitted")
    await s.check(session)


@check("a refusal of a turn that its holder lost ends nothing", "SES-132")
async def lost(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    await s.deliver(session, "one")
    claim = await s.claim()
    await s.turns.lose_leases()
    taken = await s.turns.take_over()
    async with refused(FenceLost, "its fence is gone"):
        await s.open(claim, ["one"], admit=Counting(most=0))
    require((await s.view(taken.turn_id)).status == "running", "the new holder goes on")
    await s.open(taken, ["one"])
    await s.check(session)


@check("an item that has no turn, whatever took that from it, is found within an hour", "INB-35")
async def repaired(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    given = await s.deliver(session, "one")
    await subject.advance(3_601)
    same(await s.recover(), [given.turn_id], "one that waits for long is looked at, and rung for again")
    same(await s.recover(), [], "once an hour")
    same(len(await s.turns.claims(places=5)), 1, "and no second turn is made for it")


@check("a sweep goes on while there may be more, also after a pass that answers no turn", "INB-35")
async def swept(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    behind, free = await s.session(), await s.session()
    await s.turns.admit(behind)
    await s.deliver_behind(behind)
    given = await s.deliver(free, "three")
    await subject.advance(3_601)
    same(await s.recover(limit=1), [given.turn_id], "behind a session whose turn is not over")


@check("an operator is told how many items wait in all, and since when the oldest", "INB-35")
async def counted(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    before = await s.inbox.backlog()
    session = await s.session()
    await s.deliver(session, "one")
    await s.open(await s.claim(), ["one"])
    same((await s.inbox.backlog()).waiting, before.waiting, "a claimed item waits no more")
    await s.deliver(session, "two")
    await s.deliver(session, "three")
    await subject.advance(60)
    after = await s.inbox.backlog()
    same(after.waiting, before.waiting + 2, "what nobody claimed is counted, of any session")
    require(after.oldest_s >= 60, "the oldest one's age")


CHECKS: Final = checks_of(globals())
