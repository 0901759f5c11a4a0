"""The counters of work."""

from __future__ import annotations

from shared.database.counters import UnitCount, WorkCounters


def test_counts_add_up_by_unit_and_a_snapshot_stands_still() -> None:
    counters = WorkCounters()
    counters.add("turn.admit", statements=3, round_trips=1, commits=1, rows=2)
    before = counters.snapshot()
    counters.add("turn.admit", statements=1, round_trips=1, commits=0, rows=0)
    counters.add("turn.claim", statements=1, round_trips=1, commits=1, rows=9)
    assert before == {"turn.admit": UnitCount(1, 3, 1, 1, 2)}
    assert counters.snapshot() == {
        "turn.admit": UnitCount(2, 4, 2, 1, 2),
        "turn.claim": UnitCount(1, 1, 1, 1, 9),
    }
    counters.reset()
    assert counters.snapshot() == {}
