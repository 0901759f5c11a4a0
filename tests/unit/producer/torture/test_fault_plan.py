"""The plan of faults: made of a seed alone, every kind in it, and enough of them."""

from __future__ import annotations

import pytest

from producer.dev.torture.schedule import DECK, Fault, plan_faults


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert plan_faults(7, 60) == plan_faults(7, 60)
    assert plan_faults(7, 60) != plan_faults(8, 60)


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    short = plan_faults(7, 60)
    assert plan_faults(7, 600)[: len(short)] == short


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_is_met_twice_in_a_minute(seed: int) -> None:
    kinds = [fault.kind for fault in plan_faults(seed, 60)]
    assert all(kinds.count(kind) >= 2 for kind in Fault)


@pytest.mark.parametrize("seed", range(20))
def test_ten_minutes_hold_far_more_than_three_hundred_faults(seed: int) -> None:
    assert len(plan_faults(seed, 600)) > 400


def test_faults_come_in_order_within_the_time() -> None:
    times = [fault.at_s for fault in plan_faults(7, 60)]
    assert times == sorted(times)
    assert times[0] > 0 and times[-1] < 60


def test_every_kind_stands_in_the_deck() -> None:
    assert DECK.keys() == set(Fault)
