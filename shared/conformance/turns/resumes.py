"""Checks of the turn queue: turns that continue a cancelled or interrupted one."""

from __future__ import annotations

import math
from typing import Any, Final

from shared.conformance.check import check, checks_of, outcomes, refused, require, same
from shared.conformance.turn_stage import (
    LEASE_S,
    Stage,
    TurnQueueSubject,
    commit_id,
    ended,
    stage,
    started,
    step,
)
from shared.conformance.turns.begins import begin, first_of
from shared.conformance.turns.hooks import Counting
from shared.domain.errors import (
    KeyConflict,
    NotResumable,
    RunIdReused,
    SessionBusy,
    SessionMissing,
    TurnClosed,
    TurnDuplicate,
    TurnkeeperError,
)
from shared.domain.ids import SessionId
from shared.turns.queue import Begun, Claim, Ending, Outcome, Receipt

#: Values that name no turn, some of them equal to the number of one (RSM-13, 14).
NO_NUMBERS: Final[tuple[Any, ...]] = (0, -1, 1.5, 1.0, math.nan, True, "1", 2**31, 2**63)
CODE: Final = NotResumable.code


async def past(s: Stage, session: SessionId, outcome: Outcome, **given: Any) -> Claim:
    """Let one turn of a user run and end so."""
    claim = (await begin(s, s.admission(session, **given))).claim
    if outcome == "cancelled":
        await s.queue.cancel(claim.turn_id, s.owner)
    else:
        await s.queue.end(claim, commit_id(claim, "end"), [ended(outcome)], Ending(outcome))
    return claim


async def cut_session(s: Stage, outcome: Outcome = "cancelled") -> tuple[SessionId, Claim]:
    """Make a session whose one turn ended so."""
    session = await s.session()
    return session, await past(s, session, outcome)


async def refused_everywhere(s: Stage, session: SessionId, n: Any, reason: str, promise: str) -> None:
    """Require that neither an admission nor a begin resumes the turn, and that neither stores anything."""
    head, fields = await s.check_session(session), {"session": session, "turn": n, "reason": reason}
    async with refused(NotResumable, f"{promise}: an admission", **fields):
        await s.admit(session, resumes=n, key="refused")
    async with refused(NotResumable, f"{promise}: a begin", **fields):
        await begin(s, s.admission(session, resumes=n, key="refused"))
    after = await s.check_session(session)
    same((after.seq, after.turns, after.open), (head.seq, head.turns, head.open), "nothing was opened")
    same(await s.log.find_turn(session, s.owner, "refused"), None, "its key names no turn")


@check(
    "a resume is a user's next turn, and whoever opens it is told what it continues",
    "RSM-01",
    "RSM-03",
    "RSM-16",
)
async def resuming(subject: TurnQueueSubject) -> None:
    for outcome in ("cancelled", "interrupted"):
        s = await stage(subject)
        session, first = await cut_session(s, outcome)
        begun = await begin(s, s.admission(session, resumes=1))
        same((begun.opened.number, begun.claim.resumes), (2, 1), "a begin opens it")
        same(begun.claim.origin, "user", "as a user's")
        view = await s.view(begun.claim)
        same((view.resumes, view.origin), (first.turn_id, "user"), "and it shows")
        same((await s.view(first)).resumes, None, "on no other turn")
        session, first = await cut_session(s, outcome)
        receipt = await s.admit(session, resumes=1)
        same((receipt.status, receipt.position), ("ready", 2), "an admission admits it")
        claim = await s.claim()
        same((claim.turn_id, claim.resumes, claim.origin), (receipt.turn_id, 1, "user"), "a claim tells it")
        same(await s.open(claim), 2, "and it opens")
        await s.lose_leases()
        same((await s.take_over()).resumes, 1, "also after a takeover")
        same((await s.view(receipt)).resumes, first.turn_id, "it shows")


