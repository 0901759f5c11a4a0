"""What each unit of work costs: statements, round trips, commits and rows. Exact, so tests gate on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class UnitCount:
    """Totals of one unit of work since the process started (or the last ``reset``)."""

    calls: int = 0
    statements: int = 0
    round_trips: int = 0
    commits: int = 0
    rows: int = 0


@dataclass(slots=True)
class WorkCounters:
    """Counts by unit of work, e.g. ``turn.admit``; one instance a process, handed to its :class:`Database`."""

    units: dict[str, UnitCount] = field(default_factory=dict)

    def add(self, unit: str, *, statements: int, round_trips: int, commits: int, rows: int) -> None:
        """Add one call of ``unit``."""
        count = self.units.get(unit)
        if count is None:
            count = self.units[unit] = UnitCount()
        count.calls += 1
        count.statements += statements
        count.round_trips += round_trips
        count.commits += commits
        count.rows += rows

    def add_member(self, unit: str) -> None:
        """Add one call of ``unit`` that shared the statement of a group, which is counted by itself."""
        self.add(unit, statements=0, round_trips=0, commits=0, rows=0)

    def snapshot(self) -> Mapping[str, UnitCount]:
        """Return a copy that later work does not change."""
        return {
            name: UnitCount(c.calls, c.statements, c.round_trips, c.commits, c.rows)
            for name, c in self.units.items()
        }

    def reset(self) -> None:
        """Forget everything counted so far."""
        self.units.clear()
