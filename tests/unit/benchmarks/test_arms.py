"""Arms take turns forward and back, and share the time out between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from benchmarks.harness.arms import Arm, block_lengths, in_turn, measure_in_turn


def test_two_arms_run_as_abba() -> None:
    assert "".join(in_turn("AB", 4)) == "ABBAABBA"


def test_with_more_arms_each_runs_as_often_before_any_other_as_after_it() -> None:
    order = list(in_turn("ABCD", 4))
    rounds = [order[n : n + 4] for n in range(0, 16, 4)]
    before = Counter((a, b) for one in rounds for n, a in enumerate(one) for b in one[n + 1 :])
    assert set(before.values()) == {2}


def test_blocks_share_the_time_out() -> None:
    arms = (Arm("turns", _count, 3), Arm("jobs", _count, 1))
    assert block_lengths(arms, 80.0, 4) == {"turns": 15.0, "jobs": 5.0}


async def test_every_arm_is_warmed_up_once_unless_nothing_of_it_gets_warm_and_that_counts_for_nothing() -> (
    None
):
    asked: list[float] = []

    async def measure(seconds: float) -> Mapping[str, float]:
        asked.append(seconds)
        return {"per_s": float(len(asked))}

    warm: list[int] = []
    arms = (Arm("warm", measure), Arm("cold", measure, warm_up=False))
    measured = await measure_in_turn(arms, 8.0, _hear, on_warm=lambda: warm.append(len(asked)))
    assert warm == [1]
    assert asked == [1.5, 2.0, 2.0, 2.0, 2.0]
    assert measured.repeats()["per_s"].values == (2.0, 3.0, 4.0, 5.0)


async def test_a_ratio_is_of_medians_and_of_nothing_is_nothing() -> None:
    measured = await measure_in_turn((Arm("one", _count, 1),), 1.0, _hear)
    measured.add({"per_s": 9.0, "none": 0.0})
    measured.blocks["per_s"] = [1.0, 4.0, 9.0]
    measured.blocks["other"] = [2.0]
    assert measured.ratio("per_s", "other") == 2.0
    assert measured.ratio("per_s", "none") == 0.0


async def _count(seconds: float) -> Mapping[str, float]:
    return {"per_s": seconds}


def _hear(_line: str) -> None:
    pass
