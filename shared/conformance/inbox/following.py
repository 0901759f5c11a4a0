"""Checks of the inbox: whatever ends a turn, and whoever delivers, inserts the next inbox turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from shared.conformance.check import check, checks_of, same
from shared.conformance.inbox.stage import InboxStage, InboxSubject, inbox_stage
from shared.conformance.turn_stage import LEASE_S, step
from shared.turns.queue import Claim

Way = Callable[[InboxStage, Claim], Awaitable[object]]


async def _end(s: InboxStage, claim: Claim) -> object:
    return await s.turns.end(claim)


async def _cancel(s: InboxStage, claim: Claim) -> object:
    return await s.turns.queue.cancel(claim.turn_id, s.turns.owner)


async def _reap(s: InboxStage, claim: Claim) -> object:
    await s.turns.lose_leases()
    return await s.turns.reap()


@check(
    "every end of a turn inserts the inbox turn that is owed, and one delivery inserts one",
    "INB-30",
    "INB-31",
)
async def ends(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    ways: tuple[Way, ...] = (_end, _cancel, _reap)
    for way in ways:
        session = await s.session()
        await s.turns.admit(session, on_worker_loss="interrupt")
        claim = await s.turns.claim(takeovers=False)
        await s.turns.open(claim)
        await s.deliver_behind(session)
        await way(s, claim)
        await s.end(await s.open(await s.claim(takeovers=False), ["one", "two"]))
        same(await s.turns.claims(takeovers=False), [], "and the only one")
        await s.check(session)


@check("a turn that never opened inserts it too, whether it is cancelled or its deadline passes", "INB-30")
async def unopened(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    for way in ("cancelled", "expired"):
        session = await s.session()
        now = (await s.turns.log.head(session, s.turns.owner)).now
        receipt = await s.turns.admit(session, deadline=now + timedelta(seconds=LEASE_S))
        await s.deliver_behind(session)
        if way == "cancelled":
            await s.turns.queue.cancel(receipt.turn_id, s.turns.owner)
        else:
            await s.turns.lose_leases()
            await s.turns.queue.expire(limit=1_000)
        same((await s.turns.view(receipt)).status, way, "the user's turn is over")
        await s.end(await s.open(await s.claim(), ["one", "two"]))
        await s.check(session)


@check(
    "an interruption goes before an unopened inbox turn, which follows it as a new one", "INB-30", "API-02"
)
async def interrupt_unopened(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    for held in (False, True):
        session = await s.session()
        given = await s.deliver(session, "one")
        if held:
            await s.claim()
        new = await s.turns.admit(session, on_busy="interrupt")
        same((new.status, bool(new.superseded)), ("ready", held), "the new turn is next")
        same((await s.view(given.turn_id)).status, "cancelled", "the inbox's turn is over")
        same(await s.attempts(session), {"one": 0}, "no attempt is counted")
        claim = await s.turns.claim()
        same(claim.turn_id, new.turn_id, "it is claimed first")
        await s.turns.open(claim)
        await s.turns.end(claim)
        await s.end(await s.open(await s.claim(), ["one"]))
        same(await s.waiting(session), [], "then the item is answered")
        await s.check(session)


@check(
    "an interruption of an open inbox turn counts no attempt, and its items are answered after",
    "INB-13",
    "INB-30",
)
async def interrupt_open(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    for ending in ("answered", "cancelled"):
        session = await s.session()
        claim = await s.opened(session, "one")
        await s.turns.queue.append(claim, "a", [step()])
        new = await s.turns.admit(session, on_busy="interrupt")
        view = await s.view(claim.turn_id)
        same((view.outcome, view.code), ("interrupted", "turn.superseded"), "it made way")
        same(await s.attempts(session), {"one": 0}, "though it wrote")
        if ending == "cancelled":
            await s.turns.queue.cancel(new.turn_id, s.turns.owner)
        else:
            taken = await s.turns.claim()
            await s.turns.open(taken)
            await s.turns.end(taken)
        await s.end(await s.open(await s.claim(), ["one"]))
        same(await s.waiting(session), [], f"the item is answered after one that was {ending}")
        await s.check(session)


@check("its turn is as the oldest waiting item says, else as the session's last one", "INB-30")
async def likeness(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    await s.turns.admit(session, agent="tea", on_worker_loss="interrupt", priority=0, max_duration_s=9.0)
    claim = await s.turns.claim()
    await s.turns.open(claim)
    await s.deliver(session, "one", agent_revision=None)
    await s.deliver(session, "two", agent="late", meta={"n": 2})
    await s.turns.end(claim)
    inbox = await s.claim()
    found = (inbox.agent, inbox.agent_revision, inbox.on_worker_loss, inbox.priority, inbox.max_duration_s)
    same(found, ("tea", s.turns.revision, "interrupt", 0, 9.0), "as the last turn")
    same((inbox.meta, inbox.message, inbox.key), (None, None, None), "with no message of its own")
    await s.end(await s.open(inbox, ["one", "two"]))
    await s.deliver(session, "three", agent="coffee", meta={"tenant": "t"})
    inbox = await s.claim()
    same((inbox.agent, inbox.meta), ("coffee", {"tenant": "t"}), "as the item says")
    same(
        (inbox.on_worker_loss, inbox.number, inbox.lost), ("interrupt", None, False), "and the rest as before"
    )
    await s.end(await s.open(inbox, ["three"]))
    await s.deliver(session, "four", agent="juice", on_worker_loss="continue")
    inbox = await s.claim()
    same(
        (inbox.agent, inbox.on_worker_loss, inbox.priority),
        ("juice", "continue", 0),
        "what becomes of it without its worker too, if the item says so",
    )


@check("a delivery beside a turn that died reaps it first", "INB-30")
async def dead(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    await s.turns.admit(session, on_worker_loss="interrupt")
    claim = await s.turns.claim()
    await s.turns.open(claim)
    await s.turns.lose_leases()
    given = await s.deliver(session, "one")
    same((await s.view(claim.turn_id)).code, "turn.lease", "it is over")
    same((await s.view(given.turn_id)).status, "ready", "and the delivery's turn is next")
    await s.check(session)


CHECKS: Final = checks_of(globals())
