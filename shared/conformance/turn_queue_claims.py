"""Checks of the turn queue: claims, fair order over the owners, takeovers and attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from shared.conformance.check import check, checks_of, outcomes, require, same
from shared.conformance.turn_stage import (
    ATTEMPTS_MAX,
    LEASE_S,
    Stage,
    TurnQueueSubject,
    commit_id,
    fences,
    stage,
    step,
)
from shared.domain.ids import OwnerId, new_session_id
from shared.sessions.log import NewSession
from shared.turns.queue import ALIVE_LOSSES_FREE, Receipt


@check("a claim hands out all that is needed to open the turn, whole, and as copies")
async def what_a_claim_holds(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    message = {"text": "é \U0001f600", "n": 10**30, "list": [1]}
    command, meta = {"name": "go", "n": -(10**30)}, {"page": "home", "list": [1]}
    asked = s.admission(
        await s.session(),
        key="k",
        message=message,
        command=command,
        meta=meta,
        agent="tea",
        max_duration_s=2.5,
    )
    await s.queue.admit(asked, s.limits)
    message["list"] = []
    claim = await s.claim()
    same(
        (claim.turn_id, claim.session_id, claim.owner),
        (asked.turn_id, asked.session_id, s.owner),
        "whose it is",
    )
    same((claim.run_id, claim.key, claim.origin), (asked.run_id, "k", "user"), "where it comes from")
    same(claim.message, {"text": "é \U0001f600", "n": 10**30, "list": [1]}, "the message keeps every digit")
    same((claim.command, claim.meta), (command, meta), "command and meta too")
    same(
        (claim.agent, claim.agent_revision, claim.on_worker_loss),
        ("tea", s.revision, "continue"),
        "what runs it",
    )
    same((claim.attempts, claim.suspect, claim.lost), (0, False, False), "nobody tried it before")
    same((claim.number, claim.max_duration_s, claim.open_for_s), (None, 2.5, None), "it is not open")
    same((await s.view(claim)).status, "running", "it runs")


@check("a claim that says whether its session goes on from another's history is right", "SES-72")
async def inheriting(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    parent = await s.session()
    for inherit in (True, False):
        child = new_session_id()
        await s.log.fork(NewSession(child, s.owner), parent, inherit=inherit)
        await s.admit(child)
        claim = await s.claim()
        require(claim.inherits in (inherit, None), "a fork's claim says so, or leaves it to be looked up")


@check("a claim that tells its log's tail tells the one that the log has", "SES-72")
async def tails(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    for _ in range(2):
        await s.admit(session)
        claim = await s.claim()
        require(
            claim.tail in ((await s.log.head(session, s.owner)).tail, None),
            "it is the head's, or left to be looked up",
        )
        await s.open(claim)
        await s.end(claim)


@check(
    "each claim raises the epoch by one and draws a fresh token, also for the same worker",
    "DST-06",
    "SES-101",
)
async def fresh_fence(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    await s.admit(await s.session())
    claims = []
    for _ in range(4):
        claims.append(await s.claim())
        await s.release(claims[-1])
    same([c.fence.epoch for c in claims], [1, 2, 3, 4], "the epoch grows by one")
    same(len({c.fence.token for c in claims}), 4, "no token is drawn twice")
    same((await s.view(claims[0])).attempts, 0, "no release counts as an attempt")


@check("of claims at once none takes a turn that another took", "DST-06", "DST-07")
async def claims_at_once(subject: TurnQueueSubject) -> None:
    s, other = await stage(subject), await subject.open()
    turns = {(await s.admit(await s.session())).turn_id for _ in range(12)}
    requests = [s.request(worker=subject.new_worker(), places=3) for _ in range(8)]
    answers = await outcomes([(s.queue if n % 2 else other).claim(r) for n, r in enumerate(requests)])
    taken = [claim.turn_id for claims in answers for claim in claims]
    taken += [claim.turn_id for claim in await s.claims(places=20)]
    same(Counter(taken), Counter(turns), "each turn is claimed once")


@check(
    "a claim takes no more than its places, nothing that is not due, and no other revision's turn", "DST-26"
)
async def eligible(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    first, second = [await s.admit(await s.session()) for _ in range(2)]
    newer = subject.new_revision()
    unserved = await s.admit(await s.session(), agent_revision=newer)
    same(list(await s.claims(places=0)), [], "no place, no turn")
    same(list(await s.claims(pool="another")), [], "another pool has none")
    claim = await s.claim()
    same(claim.turn_id, first.turn_id, "the one admitted first")
    same(await s.release(claim, due_in_s=60), True, "it is due in a minute")
    same([c.turn_id for c in await s.claims(places=5)], [second.turn_id], "only the one that is due is taken")
    same(list(await s.claims(places=5)), [], "the other is not due")
    await subject.advance(61)
    same([c.turn_id for c in await s.claims(places=5)], [first.turn_id], "it is a minute later")
    same((await s.view(unserved)).status, "ready", "an unserved revision stays owed")
    same((await s.claim(revisions=(s.revision, newer))).turn_id, unserved.turn_id, "until a worker serves it")


@check("an owner's turns go by priority, then by their time of admission", "DST-15")
async def order_of_an_owner(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    turns = [await s.admit(await s.session(), priority=p) for p in (2, 1, 0, 1, 0)]
    got = [(await s.claim()).turn_id for _ in turns]
    same(got, [turns[n].turn_id for n in (2, 4, 1, 3, 0)], "urgent first, oldest first")


@check("places are shared evenly over the owners, and what one leaves goes to the others", "DST-14")
async def fair_shares(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    owners = await _owners_with(s, 40, 1, 3)
    shares = Counter(c.owner for c in await s.claims(places=9))
    same(
        [shares[o] for o in owners],
        [5, 1, 3],
        "small owners get theirs, the rest goes on to the deep backlog",
    )


@check("an owner with a deep backlog does not keep another's turn waiting", "DST-14")
async def deep_backlog(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    for small_first in (True, False):
        counts = (1, 60) if small_first else (60, 1)
        owners = await _owners_with(s, *counts)
        small = owners[counts.index(1)]
        cursor, waited = owners[0], 0
        while (claim := await s.claim(cursor=cursor)).owner != small:
            waited += 1
            require(waited <= 1, f"the small owner's turn waits for {waited} claims")
            cursor = claim.owner
        while await s.claims(places=100):
            pass  # what is left of the backlog


@check("the rotation goes on behind the cursor and comes round", "DST-14")
async def rotation(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    owners = await _owners_with(s, 2, 2, 2)
    cursor, order = "", []
    for _ in range(6):
        claim = await s.claim(cursor=cursor)
        order.append(claim.owner)
        cursor = claim.owner
    same(order, [*owners, *owners], "one place at a time is given to each owner in turn")


@check("an owner's running turns stay below its cap, and its own cap wins", "DST-14")
async def owner_cap(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    capped, other = await _owners_with(s, 6, 1)
    claims = await s.claims(places=10, running_per_owner=3)
    same(Counter(c.owner for c in claims), Counter({capped: 3, other: 1}), "the cap holds over one claim")
    same(list(await s.claims(places=10, running_per_owner=3)), [], "and over all")
    await subject.limit_owner(capped, running_max=4)
    same(len(await s.claims(places=10, running_per_owner=3)), 1, "the owner's own cap is higher")
    mine = [c for c in claims if c.owner == capped]
    await s.queue.cancel(mine[0].turn_id, capped)
    same(len(await s.claims(places=10, running_per_owner=3)), 1, "a turn that ended makes room")


@check("claims at once do not overshoot an owner's cap together", "DST-14")
async def cap_at_once(subject: TurnQueueSubject) -> None:
    s, other = await stage(subject), await subject.open()
    await _owners_with(s, 12)
    requests = [s.request(places=3, running_per_owner=5, worker=subject.new_worker()) for _ in range(6)]
    answers = await outcomes([(s.queue if n % 2 else other).claim(r) for n, r in enumerate(requests)])
    same(sum(map(len, answers)), 5, "five run, no more")


@check("many owners at their cap do not hide one with room")
async def behind_full_owners(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    owners = await _owners_with(s, *[2] * 17, 1)
    served = [c.owner for _ in range(2) for c in await s.claims(places=40, running_per_owner=1)]
    same(sorted(served), sorted(owners), "each owner is served once, those behind sixteen full ones too")
    same(list(await s.claims(places=40, running_per_owner=1)), [], "and none above its cap")


@check("a hint brings its owner to the front, and never its turn before the owner's earlier ones")
async def hints(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    first, second = subject.new_owner(), subject.new_owner()
    turns = [await _admit_for(s, owner) for owner in (first, second, second)]
    claim = await s.claim(hints=[turns[2].turn_id])
    same(claim.turn_id, turns[1].turn_id, "the hinted owner goes first, with its earlier turn")
    claim = await s.claim(hints=[turns[1].turn_id])
    same(claim.turn_id, turns[0].turn_id, "a hint of a turn that cannot be had changes nothing")
    await subject.limit_owner(second, running_max=1)
    same(list(await s.claims(hints=[turns[2].turn_id])), [], "a hint passes no cap")


@check("a lost turn is taken over only after its lease passed, oldest first, and before ready ones", "DST-06")
async def takeover(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    older = await s.open_turn()
    await subject.advance(LEASE_S / 4)
    newer = await s.open_turn()
    ready = await s.admit(await s.session())
    for seconds, expected in ((LEASE_S * 7 / 8, older), (LEASE_S / 4, newer)):
        await subject.advance(seconds)
        got = await s.claim(worker=subject.new_worker())
        same(got.turn_id, expected.turn_id, "the one whose lease passed")
        same((got.lost, got.fence.epoch, got.number), (True, 2, 1), "it says so, under a new fence")
        require((got.open_for_s or 0) > LEASE_S, "and for how long the turn is open")
    same((await s.claim()).turn_id, ready.turn_id, "then what is ready")
    for held in (older, newer):
        await s.check_session(held.session_id)


@check("of many lost turns those are taken first whose leases passed first", "DST-06")
async def oldest_first(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    lost = []
    for _ in range(4):
        lost.append(await s.open_turn())
        await subject.advance(LEASE_S / 10)
    renewed = await s.queue.renew(fences(lost[0]), LEASE_S)
    same(renewed.renewed, frozenset({lost[0].turn_id}), "the first one's lease is the last to pass")
    await s.lose_leases()
    got = [c.turn_id for _ in range(2) for c in await s.claims(places=2)]
    same(got, [lost[n].turn_id for n in (1, 2, 3, 0)], "in the order in which their leases passed")


@check("a held lease is not taken over, however often it is asked for", "DST-06")
async def no_early_takeover(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    for _ in range(3):
        await subject.advance(LEASE_S / 2)
        same(list(await s.claims(places=5)), [], "it is held")
        same((await s.queue.renew(fences(claim), LEASE_S)).renewed, frozenset({claim.turn_id}), "and renewed")


@check("a process takes as many lost turns as it may have suspects, and none when it may not", "DST-20")
async def suspects(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    for _ in range(4):
        await s.open_turn()
    ready = await s.admit(await s.session())
    await s.lose_leases()
    no_suspects = await s.claims(places=5, suspects_left=0)
    same([c.turn_id for c in no_suspects], [ready.turn_id], "with no suspect left only ready ones")
    same(list(await s.claims(places=5, takeovers=False)), [], "without takeovers none")
    same([c.lost for c in await s.claims(places=5, suspects_left=3)], [True] * 3, "three of the four")
    same(len(await s.claims(places=5, suspects_left=-1)), 0, "never less than none")
    same(len(await s.claims(places=5, worker=subject.new_worker())), 1, "another process takes the last")


@check("lost turns are outside an owner's cap: they are counted already")
async def takeover_over_cap(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    for _ in range(2):
        await s.open_turn()
    await s.admit(await s.session())
    await s.lose_leases()
    got = await s.claims(places=5, running_per_owner=2, worker=subject.new_worker())
    same([c.lost for c in got], [True, True], "a cap full of lost turns is no dead end")


@check("a lost turn under interrupt is claimed by nobody; what was never opened waits again", "SES-131")
async def interrupt_rows(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    opened = await s.open_turn(on_worker_loss="interrupt")
    await s.admit(await s.session(), on_worker_loss="interrupt")
    unopened = await s.claim()
    await s.lose_leases()
    same(list(await s.claims(places=5)), [], "neither is claimed past its lease")
    reaped = {v.turn_id: v for v in await s.reap()}
    same(
        (reaped[opened.turn_id].outcome, reaped[opened.turn_id].code),
        ("interrupted", "turn.lease"),
        "it ended",
    )
    same(reaped[unopened.turn_id].status, "ready", "nothing of the other is in the log: it waits again")
    again = await s.claim()
    same((again.turn_id, again.suspect, again.attempts), (unopened.turn_id, True, 0), "as a suspect")


@check("a process that is gone: the first loss is free and marks the turn, each next one counts", "DST-20")
async def gone_holders(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    counted = []
    for _ in range(ATTEMPTS_MAX):
        await s.lose_leases()
        claim = await s.take_over()
        counted.append((claim.attempts, claim.suspect))
    same(counted, [(0, True), (1, True), (2, True)], "three more processes may try")
    await s.lose_leases()
    same(list(await s.claims(places=5)), [], "the fourth that died was the last")
    [view] = await s.reap()
    same((view.status, view.outcome, view.code), ("ended", "interrupted", "turn.lease"), "the sweep ends it")
    await s.check_session(claim.session_id)


@check("a process that lives: ten losses in a row are free, then each counts", "DST-20")
async def living_holders(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    await s.open_turn()
    holder = s.worker
    counted = []
    for _ in range(ALIVE_LOSSES_FREE + 2):
        await s.lose_leases()
        taker = subject.new_worker()
        claim = await s.take_over(worker=taker, living_holder=holder)
        holder = taker
        counted.append((claim.attempts, claim.suspect))
    free: list[tuple[int, bool]] = [(0, False)] * ALIVE_LOSSES_FREE
    same(counted, [*free, (1, False), (2, False)], "no suspicion falls on it")
    await s.lose_leases()
    same(list(await s.claims(places=5)), [], "then it is spent too")
    same([v.code for v in await s.reap()], ["turn.lease"], "and ended")


@check("a whole step resets attempts and suspicion", "DST-20")
async def a_step_resets(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    for n in range(ATTEMPTS_MAX):
        counted = []
        for _ in range(2):
            await s.lose_leases()
            claim = await s.take_over()
            counted.append((claim.attempts, claim.suspect))
        same(counted, [(0, True), (1, True)], f"losses after {n} steps count from the last step on")
        await s.queue.open(claim, commit_id(claim, "open"), [])
        await s.queue.append(claim, commit_id(claim, "record"), [step()])
        same((await s.view(claim)).attempts, 1, "a record alone resets nothing")
        await s.queue.append(claim, commit_id(claim, "step"), [step()], stepped=True)
        same((await s.view(claim)).attempts, 0, "nothing is counted against it")


@check("a turn that kills every process before it opens ends without a record", "DST-20")
async def spent_unopened(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    await s.admit(session)
    await s.admit(session)
    await s.claim()
    for _ in range(ATTEMPTS_MAX):
        await s.lose_leases()
        await s.take_over()
    await s.lose_leases()
    same(list(await s.claims(places=5)), [], "it is spent")
    [view] = await s.reap()
    same((view.status, view.outcome, view.code), ("ended", "interrupted", "turn.lease"), "it ends so")
    same((view.number, view.attempts), (None, ATTEMPTS_MAX), "with the last loss counted")
    same(await s.kinds(session), [], "nothing of it is in the log")
    same((await s.claim()).session_id, session, "the next turn of the session goes on")
    await s.check_session(session)


@check("a turn that nobody tried to continue for an hour is ended, not taken over")
async def abandoned(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    await s.lose_leases()
    view = await s.view(claim)
    same(
        (view.is_open, view.recovering), (True, True), "an unheld turn under continue reads open, recovering"
    )
    await subject.advance(3601)
    same(list(await s.claims(places=5)), [], "it is too old")
    same([(v.outcome, v.code) for v in await s.reap()], [("interrupted", "turn.lease")], "the sweep ends it")
    same((await s.log.head(claim.session_id, s.owner)).open, None, "the session is free")


async def _owners_with(s: Stage, *counts: int) -> Sequence[OwnerId]:
    """Make an owner with so many turns, each in a session of its own, for every count."""
    owners = [s.subject.new_owner() for _ in counts]
    for owner, count in zip(owners, counts, strict=True):
        for _ in range(count):
            await _admit_for(s, owner)
    return owners


async def _admit_for(s: Stage, owner: OwnerId) -> Receipt:
    return await s.admit(await s.session(owner), owner=owner)


CHECKS: Final = checks_of(globals())
