"""How long a turn stays with a holder that is gone: counted by the database's clock, less what nobody could have repaired."""

from __future__ import annotations

from uuid import uuid4

import pytest

from producer.dev.torture.watch import LATE_S, HeldTime
from shared.domain.ids import TurnId

TURN = TurnId(uuid4())


def noted(*samples: float, can_repair: bool = True) -> HeldTime:
    held = HeldTime(lease_s=3.0)
    for overdue_s in samples:
        held.note({(TURN, 1): overdue_s}, can_repair=can_repair)
    return held


def test_a_lease_that_lasts_counts_nothing() -> None:
    held = noted(-2.0, -0.1)
    assert (held.longest_s, held.losses) == (0.0, 0)


def test_a_lost_turn_counts_its_lease_and_the_time_past_it() -> None:
    held = noted(-0.1, 0.1, 0.2, 0.4)
    assert held.longest_s == pytest.approx(3.4)
    assert (held.losses, held.losses_measured) == (1, 1)


def test_a_new_claim_of_the_same_turn_begins_anew() -> None:
    held = noted(0.2)
    held.note({(TURN, 2): 0.1}, can_repair=True)
    assert held.longest_s == pytest.approx(3.2)
    assert held.losses == 2


def test_time_in_which_nobody_could_repair_does_not_count() -> None:
    held = noted(0.1, 0.4, can_repair=False)
    assert held.longest_s == pytest.approx(3.0)
    assert (held.losses, held.losses_measured, held.counted_s) == (1, 0, 0.0)
    assert held.not_counted_s == pytest.approx(0.4)


def test_a_hole_between_samples_does_not_count() -> None:
    held = noted(0.1, 20.0, 20.0 + LATE_S / 2)
    assert held.longest_s == pytest.approx(3.1 + LATE_S / 2)
    assert held.not_counted_s == pytest.approx(19.9)


def test_each_turn_is_counted_alone() -> None:
    held = HeldTime(lease_s=3.0)
    other = TurnId(uuid4())
    held.note({(TURN, 1): 0.2, (other, 1): 0.1}, can_repair=True)
    held.note({(other, 1): 0.15}, can_repair=True)
    assert held.longest_s == pytest.approx(3.2)