@check("a turn that ended with an answer, or failed, is finished", "RSM-03", "RSM-07", "RSM-11")
async def finished(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    for outcome in ("completed", "partial", "failed"):
        session, _ = await cut_session(s, outcome)
        await refused_everywhere(s, session, 1, "finished", f"a turn that ended {outcome}")


@check(
    "a turn is superseded once another user's turn, or a resume that answered, began after it",
    "RSM-02",
    "RSM-10",
)
async def superseded(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    later: list[tuple[Outcome, dict[str, Any]]] = [
        *((outcome, {}) for outcome in ("completed", "failed", "cancelled", "interrupted")),
        *((outcome, {"resumes": 1}) for outcome in ("completed", "partial")),
    ]
    for outcome, given in later:
        session, _ = await cut_session(s)
        await past(s, session, outcome, **given)
        await refused_everywhere(s, session, 1, "superseded", f"after a turn {given} that ended {outcome}")


@check(
    "a resume that failed or was cut leaves its turn to be resumed, and can be resumed itself",
    "RSM-05",
    "RSM-44",
    "RSM-45",
)
async def tried_again(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session, _ = await cut_session(s)
    cuts: tuple[Outcome, ...] = ("failed", "cancelled", "interrupted")
    for n, outcome in enumerate(cuts, 2):
        claim = await past(s, session, outcome, resumes=1, key=f"resume:1:{n}")
        same((claim.number, claim.resumes), (n, 1), "again, under a new key")
    claim = await past(s, session, "cancelled", resumes=4, key="resume:4")
    same((claim.number, claim.resumes), (5, 4), "the last one is resumed in its turn")
    await refused_everywhere(s, session, 1, "superseded", "which leaves the first behind")
    await refused_everywhere(s, session, 2, "superseded", "and the other resumes")
    same((await past(s, session, "completed", resumes=5)).number, 6, "and so on")


@check("a turn that the session's own log does not hold is missing", "RSM-08")
async def missing(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session, _ = await cut_session(s)
    await refused_everywhere(s, session, 2, "missing", "a number that no turn has yet")
    unopened = await s.admit(session)
    await s.queue.cancel(unopened.turn_id, s.owner)
    await refused_everywhere(s, session, 2, "missing", "nor one that never opened")
    child = await s.session()
    await subject.inherit(child, session, turns=1)
    await refused_everywhere(s, child, 1, "missing", "what a fork inherits is its parent's")
    other, _ = await cut_session(s)
    await past(s, other, "cancelled", resumes=1)
    await refused_everywhere(s, session, 2, "missing", "another session's")


@check("a value that names no turn is missing before anything else is looked at", "RSM-13")
async def no_number(subject: TurnQueueSubject) -> None:
    s, hook = await stage(subject), Counting()
    session, _ = await cut_session(s)
    running = (await begin(s, s.admission(session, key="k"))).claim
    head = await s.check_session(session)
    for value in NO_NUMBERS:
        for where in (session, SessionId("nowhere")):
            asked = s.admission(where, key="k", message={"text": "other"}, resumes=value, on_busy="reject")
            fields = {"turn": str(value), "reason": "missing"}
            async with refused(NotResumable, f"{value!r}, for an admission", **fields):
                await s.queue.admit(asked, s.limits, admit=hook)
            async with refused(NotResumable, f"{value!r}, for a begin", **fields):
                await begin(s, asked, admit=hook)
    same(hook.asked, 0, "the host was not asked")
    after = await s.check_session(session)
    same((after.seq, after.turns), (head.seq, head.turns), "nothing was stored")
    same((await s.view(running)).status, "running", "and nothing ended")


@check(
    "a resume is refused in order: by its key, its run id, a busy session, its turn, the bounds",
    "RSM-12",
    "RSM-42",
    "RSM-43",
)
async def order_of_refusals(subject: TurnQueueSubject) -> None:
    s = await stage(subject, queued_per_session=1)
    session, _ = await cut_session(s, "completed")
    open_turn = (await begin(s, s.admission(session, key="k"))).claim

    async def each(error: type[TurnkeeperError], promise: str, **given: Any) -> None:
        asked = s.admission(session, resumes=1, **given)
        async with refused(error, f"{promise}: a begin"):
            await begin(s, asked)
        async with refused(error, f"{promise}: an admission"):
            await s.queue.admit(s.admission(session, resumes=1, on_busy="reject", **given), s.limits)

    await each(KeyConflict, "first the key", key="k", run_id=open_turn.run_id)
    await each(RunIdReused, "then the run id", run_id=open_turn.run_id)
    await each(SessionBusy, "then the open turn")
    async with refused(NotResumable, "then the turn, before the bounds", reason="superseded"):
        await s.queue.admit(s.admission(session, resumes=1), s.limits)
    async with refused(SessionMissing, "and there must be a session"):
        await begin(s, s.admission(session, owner=subject.new_owner(), resumes=1))
    await s.queue.end(open_turn, commit_id(open_turn, "end"), [ended()], Ending("completed"))
    await refused_everywhere(s, session, 1, "superseded", "when the session is free")
    same((await begin(s, s.admission(session, key="refused"))).opened.number, 3, "its key was not taken")


@check(
    "the same resume again is its duplicate, and with other content or another turn a conflict",
    "RSM-18",
    "RSM-40",
    "RSM-41",
)
async def keys(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session, _ = await cut_session(s)
    resume = await past(s, session, "failed", resumes=1, key="resume:1")
    async with refused(TurnDuplicate, "however it ended", turn_id=str(resume.turn_id), open=False):
        await begin(s, s.admission(session, resumes=1, key="resume:1"))
    receipt = await s.queue.admit(s.admission(session, resumes=1, key="resume:1"), s.limits)
    same((receipt.turn_id, receipt.duplicate), (resume.turn_id, True), "an admission gets its receipt")
    for given in ({"resumes": 1, "message": {"text": "other"}}, {"resumes": None}, {"resumes": 2}):
        async with refused(KeyConflict, f"{given}", turn=str(resume.turn_id)):
            await begin(s, s.admission(session, key="resume:1", **given))
    same(await s.log.find_turn(session, s.owner, "resume:1"), resume.turn_id, "its key finds it")


@check("a dead turn is reaped by whoever resumes it, in one go, and its worker is refused", "RSM-06")
async def reaped(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    for by_begin in (True, False):
        dead = await s.open_turn(on_worker_loss="interrupt")
        session = dead.session_id
        await s.lose_leases()
        if by_begin:
            same((await begin(s, s.admission(session, resumes=1))).opened.number, 2, "a begin resumes it")
        else:
            same((await s.admit(session, resumes=1, on_busy="reject")).status, "ready", "an admission does")
        view = await s.view(dead)
        same((view.outcome, view.code), ("interrupted", "turn.lease"), "it was interrupted")
        async with refused(TurnClosed, "its worker wakes up too late", reason="interrupted"):
            await s.queue.append(dead, commit_id(dead, "late"), [step()])
        await s.check_session(session)


@check(
    "a resume that waits is judged again as it opens: what holds no more ends refused, unlogged",
    "RSM-12",
)
async def judged_twice(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    for holds in (True, False):
        session, _ = await cut_session(s)
        before = await s.admit(session)
        waiting = await s.admit(session, resumes=1)
        behind = await s.admit(session)
        same(waiting.status, "queued", "it waits behind another turn")
        if holds:
            await s.queue.cancel(before.turn_id, s.owner)
        else:
            claim = await s.claim()
            await s.open(claim)
            await s.end(claim)
        claim = await s.claim()
        same(claim.turn_id, waiting.turn_id, "then it is its turn")
        if holds:
            same(await s.open(claim), 2, "a turn that never opened was not in its way")
            continue
        seq = (await s.check_session(session)).seq
        fields = {"session": session, "turn": 1, "reason": "superseded"}
        async with refused(NotResumable, "one that did is", **fields):
            await s.queue.open(claim, commit_id(claim, "open"), [started(claim)])
        view = await s.view(waiting)
        same((view.status, view.code, view.number), ("refused", CODE, None), "it ended so")
        same((view.holder, view.failure), (None, "superseded"), "nobody holds it, and it says why")
        same((await s.check_session(session)).seq, seq, "nothing of it is in the log")
        same((await s.view(behind)).status, "ready", "the next turn may go")
        async with refused(NotResumable, "a repeat is told the same", **fields):
            await s.queue.open(claim, commit_id(claim, "open"), [started(claim)])


@check("a resume of a turn that is not over is busy, and under interrupt ends it and goes on from it")
async def unfinished(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    session = claim.session_id
    for on_busy in ("enqueue", "reject"):
        async with refused(SessionBusy, f"under {on_busy}", turn=str(claim.turn_id)):
            await s.admit(session, resumes=1, on_busy=on_busy)
    waiting = await s.admit(session)
    new = await s.admit(session, resumes=1, on_busy="interrupt")
    same((new.status, dict(new.superseded)), ("ready", {claim.turn_id: s.worker}), "it goes next")
    view = await s.view(claim)
    same((view.outcome, view.code), ("cancelled", "turn.superseded"), "what it continues was ended")
    same((await s.view(waiting)).status, "cancelled", "and so was what waited")
    opened = await s.claim()
    same((opened.turn_id, await s.open(opened)), (new.turn_id, 2), "and it opens")
    again = await s.admit(session, resumes=1, on_busy="interrupt")
    same((again.status, (await s.view(new)).outcome), ("ready", "cancelled"), "a resume makes way likewise")
    await s.check_session(session)


@check("an interrupting resume that is refused ends nothing")
async def refused_interruption(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    replied = await s.open_turn()
    await s.reply(replied)
    waiting = await s.admit(replied.session_id)
    async with refused(NotResumable, "a stored reply answers it", reason="finished"):
        await s.admit(replied.session_id, resumes=1, on_busy="interrupt")
    same((await s.view(replied)).status, "running", "its turn goes on")
    same((await s.view(waiting)).status, "queued", "what waits waits")
    session, _ = await cut_session(s)
    other = (await begin(s, s.admission(session))).claim
    async with refused(NotResumable, "another user's turn is open", reason="superseded"):
        await s.admit(session, resumes=1, on_busy="interrupt")
    same((await s.view(other)).is_open, True, "it stays open")
    await s.check_session(session)


@check(
    "a host's admission is shown what a turn resumes, and a refused resume counts nothing", "RSM-17", "RSM-43"
)
async def hooked(subject: TurnQueueSubject) -> None:
    s, hook = await stage(subject), Counting()
    session, _ = await cut_session(s)
    async with refused(NotResumable, "not this one", reason="missing"):
        await s.queue.admit(s.admission(session, resumes=7), s.limits, admit=hook)
    async with refused(NotResumable, "nor this one", reason="missing"):
        await begin(s, s.admission(session, resumes=7), admit=hook)
    same(hook.admitted, [], "it counted neither")
    await past(s, session, "failed", resumes=1, key="resume:1")
    plain = s.admission(session)
    resume = s.admission(session, resumes=1)
    await s.queue.admit(resume, s.limits, admit=hook)
    await s.queue.admit(plain, s.limits, admit=hook)
    same([turn.resumes for turn in hook.admitted], [1, None], "and is shown it of a resume alone")


@check("of resumes of one turn at once one opens: equal ones are duplicates, others busy", "RSM-12", "RSM-40")
async def at_once(subject: TurnQueueSubject) -> None:
    s, other = await stage(subject), await subject.open()
    for key, error in (("resume:1", TurnDuplicate), (None, SessionBusy)):
        session, _ = await cut_session(s)
        asked = [s.admission(session, key=key, resumes=1) for _ in range(8)]
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
        same(sum(isinstance(a, Begun) for a in answers), 1, "one was opened")
        same(sum(isinstance(a, error) for a in answers), 7, f"the others met {error.__name__}")
        s.admitted[session] += [a.claim.turn_id for a in answers if isinstance(a, Begun)]
        same((await s.check_session(session)).turns, 2, "and nothing else was opened")


@check("of resumes of one turn that are queued at once one answers, and the others end refused", "RSM-10")
async def queued_at_once(subject: TurnQueueSubject) -> None:
    s, other = await stage(subject), await subject.open()
    session, _ = await cut_session(s)
    asked = [s.admission(session, resumes=1) for _ in range(4)]
    answers = await outcomes(
        [(s.queue if n % 2 else other).admit(each, s.limits) for n, each in enumerate(asked)]
    )
    require(all(isinstance(a, Receipt) for a in answers), "each is admitted: those before it may fail")
    s.admitted[session] += [a.turn_id for a in answers]
    claim = await s.claim()
    same(await s.open(claim), 2, "the first one opens")
    await s.end(claim)
    for _ in range(3):
        claim = await s.claim()
        async with refused(NotResumable, "the turn has its answer", reason="superseded"):
            await s.open(claim)
    same((await s.check_session(session)).turns, 2, "nothing else was opened")


CHECKS: Final = checks_of(globals())
