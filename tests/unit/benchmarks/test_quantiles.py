"""Medians, quartiles and the spread of repeats."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.quantiles import Repeats, median, quantile

FIGURES = st.lists(st.floats(0, 1e6), min_size=2)


@given(FIGURES)
def test_quartiles_are_those_of_the_standard_library(values: list[float]) -> None:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    one = Repeats(tuple(values))
    assert list(one.quartiles) == pytest.approx([low, high])
    assert one.median == pytest.approx(middle)


def test_the_ends_are_the_least_and_the_most() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.0) == 1.0
    assert quantile([3.0, 1.0, 2.0], 1.0) == 3.0


def test_nothing_has_a_median_of_nothing() -> None:
    assert median([]) == 0.0


def test_the_spread_is_a_share_of_the_median() -> None:
    assert Repeats((8.0, 10.0, 11.0)).spread == pytest.approx(0.3)
    assert Repeats((0.0, 0.0)).spread == 0.0
