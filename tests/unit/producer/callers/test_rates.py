"""How fast an owner may write, and how it is told."""

from __future__ import annotations

import pytest

from producer.callers.rates import LIMITS_CACHE_S, OWNERS_MAX, WriteRates
from shared.domain.errors import RateLimited
from shared.domain.ids import OwnerId
from shared.owners.inproc import InprocOwners
from shared.owners.limits import OwnerLimits

ANN, BOB = OwnerId("ann"), OwnerId("bob")
#: So slow that nothing comes back while a test runs.
NEVER = 0.001


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def count_let_in(rates: WriteRates, owner: OwnerId, tries: int) -> int:
    return sum([(await rates.take(owner)).retry_after_s is None for _ in range(tries)])


@pytest.mark.behaviour("API-17", "DST-14")
async def test_an_owner_writes_its_burst_and_then_waits_and_no_other_owner_does() -> None:
    rates = WriteRates(InprocOwners(), per_s=NEVER, burst=3)
    assert await count_let_in(rates, ANN, 10) == 3
    refused = await rates.take(ANN)
    with pytest.raises(RateLimited) as caught:
        refused.require()
    assert 900 < caught.value.retry_after_s <= 1_000
    assert await count_let_in(rates, BOB, 10) == 3


@pytest.mark.behaviour("API-17")
async def test_a_refused_write_costs_nothing_and_time_brings_writes_back() -> None:
    rates = WriteRates(InprocOwners(), per_s=100.0, burst=1)
    (await rates.take(ANN)).require()
    # However often it is asked too early, the next one is let in when its time has come.
    for _ in range(1_000_000):
        allowance = await rates.take(ANN)
        if allowance.retry_after_s is None:
            return
        assert allowance.retry_after_s <= 0.01
    raise AssertionError("no write was let in again")


@pytest.mark.behaviour("API-17")
async def test_the_fields_tell_the_policy_and_what_is_left() -> None:
    rates = WriteRates(InprocOwners(), per_s=50.0, burst=200)
    first = await rates.take(ANN)
    assert first.headers == {"RateLimit-Policy": '"writes";q=200;w=4', "RateLimit": '"writes";r=199;t=1'}
    slow = WriteRates(InprocOwners(), per_s=0.5, burst=3)
    told = [(await slow.take(ANN)).headers["RateLimit"] for _ in range(4)]
    assert told == ['"writes";r=2;t=2', '"writes";r=1;t=4', '"writes";r=0;t=6', '"writes";r=0;t=6']


@pytest.mark.behaviour("API-17")
async def test_an_owners_own_row_wins_and_a_change_is_seen_within_ten_seconds() -> None:
    owners, clock = InprocOwners(), HandClock()
    await owners.set_limits(ANN, OwnerLimits(writes_burst=5, body_max_bytes=2_048))
    rates = WriteRates(owners, per_s=NEVER, burst=2, clock=clock)
    assert (await rates.take(ANN)).body_max_bytes == 2_048
    assert await count_let_in(rates, ANN, 20) == 4
    assert owners.lookups == 1
    await owners.set_limits(ANN, OwnerLimits(writes_burst=9, writes_per_s=1_000.0))
    assert LIMITS_CACHE_S <= 10
    clock.now += LIMITS_CACHE_S
    assert (await rates.take(ANN)).headers["RateLimit-Policy"] == '"writes";q=9;w=1'
    assert owners.lookups == 2


async def test_owners_that_are_remembered_are_bounded() -> None:
    owners = InprocOwners()
    rates = WriteRates(owners, per_s=NEVER, burst=2)
    for number in range(OWNERS_MAX + 1):
        await rates.take(OwnerId(f"o{number}"))
    before = owners.lookups
    await rates.take(OwnerId(f"o{OWNERS_MAX}"))
    assert owners.lookups == before
    await rates.take(OwnerId("o0"))
    assert owners.lookups == before + 1
