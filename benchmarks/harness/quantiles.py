"""Medians, quartiles and the spread of repeats: plain functions over numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` (0 to 1) of ``values`` lies, interpolated; 0 when there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    """Return the middle value; 0 when there are none."""
    return quantile(values, 0.5)


@dataclass(frozen=True, slots=True)
class Repeats:
    """One figure over its blocks, in the order they ran."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one, which stands for the figure."""
        return median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile."""
        return quantile(self.values, 0.25), quantile(self.values, 0.75)

    @property
    def spread(self) -> float:
        """How far the blocks lie apart: largest less smallest, as a share of the median; 0 for a median of 0."""
        middle = self.median
        return (max(self.values) - min(self.values)) / abs(middle) if middle else 0.0
