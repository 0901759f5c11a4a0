"""Deadlines of background work: the reserve, at most half of a budget, and what comes first."""

from __future__ import annotations

import pytest

from shared.domain.errors import ConfigError
from shared.host.tasks.deadlines import (
    BUDGET_MAX_S,
    UNBOUNDED,
    Deadline,
    check_budget,
    closing_reserve_s,
    deadline_after,
)


@pytest.mark.behaviour("TSK-29", "TSK-30")
@pytest.mark.parametrize(
    ("budget_s", "reserve_s"), [(60.0, 2.0), (4.0, 2.0), (3.0, 1.5), (0.1, 0.05), (0.0, 0.0), (-5.0, 0.0)]
)
def test_two_seconds_are_kept_for_closing_and_at_most_half_of_the_budget(
    budget_s: float, reserve_s: float
) -> None:
    assert closing_reserve_s(budget_s) == reserve_s
    deadline = deadline_after(budget_s, now=100.0)
    assert deadline == Deadline(100.0 + max(0.0, budget_s), 100.0 + max(0.0, budget_s) - reserve_s)


def test_execution_is_cut_at_the_cutoff_and_nothing_is_done_past_the_deadline() -> None:
    deadline = deadline_after(10.0, now=0.0)
    assert [deadline.is_cut(t) for t in (7.9, 8.0, 10.0)] == [False, True, True]
    assert [deadline.is_past(t) for t in (8.0, 9.9, 10.0)] == [False, False, True]


def test_no_budget_is_no_deadline() -> None:
    assert deadline_after(None, now=5.0) is UNBOUNDED
    assert not UNBOUNDED.is_finite
    assert not UNBOUNDED.is_cut(1e12)


def test_the_earlier_of_two_deadlines_keeps_both() -> None:
    assert Deadline(10.0, 8.0).earlier(Deadline(9.0, 8.5)) == Deadline(9.0, 8.0)
    assert UNBOUNDED.earlier(Deadline(9.0, 8.5)) == Deadline(9.0, 8.5)


@pytest.mark.parametrize(
    ("budget_s", "reserve_ms", "field"),
    [
        (0, 2_000, "budget_s"),
        (-1, 2_000, "budget_s"),
        (BUDGET_MAX_S + 1, 2_000, "budget_s"),
        (True, 2_000, "budget_s"),
        (10, -1, "closing_reserve_ms"),
        (10, 600_001, "closing_reserve_ms"),
        (10, 1.5, "closing_reserve_ms"),
        (10, True, "closing_reserve_ms"),
    ],
)
def test_a_budget_or_reserve_out_of_bounds_is_refused_by_its_name(
    budget_s: float, reserve_ms: int, field: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_budget(budget_s, reserve_ms)
    assert refused.value.fields["field"] == field
