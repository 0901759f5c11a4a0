"""Running one check of a kit by its name, and comparing what a test cites with what its kit's checks prove."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shared.conformance import ConformanceCheck


def names_of(checks: Iterable[ConformanceCheck]) -> list[str]:
    """The names to parametrise over; each stands once."""
    names = [check.name for check in checks]
    assert len(names) == len(set(names))
    return names


async def run_check(checks: Sequence[ConformanceCheck], name: str) -> None:
    """Run the one check of this name."""
    [check] = [check for check in checks if check.name == name]
    await check.run()


def cited_by(test: Callable[..., Any]) -> set[str]:
    """The rows that a test's ``behaviour`` marker cites."""
    return {row for mark in test.__dict__["pytestmark"] if mark.name == "behaviour" for row in mark.args}


def proved_by(checks: Iterable[ConformanceCheck]) -> set[str]:
    """The rows that the checks of a kit prove."""
    return {row for check in checks for row in check.behaviours}
