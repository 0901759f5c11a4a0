"""Checks of the turn queue: ends, cancels and reaps, and what a pool owes."""

from __future__ import annotations

from typing import Any, Final

from shared.conformance.check import check, checks_of, outcomes, refused, require, same
from shared.conformance.turn_stage import (
    ATTEMPTS_MAX,
    Stage,
    TurnQueueSubject,
    commit_id,
    ended,
    seen,
    stage,
    started,
    step,
)
from shared.domain.errors import FenceLost, TurnClosed
from shared.domain.ids import WorkerId
from shared.turns.queue import Cancelled, Claim, Ended, Ending, Receipt, TurnView

DAY_S = 86_400.0


@check("an end closes the log, the row and the head, and makes the session's next turn ready", "SES-51")
async def ending(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    waiting = await s.admit(claim.session_id)
    closing = Ending("failed", code="model.auth", failure="no key", usage={"input_tokens": 3})
    answer = await s.queue.end(claim, "e", [step(), ended("failed")], closing)
    same(answer, Ended(3, waiting.turn_id, 0), "the log's seq, the turn that became ready, and no inbox item")
    view = await s.view(claim)
    same(
        (view.status, view.outcome, view.code, view.failure),
        ("ended", "failed", "model.auth", "no key"),
        "the row",
    )
    same((dict(view.usage), view.is_open, view.recovering), ({"input_tokens": 3}, False, False), "its usage")
    require(view.ended_at is not None and view.ended_at <= view.now, "its end has a time")
    head = await s.check_session(claim.session_id)
    same((head.open, head.turns), (None, 1), "no turn is open")
    same((await s.view(waiting)).status, "ready", "the next is ready")
    last = await s.open_turn()
    same((await s.end(last)).promoted, None, "nobody waits behind the last one")


@check("a repeated end answers its first result and stores nothing, also after the next turn opened")
async def repeated_end(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    waiting = await s.admit(claim.session_id)
    first = await s.end(claim)
    same(await s.end(claim), first, "at once: the same answer")
    second = await s.claim()
    same(second.turn_id, waiting.turn_id, "the next turn goes on")
    await s.open(second)
    await s.queue.append(second, "a", [step()])
    same((await s.end(claim)).seq, first.seq, "later: the seq of the first answer")
    head = await s.check_session(claim.session_id)
    same((head.seq, head.turns), (4, 2), "nothing was stored again")
    await s.end(second)
    same((await s.end(claim)).seq, first.seq, "and after the next one's end too")
    async with refused(TurnClosed, "another commit id is another end", reason="ended"):
        await s.queue.end(claim, "other", [ended()], Ending("completed"))


@check("of ends at once one is stored", "SES-148")
async def ends_at_once(subject: TurnQueueSubject) -> None:
    s, other = await stage(subject), await subject.open()
    for _ in range(3):
        claim = await s.open_turn()
        answers = await outcomes(
            [
                (s.queue if n % 2 else other).end(claim, f"e{n}", [ended()], Ending("completed"))
                for n in range(6)
            ]
        )
        same(sum(isinstance(a, Ended) for a in answers), 1, "one end is stored")
        same(sum(isinstance(a, TurnClosed) for a in answers), 5, "the others are told that it ended")
        await s.check_session(claim.session_id)


@check("a cancel and an end at once close the turn once, whichever comes first")
async def cancel_against_end(subject: TurnQueueSubject) -> None:
    s, other = await stage(subject), await subject.open()
    for cancel_first in (True, False) * 3:
        claim = await s.open_turn()
        calls: list[Any] = [other.cancel(claim.turn_id, s.owner), s.end(claim)]
        answers = await outcomes(calls if cancel_first else calls[::-1])
        cancelled = next(a for a in answers if isinstance(a, Cancelled))
        ended_by_holder = any(isinstance(a, Ended) for a in answers)
        same(cancelled.took_effect, not ended_by_holder, "one of them closed it")
        view = await s.view(claim)
        same(view.outcome, "completed" if ended_by_holder else "cancelled", "and its outcome is that one's")
        await s.check_session(claim.session_id)


@check(
    "an open turn is cancelled durably, and its holder is refused from then on",
    "SES-125",
    "SES-126",
    "SES-127",
)
async def cancel_open(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    waiting = await s.admit(claim.session_id)
    answer = await s.queue.cancel(claim.turn_id, s.owner)
    expected = Cancelled(True, "cancelled", "ended", "cancelled", None, s.worker, claim.session_id, 2)
    same(answer, expected, "the answer names the holder and the log's end")
    same(
        await s.kinds(claim.session_id), [(1, "turn.started"), (1, "turn.ended")], "every reader sees the end"
    )
    [last] = await s.log.read(claim.session_id, kinds=["turn.ended"])
    same(last.data["reason"], "cancelled", "with its reason")
    for write in (s.queue.append(claim, "a", [step()]), s.end(claim), s.queue.open(claim, "o", [])):
        async with refused(TurnClosed, "the holder's next write", reason="cancelled"):
            await write
    same((await s.view(waiting)).status, "ready", "the next turn goes on")
    await s.check_session(claim.session_id)


@check("a turn that is not open is cancelled at once, claimed or not, and nothing enters the log")
async def cancel_unopened(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    claimed, ready, queued = [await s.admit(session) for _ in range(3)]
    await s.claim()
    for turn, holder in ((queued, None), (claimed, s.worker), (ready, None)):
        answer = await s.queue.cancel(turn.turn_id, s.owner)
        same(
            (answer.took_effect, answer.reason, answer.status),
            (True, "cancelled", "cancelled"),
            "it is cancelled",
        )
        same(
            (answer.outcome, answer.holder, answer.after),
            (None, holder, 0),
            "its holder is named if it has one",
        )
        await s.check_session(session)
    same(await s.kinds(session), [], "nothing is in the log")
    same(list(await s.claims(places=5)), [], "no turn is left")


@check("a cancel of a finished turn changes nothing and says so")
async def cancel_finished(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    await s.end(claim)
    answer = await s.queue.cancel(claim.turn_id, s.owner)
    expected = Cancelled(False, "finished", "ended", "completed", None, None, claim.session_id, 2)
    same(answer, expected, "it had ended")
    await s.check_session(claim.session_id)


@check("a cancel that is repeated answers as the first did, and writes nothing", "SES-125")
async def cancel_repeated(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    opened, unopened = await s.open_turn(), await s.admit(await s.session())
    for turn, status in ((opened, "ended"), (unopened, "cancelled")):
        first = await s.queue.cancel(turn.turn_id, s.owner)
        same((first.took_effect, first.status), (True, status), "it is cancelled")
        again = await s.queue.cancel(turn.turn_id, s.owner)
        same((again.took_effect, again.reason, again.status), (True, "cancelled", status), "it still is")
        same(again.after, first.after, "nothing was written")
    await s.check_session(opened.session_id)


@check("a stored reply wins over a cancel: the turn ends with its outcome")
async def cancel_replied(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    for outcome in ("completed", "partial"):
        claim = await s.open_turn()
        await s.reply(claim, outcome)
        answer = await s.queue.cancel(claim.turn_id, s.owner)
        same((answer.took_effect, answer.reason), (False, "replied"), "it takes no effect")
        same((answer.status, answer.outcome), ("ended", outcome), "the reply's outcome is the turn's")
        async with refused(TurnClosed, "the holder finds it closed", reason="ended"):
            await s.end(claim)
        await s.check_session(claim.session_id)


@check("an earlier turn's reply ends no later turn")
async def reply_of_another_turn(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    first = await s.open_turn()
    await s.reply(first)
    await s.end(first)
    await s.admit(first.session_id)
    await s.open(await s.claim())
    second = s.admitted[first.session_id][1]
    answer = await s.queue.cancel(second, s.owner)
    same((answer.took_effect, answer.outcome), (True, "cancelled"), "the second turn has not replied")


@check("a dead turn under interrupt is reaped by a cancel, which takes no effect", "SES-128", "SES-129")
async def cancel_dead(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    by_cancel, by_sweep = [await s.open_turn(on_worker_loss="interrupt") for _ in range(2)]
    await s.lose_leases()
    view = await s.view(by_cancel)
    same((view.is_open, view.recovering), (False, False), "a turn nobody holds reads as not open")
    answer = await s.queue.cancel(by_cancel.turn_id, s.owner)
    same((answer.took_effect, answer.reason), (False, "reaped"), "it was dead")
    same((answer.outcome, answer.code), ("interrupted", "turn.lease"), "and ended so")
    [swept] = await s.reap()
    same(swept.turn_id, by_sweep.turn_id, "the sweep finds the other")
    same(
        (swept.status, swept.outcome, swept.code),
        ("ended", "interrupted", "turn.lease"),
        "and ends it the same way",
    )
    for claim in (by_cancel, by_sweep):
        [record] = await s.log.read(claim.session_id, kinds=["turn.ended"])
        same((record.data["reason"], record.data["code"]), ("interrupted", "turn.lease"), "in the log too")
        await s.check_session(claim.session_id)


@check("a lost turn under continue is still cancelled as one that could go on", "SES-121", "SES-131")
async def cancel_recovering(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    await s.lose_leases()
    view = await s.view(claim)
    same((view.is_open, view.recovering), (True, True), "it reads open, recovering")
    answer = await s.queue.cancel(claim.turn_id, s.owner)
    same((answer.took_effect, answer.outcome), (True, "cancelled"), "it is cancelled")
    released = await s.open_turn()
    await s.release(released)
    same((await s.queue.cancel(released.turn_id, s.owner)).outcome, "cancelled", "so is a released open one")
    for turn in (claim, released):
        same(await s.kinds(turn.session_id), [(1, "turn.started"), (1, "turn.ended")], "each ends in the log")
        await s.check_session(turn.session_id)


@check("a dead turn with a stored reply ends with the reply's outcome when it is reaped")
async def reap_replied(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn(on_worker_loss="interrupt")
    await s.reply(claim)
    await s.lose_leases()
    [view] = await s.reap()
    same((view.status, view.outcome, view.code), ("ended", "completed", None), "nothing of the reply is lost")
    await s.check_session(claim.session_id)


@check("a sweep reaps only what is dead, and promotes what waited behind it", "SES-123")
async def sweeping(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    dead = await s.open_turn(on_worker_loss="interrupt")
    waiting = await s.admit(dead.session_id)
    lost = await s.open_turn()
    await s.lose_leases()
    held = await s.open_turn(on_worker_loss="interrupt")
    same([v.turn_id for v in await s.reap()], [dead.turn_id], "neither a held turn nor one that may continue")
    same(await s.reap(), [], "a second sweep finds nothing")
    same([(await s.view(c)).status for c in (lost, held)], ["running"] * 2, "they are as they were")
    same((await s.view(waiting)).status, "ready", "the next turn of the session is ready")
    async with refused(FenceLost, "the lost one's holder may not write"):
        await s.queue.append(lost, "a", [step()])
    for claim in (dead, lost, held):
        await s.check_session(claim.session_id)


@check("a turn whose attempts are spent is cancelled as a reap, opened or not")
async def cancel_spent(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    for _ in range(ATTEMPTS_MAX):
        await s.lose_leases()
        claim = await s.take_over()
    await s.lose_leases()
    answer = await s.queue.cancel(claim.turn_id, s.owner)
    same((answer.took_effect, answer.code), (False, "turn.lease"), "it was dead")
    await s.check_session(claim.session_id)


@check(
    "a pool's backlog counts what is ready, queued and running, and names unserved revisions",
    "DST-26",
)
async def backlog(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session, newer = await s.session(), subject.new_revision()
    for _ in range(2):
        await s.admit(session)
    await s.open_turn(priority=0)
    for _ in range(3):
        await s.admit(await s.session(), agent_revision=newer)
    await subject.advance(400 * DAY_S)
    owed = await s.queue.backlog("turns", (s.revision,))
    require(owed.ready >= 4 and owed.queued >= 1 and owed.running >= 1, f"it counts all of these: {owed}")
    require(owed.oldest_due_s >= 400 * DAY_S, "the oldest due turn's age in seconds")
    same((owed.unserved.get(newer), owed.unserved.get(s.revision)), (3, None), "unserved revisions only")
    same(dict((await s.queue.backlog("turns")).unserved), {}, "none when no revision is named")
    empty = await s.queue.backlog("another")
    same((empty.ready, empty.oldest_due_s), (0, 0.0), "another pool owes nothing")
    await _cancel_all(s)


@check("a pool says whether a due turn waits for longer than it should")
async def overdue(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    turn = await s.admit(await s.session())
    waited = 800 * DAY_S
    same(await s.queue.has_overdue("turns", waited), False, "not yet")
    await subject.advance(waited + 60)
    same(await s.queue.has_overdue("turns", waited), True, "it waits for longer")
    same(await s.queue.has_overdue("another", waited), False, "not in another pool")
    await s.queue.cancel(turn.turn_id, s.owner)
    same(await s.queue.has_overdue("turns", waited), False, "a finished turn waits no more")


@check("a worker process is listed with its silence until it says that it is gone")
async def workers(subject: TurnQueueSubject) -> None:
    s = await stage(subject)

    async def row() -> dict[str, Any] | None:
        return next((dict(w) for w in await s.queue.workers() if w["id"] == s.worker), None)

    same(await row(), None, "nobody heard of it")
    await s.queue.seen(seen(s.worker, queues=("turns", "remember"), capacity=7))
    first = await row()
    require(first is not None, "it is listed")
    same((first or {})["queues"], ["turns", "remember"], "with its queues")
    await subject.advance(30)
    require(30 <= ((await row()) or {})["silent_s"] < 90, "its silence grows")
    await s.queue.seen(seen(s.worker, held=3, capacity=8, draining=True, lag_s=0.5, overloaded=True))
    again = await row() or {}
    same((again["held"], again["capacity"], again["draining"]), (3, 8, True), "what it says last holds")
    same((again["lag_s"], again["overloaded"]), (0.5, True), "with its lag")
    require(again["silent_s"] < 30, "it is heard again")
    for _ in range(2):
        await s.queue.gone(s.worker)
        same(await row(), None, "it is forgotten")


@check("a worker process that was killed is forgotten after a long silence, one that lives is not")
async def silent_workers(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    await s.queue.seen(seen(s.worker))
    await subject.advance(3_600)
    living = WorkerId(f"{s.worker}-living")
    await s.queue.seen(seen(living))
    same(await s.queue.forget_silent(7_200), 0, "nobody was silent for so long")
    require(await s.queue.forget_silent(1_800) >= 1, "the silent one is counted")
    listed = [w["id"] for w in await s.queue.workers()]
    same((s.worker in listed, living in listed), (False, True), "the one that was heard since stays")
    await s.queue.gone(living)


@check("a whole turn leaves exactly its own records, each once and in order")
async def whole_turn(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    for n in (1, 2):
        await s.queue.append(claim, commit_id(claim, f"step-{n}"), [step(n)], stepped=True)
    await s.reply(claim)
    await s.end(claim)
    kinds = ["turn.started", "step.started", "step.started", "turn.reply", "turn.ended"]
    same(await s.kinds(claim.session_id), [(1, kind) for kind in kinds], "the log")
    view: TurnView = await s.view(claim)
    same((view.status, view.outcome, view.epoch), ("ended", "completed", 1), "the row")
    later = await s.admit(claim.session_id)
    await _run(s, later)
    same((await s.check_session(claim.session_id)).turns, 2, "turns are numbered in the order they opened")


async def _run(s: Stage, turn: Receipt) -> None:
    claim: Claim = await s.claim()
    same(claim.turn_id, turn.turn_id, "the turn that waits")
    await s.queue.open(claim, "open", [started(claim)])
    await s.end(claim)


async def _cancel_all(s: Stage) -> None:
    for turns in s.admitted.values():
        for turn in turns:
            await s.queue.cancel(turn, s.owner)


CHECKS: Final = checks_of(globals())
