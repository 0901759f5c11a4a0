"""Each check of the leases' kit fails, by its name, on leases with the fault that it is about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID, uuid4

import pytest

from shared.conformance import leases_conformance
from shared.domain.errors import LeaseHeld
from shared.leases.fence import Fence
from shared.leases.port import Leases, NamedLease
from tests.conformance.subjects import InprocLeasesSubject
from tests.conformance.tampering import (
    Fault,
    Faults,
    answers,
    asks,
    hides,
    pretends,
    require_failure,
    require_fault_for_each,
    same,
    tampered,
)


class LeasesSubject(InprocLeasesSubject):
    """A subject of leases with a fault."""

    def __init__(self, **faults: Fault) -> None:
        super().__init__()
        self._faults = faults

    async def open(self) -> Leases:
        return tampered(await super().open(), **self._faults)


def gives_it_to_all(name: str, holder: str, lease_s: float) -> NamedLease:
    return NamedLease(name, Fence(1, uuid4()), lease_s)


async def looks_before_it_takes(real: Callable[..., Awaitable[NamedLease]], *args: Any) -> NamedLease:
    """Find the lease free, and take it a moment later from whoever has it by then."""
    table = real.__self__._table  # type: ignore[attr-defined]  # the real method is bound
    row = table.rows.get(args[0])
    is_free = row is None or not row.is_held(table.now())
    try:
        return await real(*args)
    except LeaseHeld:
        if not is_free:
            raise
        return gives_it_to_all(*args)


def of_the_epoch(lease: NamedLease) -> NamedLease:
    return replace(lease, fence=Fence(1, lease.fence.token))


def with_anybodys_token(rows: Any, lease: NamedLease) -> NamedLease:
    token: UUID | None = rows[lease.name].token
    return replace(lease, fence=Fence(rows[lease.name].epoch, token or lease.fence.token))


async def takes_any_fence(real: Callable[..., Awaitable[bool]], lease: NamedLease) -> bool:
    """Compare nothing."""
    rows = real.__self__._table.rows  # type: ignore[attr-defined]  # the real method is bound
    return await real(with_anybodys_token(rows, lease))


async def answers_twice(real: Callable[..., Awaitable[bool]], lease: NamedLease) -> bool:
    """Say of every release that it freed something."""
    await real(lease)
    return True


FAULTS: Final[Mapping[str, Faults]] = {
    "a free lease is had, and held against others and its own holder": {
        "acquire": hides(LeaseHeld, gives_it_to_all)
    },
    "of many acquisitions at once exactly one has the lease": {"acquire": looks_before_it_takes},
    "an acquisition raises the epoch and draws a fresh token, also for the same holder": {
        "acquire": answers(of_the_epoch)
    },
    "the older holder of the same name is fenced after a new acquisition": {"renew": takes_any_fence},
    "an epoch alone or a token alone is no fence": {"release": takes_any_fence},
    "a renewal extends a lease that is still held": {"renew": pretends(lambda lease: True)},
    "a lease that passed is not renewed, also while nobody took it": {"renew": answers(lambda renewed: True)},
    "a release frees the lease at once and only once": {"release": answers_twice},
    "leases of other names are apart, and every handle sees the same ones": {
        "acquire": asks(lambda name: "one for all", same, same)
    },
}
CHECKS: Final = leases_conformance(InprocLeasesSubject())


def test_every_check_of_the_leases_is_tried_on_a_fault() -> None:
    require_fault_for_each(CHECKS, list(FAULTS))


@pytest.mark.behaviour("KIT-01")
@pytest.mark.parametrize("name", FAULTS)
async def test_broken_leases_fail_the_check_of_their_fault(name: str) -> None:
    await require_failure(leases_conformance(LeasesSubject(**FAULTS[name])), name)
