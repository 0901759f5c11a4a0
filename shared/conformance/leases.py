"""The kit of named leases: what any adapter of :class:`shared.leases.port.Leases` must show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol
from uuid import uuid4

from shared.conformance.check import ConformanceCheck, check, checks_of, outcomes, refused, require, same
from shared.domain.errors import LeaseHeld
from shared.leases.fence import Fence
from shared.leases.port import Leases, NamedLease

LEASE_S = 60.0


class LeasesSubject(Protocol):
    """An adapter under test."""

    async def open(self) -> Leases:
        """Return a new handle over the same data; the subject closes it in the end."""
        ...

    def new_name(self) -> str:
        """Return the name of a lease that nobody has."""
        ...

    async def advance(self, seconds: float) -> None:
        """Let this much time pass for the leases named by this subject (or move their stored ends back by it)."""
        ...


def leases_conformance(subject: LeasesSubject) -> Sequence[ConformanceCheck]:
    """Return the checks of named leases for this subject. Each uses names of its own."""
    return [each.on(subject) for each in CHECKS]


@check("a free lease is had, and held against others and its own holder")
async def free_lease(subject: LeasesSubject) -> None:
    leases, name = await subject.open(), subject.new_name()
    held = await leases.acquire(name, "one", LEASE_S)
    same((held.name, held.lease_s), (name, LEASE_S), "the lease names what was asked for")
    for holder in ("two", "one"):
        try:
            await leases.acquire(name, holder, LEASE_S)
        except LeaseHeld as error:
            left = error.fields["expires_in_s"]
            require(0 < left <= LEASE_S, f"expires_in_s is the rest of the lease, not {left}")
        else:
            require(False, f"a held lease is not given to {holder}")


@check("of many acquisitions at once exactly one has the lease")
async def one_winner(subject: LeasesSubject) -> None:
    handles, name = [await subject.open(), await subject.open()], subject.new_name()
    answers = await outcomes([handles[n % 2].acquire(name, f"holder-{n}", LEASE_S) for n in range(20)])
    same(sum(isinstance(a, NamedLease) for a in answers), 1, "one acquisition wins")
    same(sum(isinstance(a, LeaseHeld) for a in answers), 19, "all others are told that it is held")


@check("an acquisition raises the epoch and draws a fresh token, also for the same holder", "KIT-51")
async def fresh_fence(subject: LeasesSubject) -> None:
    leases, name = await subject.open(), subject.new_name()
    fences = []
    for _ in range(3):
        fences.append((await leases.acquire(name, "one", LEASE_S)).fence)
        await subject.advance(LEASE_S + 1)
    same([f.epoch for f in fences], [1, 2, 3], "the epoch grows by one each time")
    same(len({f.token for f in fences}), 3, "no token is used twice")


@check("the older holder of the same name is fenced after a new acquisition", "KIT-51")
async def older_holder_is_fenced(subject: LeasesSubject) -> None:
    leases, name = await subject.open(), subject.new_name()
    older = await leases.acquire(name, "one", LEASE_S)
    await subject.advance(LEASE_S + 1)
    newer = await leases.acquire(name, "one", LEASE_S)
    same(await leases.renew(older), False, "the older lease is not renewed")
    same(await leases.release(older), False, "the older lease releases nothing")
    same(await leases.renew(newer), True, "the newer lease is untouched")


@check("an epoch alone or a token alone is no fence")
async def both_parts_of_the_fence(subject: LeasesSubject) -> None:
    leases, name = await subject.open(), subject.new_name()
    held = await leases.acquire(name, "one", LEASE_S)
    for forged in (Fence(held.fence.epoch, uuid4()), Fence(held.fence.epoch + 1, held.fence.token)):
        same(await leases.renew(replace(held, fence=forged)), False, f"{forged} renews nothing")
        same(await leases.release(replace(held, fence=forged)), False, f"{forged} releases nothing")
    same(await leases.renew(held), True, "the real fence still holds")


@check("a renewal extends a lease that is still held")
async def renewal(subject: LeasesSubject) -> None:
    leases, name = await subject.open(), subject.new_name()
    held = await leases.acquire(name, "one", LEASE_S)
    for _ in range(3):
        await subject.advance(LEASE_S / 2)
        same(await leases.renew(held), True, "a renewal within the lease succeeds")
    async with refused(LeaseHeld, "it is still held after three halves of its length", name=name):
        await leases.acquire(name, "two", LEASE_S)


@check("a lease that passed is not renewed, also while nobody took it")
async def no_late_renewal(subject: LeasesSubject) -> None:
    leases, name = await subject.open(), subject.new_name()
    held = await leases.acquire(name, "one", LEASE_S)
    await subject.advance(LEASE_S + 1)
    same(await leases.renew(held), False, "a passed lease is lost")
    next_one = await leases.acquire(name, "two", LEASE_S)
    same(next_one.fence.epoch, held.fence.epoch + 1, "and free for the next")


@check("a release frees the lease at once and only once")
async def release(subject: LeasesSubject) -> None:
    leases, name = await subject.open(), subject.new_name()
    held = await leases.acquire(name, "one", LEASE_S)
    same(await leases.release(held), True, "the holder frees its lease")
    same(await leases.release(held), False, "a second release frees nothing")
    same(await leases.renew(held), False, "a released lease is not renewed")
    next_one = await leases.acquire(name, "two", LEASE_S)
    require(next_one.fence.epoch > held.fence.epoch, "the epoch grows over a release too")


@check("leases of other names are apart, and every handle sees the same ones")
async def names_and_handles(subject: LeasesSubject) -> None:
    first, second = await subject.open(), await subject.open()
    name, other = subject.new_name(), subject.new_name()
    held = await first.acquire(name, "one", LEASE_S)
    await second.acquire(other, "one", LEASE_S)
    async with refused(LeaseHeld, "the other handle sees it held", name=name):
        await second.acquire(name, "two", LEASE_S)
    same(await second.release(held), True, "a lease is freed through any handle")


CHECKS: Final = checks_of(globals())
