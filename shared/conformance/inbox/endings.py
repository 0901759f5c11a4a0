"""Checks of the inbox: what becomes of an inbox turn's items when it ends, whoever ends it."""

from __future__ import annotations

from typing import Any, Final

from shared.conformance.check import check, checks_of, refused, require, same
from shared.conformance.inbox.stage import InboxStage, InboxSubject, inbox_stage
from shared.conformance.turn_stage import LEASE_S, commit_id, ended, step
from shared.domain.errors import TurnClosed
from shared.domain.ids import SessionId
from shared.sessions.records import draft
from shared.turns.queue import Ending, Outcome

NOTE: Final = draft("note.added", {"text": "x"})


@check("items are done when their turn ends completed, partial or cancelled", "INB-12")
async def done(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    endings: tuple[Outcome, ...] = ("completed", "partial", "cancelled")
    for outcome in endings:
        session = await s.session()
        answer = await s.end(await s.opened(session, "one", "two"), outcome)
        same((answer.pending, answer.promoted), (0, None), f"after {outcome} nothing waits")
        same(
            (await s.waiting(session), await s.dropped(session)), ([], []), "nothing came back or was dropped"
        )
        await s.check(session)
    session = await s.session()
    claim = await s.opened(session, "one")
    cancelled = await s.turns.queue.cancel(claim.turn_id, s.turns.owner)
    same((cancelled.took_effect, await s.waiting(session)), (True, []), "so are those of a cancelled turn")
    session = await s.session()
    claim = await s.opened(session, "one")
    await s.turns.reply(claim)
    await s.turns.queue.cancel(claim.turn_id, s.turns.owner)
    same(await s.waiting(session), [], "and those whose answer was stored")
    await s.check(session)


@check("items of a turn that failed or was interrupted wait again, and its next turn follows", "INB-13")
async def back(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    endings: tuple[Outcome, ...] = ("failed", "interrupted")
    for outcome in endings:
        session = await s.session()
        claim = await s.opened(session, "one", "two")
        await s.deliver(session, "three")
        answer = await s.end(claim, outcome, step())
        same(await s.attempts(session), {"one": 1, "two": 1, "three": 0}, f"after {outcome}, oldest first")
        view = await s.view(answer.promoted)
        same((answer.pending, view.origin, view.status), (3, "inbox", "ready"), "the next turn is ready")
        repeat = await s.turns.queue.end(
            claim, commit_id(claim, "end"), [step(), ended(outcome)], Ending(outcome)
        )
        same(repeat.pending, 3, "a repeat of the end counts nothing again")
        same((await s.attempts(session))["one"], 1, "not even an attempt")
        claim = await s.open(await s.claim(), ["one", "two", "three"])
        await s.end(claim)
        await s.check(session)


@check("an item is dropped with a record after as many claims as may fail", "INB-14")
async def spent(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    first = await s.opened(session, "one", "two")
    await s.end(first, "failed")
    await s.deliver(session, "three")
    claim = await s.open(await s.claim(), ["one", "two", "three"])
    answer = await s.end(claim, "failed")
    same((answer.pending, await s.attempts(session)), (1, {"three": 1}), "what may be tried again waits")
    records = await s.dropped(session)
    found = [(r.turn, r.data) for r in records]
    same(
        found,
        [(None, {"v": 1, "id": "one", "attempts": 2}), (None, {"v": 1, "id": "two", "attempts": 2})],
        "the others are given up, outside any turn",
    )
    *_, end = await s.turns.log.read(session, kinds=["turn.ended"])
    same([r.seq for r in records], [end.seq + 1, end.seq + 2], "right after the turn's end")
    same((await s.deliver(session, "one")).duplicate, True, "and are not delivered again")
    await s.check(session)


async def _interrupted(subject: InboxSubject, *, counts: bool | None, wrote: bool) -> dict[str, int]:
    """How often an item was tried after its turn was interrupted."""
    s = await inbox_stage(subject)
    session = await s.session()
    claim = await s.opened(session, "one")
    if wrote:
        await s.turns.queue.append(claim, "a", [step()])
    await s.end(claim, "interrupted", counts=counts)
    await s.check(session)
    return await s.attempts(session)


@check("an interrupted turn counts an attempt if it wrote anything after it opened", "INB-15")
async def unwritten(subject: InboxSubject) -> None:
    same(await _interrupted(subject, counts=None, wrote=False), {"one": 0}, "it wrote nothing")
    same(await _interrupted(subject, counts=None, wrote=True), {"one": 1}, "it wrote")
    same(await _interrupted(subject, counts=True, wrote=False), {"one": 1}, "it interrupted itself")
    same(await _interrupted(subject, counts=False, wrote=True), {"one": 0}, "its holder knows better")
    s = await inbox_stage(subject)
    session = await s.session()
    claim = await s.opened(session, "one")
    await s.deliver(session, "two")
    await s.turns.log.commit(session, s.turns.owner, [NOTE])
    await s.end(claim, "interrupted")
    same(await s.attempts(session), {"one": 0, "two": 0}, "what others wrote meanwhile is not its own")
    claim = await s.open(await s.claim(), ["one", "two"])
    await s.end(claim, "failed", counts=False)
    same(await s.attempts(session), {"one": 1, "two": 1}, "a failed turn counts, whatever is said")


@check("a turn that is reaped for its holder's sake counts an attempt, written or not", "INB-16")
async def reaped(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    # The queue's own policy: the user's turn before it gives the inbox turn its rule for lost workers.
    await _as_a_user(s, session, on_worker_loss="interrupt")
    claim = await s.opened(session, "one")
    await s.turns.lose_leases()
    same([v.turn_id for v in await s.turns.reap()], [claim.turn_id], "its lease passed: it is reaped")
    view = await s.view(claim.turn_id)
    same((view.outcome, view.code), ("interrupted", "turn.lease"), "as interrupted")
    same(await s.attempts(session), {"one": 1}, "an attempt is counted")
    again = await s.open(await s.claim(), ["one"])
    await s.turns.lose_leases()
    await s.turns.reap()
    same([r.data["id"] for r in await s.dropped(session)], ["one"], "the second one drops the item")
    same((await s.view(again.turn_id)).status, "ended", "and the session is free")
    same(await s.turns.claims(), [], "nothing is owed")
    await s.check(session)


async def _as_a_user(s: InboxStage, session: SessionId, **given: Any) -> None:
    await s.turns.admit(session, **given)
    claim = await s.turns.claim()
    await s.turns.open(claim)
    await s.turns.end(claim)


@check("cancelling an inbox turn that nobody may go on with reaps it: its items wait again", "INB-17")
async def cancelled_dead(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    await _as_a_user(s, session, on_worker_loss="interrupt")
    claim = await s.opened(session, "one")
    await s.turns.lose_leases()
    answer = await s.turns.queue.cancel(claim.turn_id, s.turns.owner)
    same((answer.took_effect, answer.code), (False, "turn.lease"), "that is no cancel")
    same(await s.attempts(session), {"one": 1}, "the item waits again, once tried")
    claim = await s.open(await s.claim(), ["one"])
    await s.turns.release(claim)
    answer = await s.turns.queue.cancel(claim.turn_id, s.turns.owner)
    same(
        (answer.took_effect, await s.waiting(session)),
        (True, []),
        "one that goes on in a worker is cancelled",
    )
    await s.check(session)


@check("an inbox turn that was never opened is not cancelled, and its items wait on", "INB-12")
async def unopened(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    given = await s.deliver(session, "one")
    assert given.turn_id is not None
    for _ in range(2):
        answer = await s.turns.queue.cancel(given.turn_id, s.turns.owner)
        same((answer.took_effect, answer.reason), (False, "inbox"), "nobody's turn is cancelled")
        same(await s.waiting(session), ["one"], "and the item waits on")
        require((await s.view(given.turn_id)).status in ("ready", "running"), "its turn is still owed")
        await s.turns.claims()
    await s.check(session)


@check("an inbox turn held without a lease whose process is gone counts an attempt", "INB-16")
async def abandoned(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    await s.deliver(session, "one")
    admission = s.turns.admission(session, origin="inbox", claims=("one",))
    begun = await s.turns.queue.begin(
        admission, s.turns.worker, lease_s=None, commit_id="b", drafts=[NOTE], limits=s.turns.limits
    )
    same(await s.turns.queue.abandon(admission.turn_id, begun.claim.fence), True, "it is closed")
    same(await s.attempts(session), {"one": 1}, "and its item was tried")


@check(
    "an inbox turn whose tries are spent before it opens counts for what waits, so none follows for ever",
    "INB-14",
)
async def spent_unopened(subject: InboxSubject) -> None:
    s = await inbox_stage(subject)
    session = await s.session()
    await s.deliver(session, "one")
    for tries in (1, 2):
        claim = await s.claim()
        for _ in range(4):
            await s.turns.lose_leases()
            taken = await s.turns.claims(worker=subject.new_worker(), lease_s=LEASE_S / 60)
            if not taken:
                break
        await s.turns.queue.reap(limit=1_000)
        view = await s.view(claim.turn_id)
        same((view.status, view.code, view.number), ("ended", "turn.lease", None), "it was given up unopened")
        expected = {"one": 1} if tries == 1 else {}
        same(await s.attempts(session), expected, f"after {tries}")
    same([r.data["id"] for r in await s.dropped(session)], ["one"], "the item is given up with a record")
    same(await s.turns.claims(), [], "and no turn follows")
    async with refused(TurnClosed, "nothing opens"):
        await s.open(claim, ["one"])


CHECKS: Final = checks_of(globals())
