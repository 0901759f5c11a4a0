"""Checks of the turn queue: turns that a host opens in its own process, with a lease or for as long as it lives."""

from __future__ import annotations

from typing import Any, Final

from shared.conformance.check import check, checks_of, outcomes, refused, require, same
from shared.conformance.turn_stage import (
    LEASE_S,
    Stage,
    TurnQueueSubject,
    ended,
    fences,
    seen,
    stage,
    step,
)
from shared.domain.errors import (
    FenceLost,
    KeyConflict,
    RunIdReused,
    SessionBusy,
    SessionMissing,
    TurnClosed,
    TurnDuplicate,
)
from shared.domain.ids import SessionId, new_run_id
from shared.sessions.records import Draft, OpenTurn, draft
from shared.turns.queue import Admission, Begun, Ending, Opened

COMPLETED: Final = Ending("completed")
DAY_S: Final = 86_400.0


def first_of(admission: Admission) -> Draft:
    """Return the first record of a turn that is begun."""
    return draft("turn.started", {"v": 1, "turn_id": str(admission.turn_id)})


async def begin(s: Stage, admission: Admission, **given: Any) -> Begun:
    """Begin a turn in the stage's own process."""
    how: dict[str, Any] = {"lease_s": LEASE_S, "commit_id": "begin", "drafts": [first_of(admission)]}
    begun = await s.queue.begin(admission, given.pop("holder", s.worker), limits=s.limits, **(how | given))
    turns = s.admitted.setdefault(admission.session_id, [])
    if admission.turn_id not in turns:
        turns.append(admission.turn_id)
    return begun


async def begun_session(s: Stage, **given: Any) -> tuple[SessionId, Begun]:
    """Make a session with one turn that the stage's own process began."""
    session = await s.session()
    return session, await begin(s, s.admission(session, key="k"), **given)


