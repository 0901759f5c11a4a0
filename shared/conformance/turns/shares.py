"""Checks of the turn queue: shares of the background, the oldest first, bounds over all, and moved revisions."""

from __future__ import annotations

from typing import Final

from shared.conformance.check import check, checks_of, refused, require, same
from shared.conformance.turn_stage import LEASE_S, TAKEOVER_LEASE_S, TurnQueueSubject, stage
from shared.domain.errors import QueueFull
from shared.turns.queue import PRIORITIES, Claim

BACKGROUND: Final = PRIORITIES["background"]


def _priorities(claims: list[Claim]) -> list[int]:
    return sorted(c.priority for c in claims)


@check("a claim takes no more background turns than it has places for, and leaves none idle", "DST-15")
async def background_share(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    for priority in (BACKGROUND, BACKGROUND, BACKGROUND, 1, 0):
        await s.admit(await s.session(), priority=priority)
    same((await s.claim(background_places=0)).priority, 0, "the urgent one first")
    got = list(await s.claims(places=4, background_places=2))
    same(_priorities(got), [1, BACKGROUND, BACKGROUND], "two of the background beside the normal one")
    same(list(await s.claims(places=4, background_places=0)), [], "the last one waits for its place")
    same(_priorities(list(await s.claims(places=4))), [BACKGROUND], "without a bound it is taken")


@check("owners who have background turns only keep nobody else's turns waiting", "DST-14", "DST-15")
async def background_owners(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    for _ in range(20):
        owner = subject.new_owner()
        await s.admit(await s.session(owner), owner=owner, priority=BACKGROUND)
    last = subject.new_owner()
    urgent = await s.admit(await s.session(last), owner=last)
    got = await s.claims(places=4, background_places=0)
    same([c.turn_id for c in got], [urgent.turn_id], "the twenty-first owner's turn")


@check("a lost background turn is taken over whatever its share, and leaves less for the waiting", "DST-15")
async def background_lost(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    lost = await s.open_turn(priority=BACKGROUND)
    await s.lose_leases()
    await s.admit(await s.session(), priority=BACKGROUND)
    got = await s.claims(worker=subject.new_worker(), places=4, background_places=1, lease_s=TAKEOVER_LEASE_S)
    same([(c.turn_id, c.lost) for c in got], [(lost.turn_id, True)], "the lost one only")


@check("a claim that begins with the oldest takes it before more urgent turns of any owner", "DST-15")
async def oldest_first(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    owners = [subject.new_owner() for _ in range(5)]
    oldest = await s.admit(await s.session(owners[4]), owner=owners[4], priority=BACKGROUND)
    await subject.advance(60.0)
    for owner in owners[:4]:
        await s.admit(await s.session(owner), owner=owner, priority=0)
    same((await s.claim(background_places=0, oldest_first=True)).priority, 0, "unless it has no place")
    got = await s.claims(places=2, oldest_first=True)
    same(got[0].turn_id, oldest.turn_id, "the oldest one first")
    same(got[1].priority, 0, "then the rotation goes on")
    same([c.priority for c in await s.claims(places=3, oldest_first=True)], [0, 0], "and nothing is left")


@check("the oldest turn of an owner at its cap is passed over", "DST-14")
async def oldest_of_capped(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    await s.admit(await s.session())
    await s.claim()
    await s.admit(await s.session())
    await subject.advance(60.0)
    await subject.limit_owner(s.owner, running_max=1)
    other = subject.new_owner()
    younger = await s.admit(await s.session(other), owner=other)
    same((await s.claim(oldest_first=True, lease_s=LEASE_S)).turn_id, younger.turn_id, "the next oldest")


@check("a small owner's turns have half of every claim beside those of an owner with many", "DST-14")
async def ten_beside_many(subject: TurnQueueSubject) -> None:
    s = await stage(subject, queued_per_owner=1_000)
    small = subject.new_owner()
    for n in range(200):
        await s.admit(await s.session(), priority=n % 2)
    for _ in range(10):
        await s.admit(await s.session(small), owner=small, priority=1)
    cursor, mine = "", 0
    for claimed in range(1, 6):
        got = await s.claims(places=4, cursor=cursor)
        cursor = got[-1].owner
        mine += sum(c.owner == small for c in got)
        same(mine, min(10, claimed * 2), "half of every claim is the small owner's")


@check("a full system refuses what waits more, after the key, and stores nothing", "DST-16")
async def full(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session = await s.session()
    first = await s.admit(session, key="k")
    s.limits = type(s.limits)(attempts_max=3, is_full=True)
    async with refused(QueueFull, "no more", bound="queued turns in all"):
        await s.admit(session)
    again = await s.admit(session, key="k")
    same((again.turn_id, again.duplicate), (first.turn_id, True), "a repeat is answered all the same")
    s.limits = type(s.limits)(attempts_max=3)
    same((await s.admit(session)).position, 2, "the refused one took no position")
    require(await s.queue.count_waiting(100) >= 2, "what waits is counted")
    same(await s.queue.count_waiting(1), 1, "up to a limit")


@check("waiting turns of a revision that nobody serves are moved to another, in batches", "DST-26")
async def moved_revision(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    session, new = await s.session(), subject.new_revision()
    running = await s.admit(session)
    held = await s.claim()
    waiting = [await s.admit(session), *[await s.admit(await s.session()) for _ in range(2)]]
    same(await s.queue.move_revision(s.revision, new, limit=2), 2, "two at most")
    same(await s.queue.move_revision(s.revision, new, limit=2), 1, "then the rest")
    same(await s.queue.move_revision(s.revision, new, limit=2), 0, "then none")
    same({(await s.view(t)).agent_revision for t in waiting}, {new}, "those that waited")
    same((await s.view(running)).agent_revision, s.revision, "not the one that runs")
    same(list(await s.claims(places=4)), [], "nothing is left for the old revision")
    got = await s.claims(places=4, revisions=(new,))
    same({c.turn_id for c in got}, {t.turn_id for t in waiting[1:]}, "the new one's workers take them")
    same(held.turn_id, running.turn_id, "and the one that runs goes on")


CHECKS: Final = checks_of(globals())
