"""Checks of the turn queue: what a holder may write, its fence, its lease, and the tool ledger."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

from shared.conformance.check import check, checks_of, refused, require, same
from shared.conformance.turn_stage import (
    LEASE_S,
    Stage,
    TurnQueueSubject,
    commit_id,
    ended,
    fences,
    stage,
    started,
    step,
    with_fence,
)
from shared.domain.errors import FenceLost, InputTooLarge, TurnClosed
from shared.domain.ids import new_turn_id
from shared.sessions.records import OpenTurn, draft
from shared.turns.queue import CallEntry, CallState, Claim, Ending, Opened

Write = Callable[[Claim], Awaitable[object]]


@check("an open writes the first records, numbers the turn and names its fence at the head", "SES-36")
async def opening(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    await s.admit(session)
    claim = await s.claim()
    drafts = [started(claim), step()]
    same(await s.queue.open(claim, "c", drafts, title="Tea"), Opened("opened", 1, 2, 1), "the answer")
    head = await s.check_session(session)
    same(head.open, OpenTurn(claim.turn_id, claim.fence.epoch, claim.fence.token), "the head's open turn")
    same((head.turns, head.seq, head.title), (1, 2, "Tea"), "the head counts it and takes its title")
    same(await s.kinds(session), [(1, "turn.started"), (1, "step.started")], "its records carry its number")
    view = await s.view(claim)
    same(
        (view.status, view.number, view.is_open, view.recovering),
        ("running", 1, True, False),
        "the turn is open",
    )
    require(view.opened_at is not None, "since when is known")
    await s.end(claim)
    await s.admit(session)
    second = await s.claim()
    same(
        await s.queue.open(second, "c", [started(second)], title="Milk"),
        Opened("opened", 2, 4, 4),
        "the next one",
    )
    same((await s.check_session(session)).title, "Tea", "a title that is set stays")


@check("an open that is repeated after a lost answer is adopted and writes nothing")
async def adopting(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    for given in (commit_id(claim, "open"), "another"):
        again = await s.queue.open(claim, given, [started(claim)])
        same(again, Opened("adopted", 1, 1, 1), "the very claim had opened it")
    same(await s.kinds(claim.session_id), [(1, "turn.started")], "no second start is written")


@check("an open of a turn that another claim had opened takes it over and writes nothing", "SES-131")
async def taking_over(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    older = await s.open_turn()
    await s.queue.append(older, "step", [step()])
    await s.lose_leases()
    newer = await s.take_over()
    same(
        (await s.log.head(older.session_id, s.owner)).open, OpenTurn(older.turn_id, *_pair(older)), "not yet"
    )
    async with refused(FenceLost, "a claim alone may not write"):
        await s.queue.append(newer, "early", [step()])
    opened = await s.queue.open(newer, "open", [started(newer)])
    same(opened, Opened("took-over", 1, 2, 1), "the same number, no record")
    head = await s.check_session(older.session_id)
    same(head.open, OpenTurn(newer.turn_id, *_pair(newer)), "the head names the new fence")
    same(await s.queue.append(newer, "step", [step()]), 3, "commit ids of the older holder are forgotten")
    view = await s.view(newer)
    same((view.is_open, view.recovering), (True, False), "it is held again")


@check("a released open turn is taken over by the next claim, uncounted, and waits as recovering till then")
async def released_open_turn(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    same(await s.release(claim), True, "the holder gives it back")
    view = await s.view(claim)
    same((view.status, view.is_open, view.recovering), ("ready", True, True), "it stays open in the log")
    next_one = await s.claim(worker=subject.new_worker())
    same((next_one.lost, next_one.attempts, next_one.suspect), (False, 0, False), "no loss is counted")
    same((await s.queue.open(next_one, "open", [])).result, "took-over", "it goes on where it was")
    await s.end(next_one)
    await s.check_session(claim.session_id)


@check("a turn that was cancelled before it opened is gone for its holder", "SES-75")
async def open_cancelled(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    await s.admit(await s.session())
    claim = await s.claim()
    await s.queue.cancel(claim.turn_id, s.owner)
    async with refused(TurnClosed, "open finds it gone", reason="cancelled", turn=str(claim.turn_id)):
        await s.open(claim)
    same(await s.kinds(claim.session_id), [], "nothing is in the log")


@check("a deadline that passes before the turn opens ends it as expired, at its opening or by the sweep")
async def deadlines(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    sessions = [await s.session() for _ in range(3)]
    deadline = (await s.log.head(sessions[0], s.owner)).now + timedelta(seconds=LEASE_S / 2)
    by_open, by_sweep, opened = [await s.admit(one, deadline=deadline) for one in sessions]
    claims = {claim.turn_id: claim for claim in await s.claims(places=3)}
    await s.release(claims[by_sweep.turn_id])
    await s.open(claims[opened.turn_id])
    await subject.advance(LEASE_S / 2 + 1)
    async with refused(TurnClosed, "the deadline passed", reason="ended"):
        await s.open(claims[by_open.turn_id])
    require(await s.queue.expire(limit=1_000) >= 1, "the sweep says that it ended some")
    for turn in (by_open, by_sweep):
        view = await s.view(turn)
        same((view.status, view.outcome, view.code), ("expired", None, "turn.deadline"), "it is expired")
        same(await s.kinds(turn.session_id), [], "nothing of it is in the log")
    same((await s.view(opened)).status, "running", "an open turn has no deadline any more")


@check("an append stores the holder's records, and its repeat answers the first result")
async def appending(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    same(await s.queue.append(claim, "a", [step(1), step(2)]), 3, "the log's seq")
    await s.log.commit(claim.session_id, s.owner, [draft("note.added", {"n": 1})])
    same(await s.queue.append(claim, "a", [step(1), step(2)]), 3, "the first result, though others wrote")
    same(await s.queue.append(claim, "b", [step(3)]), 5, "others' records make no append fail")
    kinds = await s.kinds(claim.session_id)
    same(
        kinds[1:],
        [(1, "step.started")] * 2 + [(None, "note.added"), (1, "step.started")],
        "each once, in order",
    )
    records = [r.seq for r in await s.log.read(claim.session_id, turn=1, kinds=["step.started"])]
    same(records, [2, 3, 5], "they read back by turn and kind")
    await s.check_session(claim.session_id)


@check("a commit of a holder that is too large stores nothing")
async def oversized_append(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    large = draft("memory.message", {"text": "x" * (4 * 1024 * 1024 - 100)})
    async with refused(InputTooLarge, "more than 16 MiB", field="records"):
        await s.queue.append(claim, "a", [large] * 5, calls=[_call("1", "planned")])
    same(await s.kinds(claim.session_id), [(1, "turn.started")], "no record")
    same(list(await s.queue.calls(claim.session_id, claim.turn_id)), [], "no ledger line")


@check("a stale epoch, a stale token or a foreign turn writes nothing", "DST-09")
async def stale_fences(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim, other = await s.open_turn(), await s.open_turn()
    for stale in (
        with_fence(claim, epoch=claim.fence.epoch - 1),
        with_fence(claim, epoch=claim.fence.epoch + 1),
        with_fence(claim, token=uuid4()),
        replace(claim, fence=other.fence),
    ):
        await _refuse_all_writes(s, stale, FenceLost)
    await _refuse_all_writes(s, replace(claim, turn_id=new_turn_id()), TurnClosed, reason="removed")
    for held in (claim, other):
        await s.queue.append(held, "real", [step()])
        await s.check_session(held.session_id)


@check("an expired lease writes nothing, also while nobody has taken over", "DST-09", "SES-85")
async def expired_lease(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    await s.lose_leases()
    await _refuse_all_writes(s, claim, FenceLost)
    same((await s.queue.renew(fences(claim), LEASE_S)).lost, frozenset({claim.turn_id}), "no late renewal")
    await _refuse_all_writes(s, claim, FenceLost)


@check(
    "after another's claim the older holder writes nothing, before and after the takeover",
    "DST-09",
    "SES-101",
)
async def overtaken(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    older = await s.open_turn()
    await s.lose_leases()
    newer = await s.take_over()
    await _refuse_all_writes(s, older, FenceLost)
    await s.queue.open(newer, "open", [])
    await _refuse_all_writes(s, older, FenceLost)
    await s.queue.append(newer, "step", [step()])
    await s.end(newer)
    await _refuse_all_writes(s, older, TurnClosed, reason="ended")
    await s.check_session(older.session_id)


@check("the same worker's older claim is fenced by its newer one", "SES-101", "KIT-51")
async def same_worker_again(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    older = await s.open_turn()
    await s.release(older)
    newer = await s.claim()
    same((await s.queue.open(newer, "open", [])).result, "took-over", "the same worker has it again")
    await _refuse_all_writes(s, older, FenceLost)
    same(await s.release(older), False, "nor does the older claim free it")
    await s.end(newer)


@check("a write of a removed session is refused as removed", "SES-75")
async def removed(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    await s.queue.append(claim, "a", [step()], calls=[_call("1", "planned")])
    await s.log.remove(claim.session_id, s.owner)
    await _refuse_all_writes(s, claim, TurnClosed, reason="removed", logged=False)
    watched = await s.queue.watch(s.worker, fences(claim))
    same(
        (dict(watched.lost), dict(watched.orphans)),
        ({claim.turn_id: "removed"}, {}),
        "its process hears of it",
    )
    same((await s.queue.renew(fences(claim), LEASE_S)).lost, frozenset({claim.turn_id}), "no lease is left")
    same(list(await s.queue.calls(claim.session_id, claim.turn_id)), [], "no ledger is left")


@check("a release gives the turn back at once or later, and only under the fence that holds")
async def releasing(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    await s.admit(await s.session())
    claim = await s.claim()
    for stale in (with_fence(claim, epoch=0), with_fence(claim, token=uuid4())):
        same(await s.release(stale), False, "a stale fence frees nothing")
    same(await s.release(claim), True, "the holder gives it back")
    same(await s.release(claim), False, "only once")
    second = await s.claim()
    same(second.fence.epoch, claim.fence.epoch + 1, "it can be had at once")
    await s.lose_leases()
    same(await s.release(second), False, "a passed lease frees nothing")


@check("a renewal extends held leases and says which were lost, all in one call", "SES-92")
async def renewing(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    held, passed, cancelled = [await s.open_turn() for _ in range(3)]
    await s.queue.cancel(cancelled.turn_id, s.owner)
    await s.release(passed)
    head = await s.log.head(held.session_id, s.owner)
    unknown = new_turn_id()
    asked = dict(fences(held, passed, cancelled)) | {unknown: held.fence}
    for _ in range(3):
        await subject.advance(LEASE_S / 2)
        answer = await s.queue.renew(asked, LEASE_S)
        same(answer.renewed | answer.skipped, frozenset({held.turn_id}), "what is held is renewed")
        same(answer.lost, frozenset(asked.keys() - {held.turn_id}), "all else is lost")
    same(await s.queue.append(held, "late", [step()]), 2, "it writes three halves of a lease later")
    same((await s.queue.renew({}, LEASE_S)).lost, frozenset(), "none is none")
    same(head.revision + 1, (await s.log.head(held.session_id, s.owner)).revision, "no renewal is a revision")


@check("a renewal moves neither the revision nor the time of the last record", "SES-97")
async def silent_renewal(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    before = await s.log.head(claim.session_id, s.owner)
    await s.queue.renew(fences(claim), LEASE_S)
    after = await s.log.head(claim.session_id, s.owner)
    same(replace(after, now=before.now), before, "the head is as it was")


@check("a process hears which of its turns are lost and why, and what it owns without knowing", "SES-127")
async def watching(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    held, cancelled, done, moved, orphan, other = [await s.open_turn() for _ in range(6)]
    same(dict((await s.queue.watch(s.worker, fences(held))).lost), {}, "nothing is lost yet")
    await s.queue.cancel(cancelled.turn_id, s.owner)
    await s.end(done)
    await s.release(moved)
    await s.claim(worker=subject.new_worker())
    unopened = await s.admit(await s.session())
    waiting = await s.claim()
    await s.queue.cancel(unopened.turn_id, s.owner)
    mine = fences(held, cancelled, done, moved, waiting)
    watched = await s.queue.watch(s.worker, mine)
    expected = {
        cancelled.turn_id: "cancelled",
        done.turn_id: "ended",
        moved.turn_id: "lost",
        waiting.turn_id: "cancelled",
    }
    same(dict(watched.lost), expected, "each with its reason")
    same(dict(watched.orphans), dict(fences(orphan, other)), "what it did not name is its own too")
    await s.lose_leases()
    same(dict((await s.queue.watch(s.worker, {})).orphans), {}, "a passed lease is no property")


@check("a process hears that its turn was reaped", "SES-75")
async def watching_reaped(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn(on_worker_loss="interrupt")
    await s.lose_leases()
    same(dict((await s.queue.watch(s.worker, fences(claim))).lost), {}, "nobody took it yet")
    same([v.turn_id for v in await s.reap()], [claim.turn_id], "the sweep ends it")
    same(
        dict((await s.queue.watch(s.worker, fences(claim))).lost), {claim.turn_id: "interrupted"}, "it hears"
    )
    await _refuse_all_writes(s, claim, TurnClosed, reason="interrupted")


@check("the tool ledger stands as the commits said, in order, and a settled call stays settled")
async def ledger(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    planned = [_call("b", "planned", 2), _call("a", "planned", 1), _call("c", "planned", 3)]
    await s.queue.append(claim, "1", [step()], calls=planned)

    async def states() -> list[tuple[str, str, str | None]]:
        lines = await s.queue.calls(claim.session_id, claim.turn_id)
        return [(c.invocation_id, c.state, c.result) for c in lines]

    same(
        list(await s.queue.calls(claim.session_id, claim.turn_id)),
        [planned[n] for n in (1, 0, 2)],
        "by ordinal",
    )
    await s.queue.append(claim, "2", [], calls=[_call("a", "started", 1), _call("b", "done", 2, "first")])
    await s.queue.append(
        claim, "3", [], calls=[_call("a", "failed", 1, "no"), _call("b", "done", 2, "second")]
    )
    same(
        await states(),
        [("a", "failed", "no"), ("b", "done", "first"), ("c", "planned", None)],
        "b is settled",
    )
    await s.queue.append(claim, "3", [], calls=[_call("c", "done", 3, "a repeat writes nothing")])
    await s.queue.end(claim, "e", [ended()], Ending("completed"), calls=[_call("c", "unknown", 3)])
    same((await states())[2], ("c", "unknown", None), "an end settles what is left")
    other = await s.open_turn()
    same(list(await s.queue.calls(other.session_id, other.turn_id)), [], "each turn has its own")


def _pair(claim: Claim) -> tuple[int, UUID]:
    return claim.fence.epoch, claim.fence.token


def _call(name: str, state: CallState, ordinal: int = 1, result: str | None = None) -> CallEntry:
    return CallEntry(name, 1, ordinal, "tool", "digest", f"token-{name}", state, result)


async def _refuse_all_writes(
    s: Stage, claim: Claim, error: type[FenceLost], *, logged: bool = True, **fields: str
) -> None:
    """Require that open, append and end refuse this fence and store nothing."""
    before = await s.log.read(claim.session_id)
    writes: dict[str, Write] = {
        "open": lambda c: s.queue.open(c, uuid4().hex, [started(c)]),
        "append": lambda c: s.queue.append(c, uuid4().hex, [step()], calls=[_call("x", "planned")]),
        "end": lambda c: s.queue.end(c, uuid4().hex, [ended()], Ending("completed")),
    }
    for name, write in writes.items():
        async with refused(error, f"{name} under {claim.fence}", **fields):
            await write(claim)
    same(list(await s.log.read(claim.session_id)), list(before), "nothing is stored")
    same(list(await s.queue.calls(claim.session_id, claim.turn_id)), [], "nor in the ledger")
    if logged:
        await s.check_session(claim.session_id)


CHECKS: Final = checks_of(globals())
