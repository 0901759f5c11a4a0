"""Checks of the turn queue: an admission that ends what its session is at."""

from __future__ import annotations

from typing import Final

from shared.conformance.check import check, checks_of, refused, same
from shared.conformance.turn_stage import Stage, TurnQueueSubject, ended, stage, started, step
from shared.conformance.turns.begins import begin
from shared.domain.errors import KeyConflict, QueueFull, RunIdReused, TurnClosed
from shared.domain.ids import SessionId
from shared.turns.queue import Ending, Receipt

SUPERSEDED: Final = "turn.superseded"


async def outcomes_of(s: Stage, turns: list[Receipt]) -> list[tuple[str, str | None, str | None]]:
    """Read how turns ended."""
    views = [await s.view(turn) for turn in turns]
    return [(v.status, v.outcome, v.code) for v in views]


@check("an interruption ends the open turn and all that wait, and its own turn is ready", "API-02")
async def interrupting(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session, apart = await s.session(), await s.session()
    turns = [await s.admit(session) for _ in range(3)]
    elsewhere = await s.admit(apart)
    claim = next(c for c in await s.claims(places=2) if c.session_id == session)
    await s.open(claim)
    await s.queue.append(claim, "a", [step()])
    new = await s.admit(session, on_busy="interrupt", key="k")
    same((new.status, new.position, new.after), ("ready", 4, 3), "it goes next, and follows the ends")
    same(dict(new.superseded), {claim.turn_id: s.worker}, "who held what is told")
    same(
        await outcomes_of(s, turns),
        [("ended", "cancelled", SUPERSEDED), *[("cancelled", None, SUPERSEDED)] * 2],
        "the open one ends in the log, the others unseen",
    )
    [end] = await s.log.read(session, kinds=["turn.ended"])
    same((end.data["reason"], end.data["code"]), ("cancelled", SUPERSEDED), "and says why")
    async with refused(TurnClosed, "its holder", reason="cancelled"):
        await s.queue.append(claim, "late", [step()])
    same((await s.view(elsewhere)).status, "running", "another session is untouched")
    again = await s.admit(session, on_busy="interrupt", key="k")
    same((again.duplicate, dict(again.superseded)), (True, {}), "a repeat ends nothing")
    same((await s.view(new)).status, "ready", "not even itself")
    await s.check_session(session)
    same((await s.claim()).turn_id, new.turn_id, "and it is claimed")


@check("an interruption of a claimed turn that never opened leaves nothing of it in the log", "API-02")
async def interrupting_claimed(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    first = await s.admit(session)
    claim = await s.claim()
    new = await s.admit(session, on_busy="interrupt")
    same(dict(new.superseded), {claim.turn_id: s.worker}, "its holder is named")
    async with refused(TurnClosed, "open finds it gone", reason="cancelled"):
        await s.queue.open(claim, "o", [started(claim)])
    same(await outcomes_of(s, [first]), [("cancelled", None, SUPERSEDED)], "it never was")
    same(await s.kinds(session), [], "in the log")
    await s.check_session(session)


@check("an interruption leaves a stored reply its outcome, and a dead turn its lost lease", "API-02")
async def interrupting_replied(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    replied = await s.open_turn()
    await s.reply(replied, "partial")
    new = await s.admit(replied.session_id, on_busy="interrupt")
    await s.queue.cancel(new.turn_id, s.owner)
    view = await s.view(replied)
    same((view.outcome, view.code), ("partial", None), "it ends by its reply")
    await s.check_session(replied.session_id)
    dead = await s.open_turn(on_worker_loss="interrupt")
    await s.lose_leases()
    await s.admit(dead.session_id, on_busy="interrupt")
    view = await s.view(dead)
    same((view.outcome, view.code), ("interrupted", "turn.lease"), "nobody held it any more")
    await s.check_session(dead.session_id)


@check("an interruption ends a turn that recovers, and one that was given back", "API-02")
async def interrupting_unheld(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    released, lost = await s.open_turn(), await s.open_turn()
    await s.release(released)
    await s.lose_leases()
    for claim in (released, lost):
        await s.admit(claim.session_id, on_busy="interrupt")
        view = await s.view(claim)
        same((view.status, view.outcome, view.code), ("ended", "cancelled", SUPERSEDED), "it is over")
        async with refused(TurnClosed, "no holder writes it any more", reason="cancelled"):
            await s.queue.end(claim, "e", [ended()], Ending("completed"))
        await s.check_session(claim.session_id)


@check("an interruption of a free session admits as any other, and one of a begun turn ends it", "API-02")
async def interrupting_nothing(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    new = await s.admit(session, on_busy="interrupt")
    same((new.status, new.position, dict(new.superseded)), ("ready", 1, {}), "nothing was there")
    await s.queue.cancel(new.turn_id, s.owner)
    begun = await begin(s, s.admission(session), lease_s=None)
    new = await s.admit(session, on_busy="interrupt")
    same(dict(new.superseded), {begun.claim.turn_id: s.worker}, "a host's turn is ended too")
    same((await s.view(begun.claim)).outcome, "cancelled", "as any other")
    await s.check_session(session)


@check("a refused interruption ends nothing", "API-02", "DST-16")
async def refused_interruption(subject: TurnQueueSubject) -> None:
    s = await stage(subject, queued_per_owner=2)
    claim = await s.open_turn(key="k")
    session = claim.session_id
    other = await s.session()
    await s.admit(other)
    await s.admit(other)
    async with refused(QueueFull, "the owner's bound", bound="queued turns an owner"):
        await s.admit(session, on_busy="interrupt")
    async with refused(KeyConflict, "the key's content"):
        await s.admit(session, on_busy="interrupt", key="k", message={"text": "other"})
    async with refused(RunIdReused, "the run id"):
        await s.admit(session, on_busy="interrupt", run_id=claim.run_id)
    same((await s.view(claim)).is_open, True, "the open turn goes on")
    same(await s.queue.append(claim, "a", [step()]), 2, "its holder writes")


@check("an interruption makes room for itself: what it ends is not counted", "DST-16")
async def room_of_interruption(subject: TurnQueueSubject) -> None:
    s = await stage(subject, queued_per_session=2, queued_per_owner=2, is_full=True)
    session = await _full_session(s)
    async with refused(QueueFull, "all bounds are reached"):
        await s.admit(session)
    new = await s.admit(session, on_busy="interrupt")
    same((new.status, new.position), ("ready", 3), "an interruption fits in the place of what it ends")
    await s.check_session(session)


async def _full_session(s: Stage) -> SessionId:
    session, limits = await s.session(), s.limits
    s.limits = type(limits)(2, 2, limits.attempts_max)
    for _ in range(2):
        await s.admit(session)
    s.limits = limits
    return session


CHECKS: Final = checks_of(globals())
