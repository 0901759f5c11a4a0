"""The limits of one owner: their bounds, and rows that were written past us."""

from __future__ import annotations

from typing import Any

import pytest

from shared.domain.errors import InvalidInput
from shared.owners.limits import WRITES_PER_S_MIN, OwnerLimits

NOTHING: dict[str, Any] = {
    "running_max": None,
    "queued_max": None,
    "writes_per_s": None,
    "writes_burst": None,
    "body_max_bytes": None,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("running_max", 0),
        ("queued_max", -1),
        ("writes_per_s", 0.0),
        ("writes_per_s", float("nan")),
        ("writes_per_s", float("inf")),
        ("writes_burst", 0),
        ("body_max_bytes", 1),
        ("body_max_bytes", 2**40),
    ],
)
def test_a_limit_out_of_its_bounds_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        OwnerLimits(**(NOTHING | {field: value}))
    assert (caught.value.field, ".." in caught.value.bound) == (field, True)


def test_a_row_out_of_bounds_counts_as_the_nearest_bound() -> None:
    found = OwnerLimits.of_row(NOTHING | {"writes_per_s": 0.0, "writes_burst": -5, "running_max": 7})
    assert found == OwnerLimits(running_max=7, writes_per_s=WRITES_PER_S_MIN, writes_burst=1)
    assert OwnerLimits.of_row(NOTHING) == OwnerLimits()
