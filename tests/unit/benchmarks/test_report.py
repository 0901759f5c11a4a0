"""A report as people and programs read it."""

from __future__ import annotations

import json

import pytest

from benchmarks.harness.quantiles import Repeats
from benchmarks.harness.report import Report, Target, Verdict, each

REPORT = Report(
    benchmark="turn",
    seconds=8.0,
    machine={"cores": 2, "fsync_ms": 0.1},
    repeats={"turns_per_s": Repeats((400.0, 500.0, 600.0))},
    ratios={"ratio_to_empty_job": 0.51239},
    counts={"commits_per_turn": 3.0},
    tables={"statements a turn": {"turn.admit": 1.0}},
    targets=(
        Target("ratio_to_empty_job", floor=0.5, aim=0.9),
        Target("commits_per_turn", floor=2.5, aim=1.0, at_most=True),
    ),
)


def test_the_json_object_is_one_line_with_every_figure_under_its_own_name() -> None:
    line = json.dumps(REPORT.figures())
    read = json.loads(line)
    assert "\n" not in line
    assert (read["benchmark"], read["ok"], read["seconds"]) == ("turn", True, 8.0)
    assert (read["turns_per_s"], read["ratio_to_empty_job"], read["commits_per_turn"]) == (500.0, 0.5124, 3.0)
    assert read["repeats"]["turns_per_s"] == {
        "median": 500.0,
        "q1": 450.0,
        "q3": 550.0,
        "spread": 0.4,
        "blocks": [400.0, 500.0, 600.0],
    }
    assert read["tables"] == {"statements a turn": {"turn.admit": 1.0}}
    assert [(t["figure"], t["reached"]) for t in read["targets"]] == [
        ("ratio_to_empty_job", "floor"),
        ("commits_per_turn", "missed"),
    ]


@pytest.mark.parametrize(
    ("at_most", "value", "verdict"),
    [
        (False, 3.0, "aim"),
        (False, 1.0, "floor"),
        (False, 0.9, "missed"),
        (True, 0.5, "aim"),
        (True, 1.0, "floor"),
        (True, 1.1, "missed"),
    ],
)
def test_a_target_says_how_far_a_figure_reaches(at_most: bool, value: float, verdict: Verdict) -> None:
    target = Target("figure", floor=1.0, aim=0.5 if at_most else 3.0, at_most=at_most)
    assert target.judge(value) == verdict


def test_the_table_names_every_figure_and_what_became_of_each_target() -> None:
    table = REPORT.table()
    for name in REPORT.values():
        assert name in table
    assert "missed" in table
    assert "fsync_ms 0.1" in table


def test_a_defect_makes_the_figures_worth_nothing() -> None:
    spoilt = Report(
        benchmark="turn", seconds=1.0, machine={}, repeats=REPORT.repeats, defects=["worker ended"]
    )
    assert spoilt.figures()["ok"] is False
    assert "DEFECT: worker ended" in spoilt.table()


def test_shares_leave_out_what_is_next_to_nothing_but_no_processor_time_below_a_tick() -> None:
    assert each({"few": 0.001, "some": 1.0, "many": 20.0}, 10) == {"many": 2.0, "some": 0.1}
    assert each({"valkey": 0.0, "worker": 20.0}, 10, least=0) == {"worker": 2.0, "valkey": 0.0}
