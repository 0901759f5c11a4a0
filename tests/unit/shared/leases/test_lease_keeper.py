"""The lease keeper by itself: which lease a renewal, a loss or a drop is about when a key is kept a second time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

from shared.domain.errors import StoreUnavailable
from shared.leases.fence import Fence
from shared.leases.keeper import SKIPPED_RETRIES, LeaseKeeper
from tests.support.virtual_time import virtual_time

LEASE_S, RENEW_S = 15.0, 5.0
#: The loop time at which a lease that was sent for at 0 is trusted no more.
TRUSTED_S = LEASE_S - 1.5


@dataclass
class Answer:
    """What a renewal says."""

    renewed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)


class Renewals:
    """A store that renews everything unless told otherwise."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Fence]] = []
        self.skipped: set[str] = set()
        self.lost: set[str] = set()
        self.silent: set[str] = set()
        self.error: Exception | None = None

    async def __call__(self, fences: Mapping[str, Fence], lease_s: float) -> Answer:
        assert lease_s == LEASE_S
        self.asked.append(dict(fences))
        if self.error is not None:
            raise self.error
        answered = fences.keys() - self.silent
        return Answer(answered - self.skipped - self.lost, answered & self.skipped, answered & self.lost)


class Bench:
    """A keeper, its store and what it said of losses."""

    def __init__(self, renewals: Renewals | None = None) -> None:
        self.renewals = renewals or Renewals()
        self.failures = 0
        self.lost: list[tuple[str, str]] = []
        self.keeper: LeaseKeeper[str] = LeaseKeeper(
            self.renewals, lease_s=LEASE_S, renew_s=RENEW_S, on_store_failure=self._note_failure
        )

    def _note_failure(self) -> None:
        self.failures += 1

    def keep(self, key: str, fence: Fence | None = None, *, name: str = "") -> Fence:
        """Keep a lease sent for now; ``name`` says which holder is told of its loss."""
        fence = fence or Fence(1, uuid4())
        sent_at = asyncio.get_running_loop().time()
        self.keeper.keep(key, fence, sent_at, lambda reason: self.lost.append((name or key, reason)))
        return fence


@virtual_time
@pytest.mark.behaviour("DST-33")
async def test_all_that_is_kept_is_renewed_together_and_nothing_is_asked_for_nothing() -> None:
    bench = Bench()
    await bench.keeper.renew_all()
    assert bench.renewals.asked == []
    fences = {key: bench.keep(key) for key in ("a", "b")}
    await bench.keeper.renew_all()
    assert bench.renewals.asked == [fences]
    assert (len(bench.keeper), bench.keeper.fences(), bench.keeper.counts.renewed) == (2, fences, 2)


@virtual_time
@pytest.mark.behaviour("DST-08")
async def test_what_the_store_says_is_lost_is_lost_and_what_it_says_nothing_of_is_trusted_no_longer() -> None:
    bench = Bench()
    for key in ("kept", "lost", "silent"):
        bench.keep(key)
    bench.renewals.lost, bench.renewals.silent = {"lost"}, {"silent"}
    await asyncio.sleep(1)
    await bench.keeper.renew_all()
    assert (bench.lost, bench.keeper.counts.refused) == ([("lost", "lost")], 1)
    assert bench.keeper.trusted_until("kept") == TRUSTED_S + 1
    assert bench.keeper.trusted_until("silent") == TRUSTED_S
    assert bench.keeper.trusted_until("lost") is None
    await asyncio.sleep(TRUSTED_S - 1 + 0.01)
    assert bench.lost == [("lost", "lost"), ("silent", "watchdog")]
    assert list(bench.keeper.fences()) == ["kept"]


@virtual_time
async def test_only_what_was_skipped_is_asked_for_again_and_a_bounded_number_of_times() -> None:
    bench = Bench()
    bench.keep("a")
    locked = bench.keep("locked")
    bench.renewals.skipped = {"locked"}
    await bench.keeper.renew_all()
    assert len(bench.renewals.asked) == SKIPPED_RETRIES
    assert bench.renewals.asked[1:] == [{"locked": locked}] * (SKIPPED_RETRIES - 1)
    assert bench.lost == []
    assert bench.keeper.trusted_until("locked") == TRUSTED_S


@virtual_time
@pytest.mark.behaviour("DST-08")
async def test_a_store_that_is_away_is_told_of_and_met_again_on_the_next_beat() -> None:
    bench = Bench()
    bench.keep("a")
    bench.renewals.error = StoreUnavailable("away")
    renewing = asyncio.create_task(bench.keeper.renew_for_ever())
    await asyncio.sleep(RENEW_S + 0.1)
    assert (bench.failures, bench.keeper.trusted_until("a")) == (1, TRUSTED_S)
    bench.renewals.error = None
    await asyncio.sleep(RENEW_S)
    assert (bench.failures, bench.keeper.trusted_until("a")) == (1, 2 * RENEW_S + TRUSTED_S)
    renewing.cancel()
    await asyncio.wait({renewing})


@virtual_time
@pytest.mark.behaviour("DST-08")
async def test_a_second_claim_of_a_key_tells_the_first_holder_and_leaves_no_watchdog_of_it() -> None:
    bench = Bench()
    old = bench.keep("a", name="first")
    await asyncio.sleep(1)
    new = bench.keep("a", Fence(2, uuid4()), name="second")
    assert bench.lost == [("first", "lost")]
    bench.keeper.drop("a", old)
    bench.keeper.lose("a", old, "lost")
    assert (bench.lost, bench.keeper.fences()) == ([("first", "lost")], {"a": new})
    await asyncio.sleep(TRUSTED_S - 0.5)
    assert bench.keeper.counts.watchdog_fired == 0
    await asyncio.sleep(0.6)
    assert bench.lost == [("first", "lost"), ("second", "watchdog")]


@pytest.mark.parametrize("said", ["lost", "renewed"])
@virtual_time
async def test_a_lease_that_was_dropped_or_claimed_anew_while_it_was_renewed_is_left_as_it_is(
    said: str,
) -> None:
    class Meanwhile(Renewals):
        async def __call__(self, fences: Mapping[str, Fence], lease_s: float) -> Answer:
            await asyncio.sleep(2)
            bench.keeper.drop("dropped", dropped)
            bench.keeper.drop("again", again)
            bench.keep("again", Fence(2, uuid4()), name="newer")
            return Answer(**{said: {"dropped", "again"}})

    bench = Bench(Meanwhile())
    dropped, again = bench.keep("dropped"), bench.keep("again")
    await bench.keeper.renew_all()
    assert bench.lost == []
    assert bench.keeper.trusted_until("again") == 2 + TRUSTED_S


@virtual_time
async def test_a_dropped_lease_has_no_watchdog() -> None:
    bench = Bench()
    bench.keeper.drop("a", bench.keep("a"))
    await asyncio.sleep(LEASE_S)
    assert (bench.lost, bench.keeper.counts.watchdog_fired, len(bench.keeper)) == ([], 0, 0)
