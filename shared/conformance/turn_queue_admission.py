"""Checks of the turn queue: admission and the order within a session."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from shared.conformance.check import check, checks_of, outcomes, refused, require, same
from shared.conformance.turn_stage import Stage, TurnQueueSubject, ended, stage, started
from shared.domain.errors import KeyConflict, QueueFull, RunIdReused, SessionBusy, SessionMissing, TurnMissing
from shared.domain.ids import SessionId, new_run_id, new_session_id, new_turn_id
from shared.turns.queue import Ending, Receipt


@check("an admission answers a receipt, and the turn reads as it was admitted")
async def receipt(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    deadline = (await s.log.head(session, s.owner)).now + timedelta(hours=1)
    asked = s.admission(
        session, key="k", agent="tea", priority=2, deadline=deadline, on_worker_loss="interrupt"
    )
    got = await s.queue.admit(asked, s.limits)
    same(got, Receipt(asked.turn_id, asked.run_id, session, 1, "ready", 0, False), "the receipt")
    view = await s.view(got)
    same(
        (view.owner, view.session_id, view.run_id, view.key),
        (s.owner, session, asked.run_id, "k"),
        "whose it is",
    )
    same(
        (view.status, view.position, view.number, view.origin), ("ready", 1, None, "user"), "where it stands"
    )
    same((view.agent, view.agent_revision, view.priority), ("tea", s.revision, 2), "what runs it")
    same((view.deadline, view.attempts, view.epoch), (deadline, 0, 0), "nobody tried it yet")
    same(
        (view.is_open, view.recovering, view.opened_at, view.ended_at), (False, False, None, None), "not open"
    )
    require(view.admitted_at <= view.now, "its times are the store's")
    same(await s.kinds(session), [], "nothing is in the log before a worker opens it")


@check("the same key and content answers the first receipt, also after the turn ended", "SES-40", "TRN-43")
async def same_key(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    first = await s.admit(session, key="k", meta={"a": 1})
    again = await s.admit(session, key="k", meta={"a": 2}, priority=0, on_busy="reject")
    same((again.turn_id, again.run_id), (first.turn_id, first.run_id), "the first turn, though meta differs")
    same((first.duplicate, again.duplicate), (False, True), "only the repeat is a duplicate")
    claim = await s.claim()
    await s.open(claim)
    await s.end(claim)
    late = await s.admit(session, key="k")
    same((late.turn_id, late.status, late.duplicate), (first.turn_id, "ended", True), "also when it ended")
    same(late.after, first.after, "with the first cursor")
    same(s.admitted[session], [first.turn_id], "no second turn was stored")


@check("the same key with another message, command or agent is a conflict that names the turn", "SES-41")
async def other_content(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    first = await s.admit(session, key="k")
    contents: tuple[dict[str, Any], ...] = (
        {"message": {"text": "other"}},
        {"command": {"name": "go"}},
        {"agent": "other"},
    )
    for given in contents:
        async with refused(KeyConflict, f"other content: {given}", key="k", turn=str(first.turn_id)):
            await s.admit(session, key="k", **given)
    other = await s.admit(await s.session(), key="k", message={"text": "other"})
    require(not other.duplicate, "another session's key is another key")
    same((await s.admit(session)).position, 2, "no conflict took a position")


@check("an admission repeated with its turn id after a lost answer finds its row and is no duplicate")
async def lost_answer(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    for key in (None, "k"):
        asked = s.admission(await s.session(), key=key)
        first = await s.queue.admit(asked, s.limits)
        same(await s.queue.admit(asked, s.limits), first, "the same receipt, not a duplicate")
    await s.admit(asked.session_id)
    same((await s.queue.admit(asked, s.limits)).position, 1, "also when more turns came")


@check("of twenty equal admissions at once one turn comes, and all get its receipt", "SES-40")
async def equal_admissions(subject: TurnQueueSubject) -> None:
    s, other = await stage(subject), await subject.open()
    session = await s.session()
    answers = await outcomes(
        [(s.queue if n % 2 else other).admit(s.admission(session, key="k"), s.limits) for n in range(20)]
    )
    same(len({a.turn_id for a in answers}), 1, "one turn")
    same(sum(not a.duplicate for a in answers), 1, "one admission made it")
    same((await s.admit(session)).position, 2, "one position was given")


@check("a run id that the session used is refused right after the key, and opens nothing", "SES-45", "SES-46")
async def run_id(subject: TurnQueueSubject) -> None:
    s = await stage(subject, queued_per_session=1)
    session, run = await s.session(), new_run_id()
    await s.admit(session, key="k", run_id=run)
    async with refused(RunIdReused, "before busy and the bounds", run=run):
        await s.admit(session, run_id=run, on_busy="reject")
    async with refused(KeyConflict, "after the key's conflict"):
        await s.admit(session, run_id=run, key="k", message={"text": "other"})
    same((await s.admit(session, run_id=run, key="k")).duplicate, True, "after the key's answer")
    require(not (await s.admit(await s.session(), run_id=run)).duplicate, "another session may use it")


@check("an admission to another owner's or a missing session finds nothing", "SES-35")
async def foreign_session(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session, other = await s.session(), subject.new_owner()
    for missing, asker in ((session, other), (new_session_id(), s.owner)):
        async with refused(SessionMissing, "no such session", session=missing):
            await s.admit(missing, owner=asker)
    turn = await s.admit(session)
    for turn_id, asker in ((turn.turn_id, other), (new_turn_id(), s.owner)):
        async with refused(TurnMissing, "no such turn", turn=str(turn_id)):
            await s.queue.get(turn_id, asker)
        async with refused(TurnMissing, "nor to cancel", turn=str(turn_id)):
            await s.queue.cancel(turn_id, asker)
    same((await s.view(turn)).status, "ready", "the turn is untouched")


@check(
    "under reject any unfinished turn makes the session busy; under enqueue the turn waits",
    "SES-38",
    "SES-39",
)
async def busy(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    first = await s.admit(session, on_busy="reject")

    async def require_busy(why: str) -> None:
        async with refused(SessionBusy, why, turn=str(first.turn_id)):
            await s.admit(session, on_busy="reject")

    await require_busy("a ready turn")
    claim = await s.claim()
    await require_busy("a claimed turn")
    await s.open(claim)
    await require_busy("an open turn")
    queued = await s.admit(session, on_busy="enqueue")
    same((queued.status, queued.position), ("queued", 2), "an enqueued turn waits behind")
    await s.end(claim)
    await s.queue.cancel(queued.turn_id, s.owner)
    same((await s.admit(session, on_busy="reject")).status, "ready", "a finished session is free")


@check("the bound on a session's unfinished turns refuses the next and stores nothing", "DST-16")
async def session_bound(subject: TurnQueueSubject) -> None:
    s = await stage(subject, queued_per_session=3)
    session = await s.session()
    turns = [await s.admit(session) for _ in range(3)]
    async with refused(QueueFull, "the fourth", bound="queued turns a session"):
        await s.admit(session, key="k")
    await s.admit(await s.session())
    await s.queue.cancel(turns[1].turn_id, s.owner)
    again = await s.admit(session, key="k")
    same((again.position, again.duplicate), (4, False), "the refused one left neither a key nor a position")


@check("the bound on an owner's waiting turns counts all sessions, and an owner's own bound wins", "DST-16")
async def owner_bound(subject: TurnQueueSubject) -> None:
    s = await stage(subject, queued_per_owner=3)
    session, other = await s.session(), await s.session()
    for place in (session, session, other):
        await s.admit(place)
    async with refused(QueueFull, "the fourth", bound="queued turns an owner"):
        await s.admit(other)
    await s.claims(places=2)
    await s.admit(other)  # running turns are not waiting ones: one was freed by each claim
    stranger = subject.new_owner()
    await s.admit(await s.session(stranger), owner=stranger)
    for queued_max, fits in ((2, False), (5, True)):
        await subject.limit_owner(s.owner, queued_max=queued_max)
        if fits:
            await s.admit(session)
            continue
        async with refused(QueueFull, "above the owner's own bound", bound="queued turns an owner"):
            await s.admit(session)


@check("an admission reaps the session's dead turn before it judges", "SES-122", "SES-128")
async def reaping_door(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    dead = await s.open_turn(on_worker_loss="interrupt")
    await s.lose_leases()
    same((await s.view(dead)).status, "running", "reading it reaps nothing")
    same(await s.kinds(dead.session_id), [(1, "turn.started")], "nor reading the log")
    after = await s.admit(dead.session_id, on_busy="reject")
    same(after.status, "ready", "the session is free")
    view = await s.view(dead)
    same(
        (view.status, view.outcome, view.code),
        ("ended", "interrupted", "turn.lease"),
        "the dead one ended so",
    )
    same(await s.kinds(dead.session_id), [(1, "turn.started"), (1, "turn.ended")], "and in the log")
    await s.check_session(dead.session_id)


@check("a session has one live row, its first unfinished one, whatever ends or frees rows")
async def one_live_row(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    turns = [await s.admit(session) for _ in range(7)]
    await s.check_session(session)
    order = []
    for way in ("end", "cancel-queued", "cancel-claimed", "cancel-open", "release", "lose"):
        await _move(s, turns, way)
        await s.check_session(session)
        views = [await s.view(t) for t in turns]
        order.append(next(v.position for v in views if v.status in ("ready", "running")))
    same(order, [2, 2, 4, 5, 5, 6], "the next one comes in the order of admission")


async def _move(s: Stage, turns: list[Receipt], way: str) -> None:
    """Change the session once: each way ends or frees what is first then."""
    if way == "cancel-queued":
        await s.queue.cancel(turns[2].turn_id, s.owner)
        return
    claim = await s.claim()
    match way:
        case "end":
            await s.open(claim)
            same((await s.end(claim)).promoted, turns[1].turn_id, "an end says which turn became ready")
        case "cancel-claimed":
            await s.queue.cancel(claim.turn_id, s.owner)
        case "cancel-open":
            await s.open(claim)
            await s.queue.cancel(claim.turn_id, s.owner)
        case "release":
            same(await s.release(claim), True, "the holder gives it back")
        case _:
            await s.open(claim)
            await s.lose_leases()
            taken = await s.take_over()
            await s.queue.open(taken, "again", [])
            await s.end(taken)


@check(
    "turns of a session are claimed one at a time in the order of admission, whatever their priority",
    "DST-14",
)
async def session_order(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    turns = [await s.admit(session, priority=p) for p in (1, 2, 0)]
    done = []
    for _ in turns:
        claim = await s.claim(places=5)
        same(list(await s.claims(places=5)), [], "no second turn of the session can be had meanwhile")
        done.append(claim.turn_id)
        await s.open(claim)
        await s.end(claim)
    same(done, [t.turn_id for t in turns], "the order of admission")


@check("an urgent turn lifts those of its session that stand before it", "DST-15")
async def lifted_priority(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    behind, ahead = await s.session(), await s.session()
    background = await s.admit(behind, priority=2)
    await s.admit(ahead, priority=1)
    same((await s.admit(behind, priority=0)).status, "queued", "it waits behind the background turn")
    same((await s.view(background)).priority, 0, "which is urgent now")
    same((await s.claim()).turn_id, background.turn_id, "and goes first")


@check(
    "an urgent turn lifts a running one before it too, so that it is not held back once given back", "DST-15"
)
async def lifted_while_running(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    background = await s.admit(session, priority=2)
    running = await s.claim()
    elsewhere = await s.admit(await s.session(), priority=2)
    await s.admit(session, priority=0)
    await s.release(running)
    lifted = [(await s.view(t)).priority for t in (background, elsewhere)]
    same(lifted, [0, 2], "the one before it, and no other session's")


@check("admissions and ends at once keep one live row, and no turn is forgotten")
async def admit_while_ending(subject: TurnQueueSubject) -> None:
    s, other = await stage(subject), await subject.open()
    session = await s.session()
    for _ in range(5):
        await s.admit(session)
        claim = await s.claim()
        await s.open(claim)
        admission = s.admission(session)
        answers = await outcomes(
            [other.admit(admission, s.limits), s.queue.end(claim, "end", [ended()], _COMPLETED)]
        )
        require(not any(isinstance(a, Exception) for a in answers), f"both are stored, not {answers}")
        s.admitted[session].append(admission.turn_id)
        await s.check_session(session)
        await _finish(s, session)


async def _finish(s: Stage, session: SessionId) -> None:
    claim = await s.claim()
    await s.queue.open(claim, "open", [started(claim)])
    await s.end(claim)
    await s.check_session(session)


_COMPLETED: Final = Ending("completed")
CHECKS: Final = checks_of(globals())