@check("a begin opens a turn in the caller's process, with its first records, in one commit", "SES-36")
async def beginning(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    asked = s.admission(session, key="k", command={"name": "go"}, meta={"a": 1}, max_duration_s=30.0)
    begun = await begin(s, asked, drafts=[first_of(asked), step()], title="Tea")
    same(begun.opened, Opened("opened", 1, 2, 1), "it is open")
    claim = begun.claim
    same((claim.turn_id, claim.session_id, claim.number), (asked.turn_id, session, 1), "the caller holds it")
    same((claim.run_id, claim.key, claim.message), (asked.run_id, "k", asked.message), "as it was asked for")
    same((claim.command, claim.meta, claim.max_duration_s), ({"name": "go"}, {"a": 1}, 30.0), "all of it")
    same((claim.attempts, claim.suspect, claim.lost, claim.fence.epoch), (0, False, False, 1), "first try")
    head = await s.check_session(session)
    same(head.open, OpenTurn(asked.turn_id, 1, claim.fence.token), "the head names its fence")
    same((head.turns, head.seq, head.title), (1, 2, "Tea"), "the head counts it and takes its title")
    same(await s.kinds(session), [(1, "turn.started"), (1, "step.started")], "its records carry its number")
    view = await s.view(claim)
    same((view.status, view.number, view.position, view.is_open), ("running", 1, 1, True), "it runs")
    same((view.holder, view.leased, view.started_seq), (s.worker, True, 1), "here, under a lease")
    same(await s.queue.append(claim, "a", [step(2)]), 3, "the caller writes it")
    waiting = await s.admit(session)
    same(waiting.status, "queued", "what is admitted meanwhile waits")
    answer = await s.queue.end(claim, "e", [ended()], COMPLETED)
    same((answer.promoted, answer.pending), (waiting.turn_id, 0), "and is ready at its end")
    view = await s.view(claim)
    same((view.status, view.holder, view.leased), ("ended", None, False), "then nobody holds it")
    await s.check_session(session)


@check("a begin under a key that a turn has is a duplicate that says whether it is open", "SES-40")
async def duplicate(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session, begun = await begun_session(s)
    first = str(begun.claim.turn_id)
    for is_open in (True, False):
        async with refused(TurnDuplicate, "the same content", turn_id=first, number=1, open=is_open):
            await begin(s, s.admission(session, key="k", meta={"other": 1}))
        if is_open:
            await s.queue.end(begun.claim, "e", [ended()], COMPLETED)
    queued = await s.admit(session, key="queued")
    async with refused(TurnDuplicate, "one that waits", turn_id=str(queued.turn_id), number=None, open=True):
        await begin(s, s.admission(session, key="queued"))
    same((await s.admit(session, key="k")).turn_id, begun.claim.turn_id, "an admission gets its receipt")
    same((await s.check_session(session)).turns, 1, "nothing was opened")


@check("a begin under a key with other content is a conflict that names the turn", "SES-41")
async def conflict(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session, begun = await begun_session(s)
    for given in ({"message": {"text": "other"}}, {"command": {"name": "go"}}, {"agent": "other"}):
        async with refused(KeyConflict, "other content", key="k", turn=str(begun.claim.turn_id)):
            await begin(s, s.admission(session, key="k", **given))
    same((await s.check_session(session)).turns, 1, "nothing was opened")


@check("a begin is refused in order: by its key, by its run id, by a busy session", "SES-45", "SES-46")
async def order_of_refusals(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session, begun = await begun_session(s)
    run = begun.claim.run_id
    async with refused(TurnDuplicate, "first the key"):
        await begin(s, s.admission(session, key="k", run_id=run))
    async with refused(KeyConflict, "with other content too"):
        await begin(s, s.admission(session, key="k", run_id=run, message={"text": "other"}))
    async with refused(RunIdReused, "then the run id", run=run):
        await begin(s, s.admission(session, run_id=run))
    async with refused(SessionBusy, "then the open turn", turn=str(begun.claim.turn_id)):
        await begin(s, s.admission(session))
    await s.queue.end(begun.claim, "e", [ended()], COMPLETED)
    async with refused(RunIdReused, "also when the session is free", run=run):
        await begin(s, s.admission(session, run_id=run))
    same((await s.check_session(session)).seq, 2, "nothing was opened")
    same((await begin(s, s.admission(session))).opened.number, 2, "a new one begins")


@check("a begin beside any unfinished turn is busy and stores nothing", "SES-38")
async def busy(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    waiting = await s.admit(session)
    asked = s.admission(session, key="k")
    for state in ("ready", "claimed", "open", "released"):
        async with refused(SessionBusy, f"beside a turn that is {state}", turn=str(waiting.turn_id)):
            await begin(s, asked)
        match state:
            case "ready":
                claim = await s.claim()
            case "claimed":
                await s.open(claim)
            case "open":
                await s.release(claim)
    s.admitted[session] = [waiting.turn_id]
    await s.queue.cancel(waiting.turn_id, s.owner)
    same((await begin(s, asked)).opened.number, 2, "its key was not taken by the refusals")
    await s.check_session(session)


@check("a begin reaps the session's dead turn before it judges", "SES-122")
async def reaping(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session, first = await begun_session(s, lease_s=LEASE_S)
    dead = await s.open_turn(on_worker_loss="interrupt")
    await s.lose_leases()
    begun = await begin(s, s.admission(dead.session_id))
    same(begun.opened.number, 2, "the session is free")
    view = await s.view(dead)
    same((view.outcome, view.code), ("interrupted", "turn.lease"), "the dead one ended so")
    await s.check_session(dead.session_id)
    async with refused(SessionBusy, "one that may go on is busy, though nobody holds it"):
        await begin(s, s.admission(session))
    same((await s.view(first.claim)).recovering, True, "it recovers")


@check("a begin that is repeated after a lost answer adopts what it opened and writes nothing")
async def adopting(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    for key, lease_s in ((None, LEASE_S), ("k", None)):
        session = await s.session()
        asked = s.admission(session, key=key)
        first = await begin(s, asked, lease_s=lease_s)
        again = await begin(s, asked, lease_s=lease_s)
        same((again.claim.fence, again.claim.number), (first.claim.fence, 1), "the same fence")
        same(again.opened, Opened("adopted", 1, 1, 1), "the very begin had opened it")
        same(await s.kinds(session), [(1, "turn.started")], "no second start is written")
        async with refused(FenceLost, "another process does not adopt it"):
            await begin(s, asked, holder=subject.new_worker(), lease_s=lease_s)
        await s.queue.cancel(asked.turn_id, s.owner)
        async with refused(TurnClosed, "nor one that was closed", reason="cancelled"):
            await begin(s, asked, lease_s=lease_s)
        await s.check_session(session)


@check("of begins at once one opens a turn: equal ones are duplicates, others busy", "SES-38", "SES-40")
async def begins_at_once(subject: TurnQueueSubject) -> None:
    s, other = await stage(subject), await subject.open()
    for key, error in (("k", TurnDuplicate), (None, SessionBusy)):
        session = await s.session()
        asked = [s.admission(session, key=key) for _ in range(8)]
        answers = await outcomes(
            [
                (s.queue if n % 2 else other).begin(
                    each,
                    subject.new_worker(),
                    lease_s=LEASE_S,
                    commit_id="begin",
                    drafts=[first_of(each)],
                    limits=s.limits,
                )
                for n, each in enumerate(asked)
            ]
        )
        same(sum(isinstance(a, Begun) for a in answers), 1, "one turn was opened")
        same(sum(isinstance(a, error) for a in answers), 7, f"the others met {error.__name__}")
        s.admitted[session] = [a.claim.turn_id for a in answers if isinstance(a, Begun)]
        same((await s.check_session(session)).seq, 1, "and nothing else was written")


@check("a begin in another owner's or a missing session finds nothing", "SES-35")
async def foreign(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    async with refused(SessionMissing, "no such session", session=session):
        await begin(s, s.admission(session, owner=subject.new_owner()))
    s.admitted.clear()
    same((await s.check_session(session)).seq, 0, "nothing was opened")


@check("a run id of the history that a fork inherits is refused, and no other of the parent's", "SES-45")
async def inherited_run(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    parent = await s.session()
    runs = [new_run_id() for _ in range(3)]
    for run in runs:
        begun = await begin(s, s.admission(parent, run_id=run))
        await s.queue.end(begun.claim, "e", [ended()], COMPLETED)
    child, grandchild, apart = await s.session(), await s.session(), await s.session()
    await subject.inherit(child, parent, turns=2)
    await subject.inherit(grandchild, child, turns=2)
    await subject.inherit(apart, parent, turns=0)
    for heir in (child, grandchild):
        for run in runs[:2]:
            async with refused(RunIdReused, "an inherited turn's, for a begin", run=run):
                await begin(s, s.admission(heir, run_id=run))
            async with refused(RunIdReused, "and for an admission", run=run):
                await s.admit(heir, run_id=run)
        same((await s.admit(heir, run_id=runs[2])).position, 1, "a later turn's of the parent is free")
    same((await s.admit(apart, run_id=runs[0])).position, 1, "a child that inherits nothing may use any")


@check("a turn held without a lease is left alone by claims, sweeps and renewals", "SES-103", "SES-113")
async def unleased(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session, begun = await begun_session(s, lease_s=None)
    claim = begun.claim
    await subject.advance(DAY_S)
    same(list(await s.claims(places=5, worker=subject.new_worker())), [], "no claim takes it")
    same(await s.reap(), [], "no sweep reaps it")
    same((await s.queue.renew(fences(claim), LEASE_S)).renewed, frozenset({claim.turn_id}), "it is held")
    await subject.advance(DAY_S)
    view = await s.view(claim)
    same((view.holder, view.leased), (s.worker, False), "and no renewal gave it a lease")
    same((view.is_open, view.recovering), (True, False), "it reads as open")
    async with refused(SessionBusy, "a live process's turn is busy"):
        await begin(s, s.admission(session))
    same(dict((await s.queue.watch(s.worker, fences(claim))).lost), {}, "its holder hears nothing")
    same(await s.queue.append(claim, "a", [step()]), 2, "and writes")
    await s.queue.end(claim, "e", [ended()], COMPLETED)
    await s.check_session(session)


@check("a turn whose process is gone is abandoned under exactly its fence, once", "SES-105")
async def abandoning(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session, begun = await begun_session(s, lease_s=None)
    other = (await begun_session(s, lease_s=None))[1].claim
    claim = begun.claim
    waiting = await s.admit(session)
    same(await s.queue.abandon(claim.turn_id, other.fence), False, "not under another fence")
    same(await s.queue.abandon(other.turn_id, claim.fence), False, "nor another turn")
    same(await s.queue.abandon(claim.turn_id, claim.fence), True, "under its own")
    view = await s.view(claim)
    same((view.status, view.outcome, view.code), ("ended", "interrupted", "turn.lease"), "so it ended")
    same((await s.view(waiting)).status, "ready", "the next turn may go")
    same(await s.queue.abandon(claim.turn_id, claim.fence), False, "it is over")
    async with refused(TurnClosed, "its holder, if it lives after all", reason="interrupted"):
        await s.queue.append(claim, "late", [step()])
    await s.check_session(session)
    same((await s.view(other)).is_open, True, "the other one is untouched")


@check("abandoning leaves leased and claimed turns alone, and a stored reply wins", "SES-115")
async def abandoning_others(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    leased = (await begun_session(s))[1].claim
    await s.lose_leases()
    await s.queue.seen(seen(s.worker))
    same(await s.queue.abandon(leased.turn_id, leased.fence), False, "a leased turn waits for its lease")
    session, begun = await begun_session(s, lease_s=None)
    await s.reply(begun.claim, "partial")
    same(await s.queue.abandon(begun.claim.turn_id, begun.claim.fence), True, "with a reply stored")
    view = await s.view(begun.claim)
    same((view.outcome, view.code), ("partial", None), "it ends by its outcome")
    await s.check_session(session)


@check("a leased turn that its host lost goes on elsewhere, or is reaped under interrupt", "SES-84")
async def lost_begun(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    goes_on = await begin(s, s.admission(await s.session()))
    stops = await begin(s, s.admission(await s.session(), on_worker_loss="interrupt"))
    await s.lose_leases()
    async with refused(FenceLost, "its holder is too late"):
        await s.queue.append(goes_on.claim, "late", [step()])
    taken = await s.take_over()
    same(taken.turn_id, goes_on.claim.turn_id, "a worker takes over the one that may go on")
    same((await s.queue.open(taken, "o", [])).result, "took-over", "as any lost turn")
    same([v.turn_id for v in await s.reap()], [stops.claim.turn_id], "the other one is reaped")
    require((await s.view(stops.claim)).code == "turn.lease", "as a lost lease")


CHECKS: Final = checks_of(globals())
