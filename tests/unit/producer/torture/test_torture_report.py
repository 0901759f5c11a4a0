"""What makes a run a failed one, and what its figures are called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from producer.dev.torture.judging.judgement import Judgement
from producer.dev.torture.report import Report
from producer.dev.torture.schedule import Fault

HELD = Report(
    seed=1,
    seconds=60.0,
    lease_s=3.0,
    sweep_s=1.0,
    judgement=Judgement(admitted=10),
    faults=dict.fromkeys(Fault, 1),
    left_out={},
    longest_held_s=5.0,
    losses=1,
    losses_measured=1,
    overdue_counted_s=2.0,
    overdue_not_counted_s=0.0,
    refused_of_workers=0,
    refused_of_stale_writer=1,
    stale_accepted=0,
    drained_s=1.0,
    unplanned_exits=0,
    hung_exits=0,
    tracebacks=0,
)
ASKED_FOR = {
    *("admitted", "completed", "lost", "doubled_replies", "doubled_effects", "stale_writes_refused"),
    *("faults", "faults_by_kind", "longest_held_s"),
}


def test_a_run_that_holds_has_no_failures() -> None:
    assert HELD.failures == []
    assert HELD.figures()["ok"] is True


def test_the_figures_have_the_promised_names() -> None:
    assert HELD.figures().keys() >= ASKED_FOR
    assert HELD.figures()["faults"] == len(Fault)


@pytest.mark.parametrize(
    "wrong",
    [
        Judgement(admitted=1, lost=["x"]),
        Judgement(admitted=1, doubled_turns=["x"]),
        Judgement(admitted=1, doubled_replies=["x"]),
        Judgement(admitted=1, doubled_effects=["x"]),
        Judgement(admitted=1, doubled_items=["x"]),
        Judgement(admitted=1, doubled_tasks=["x"]),
        Judgement(admitted=1, missing_effects=["x"]),
        Judgement(admitted=1, log_errors=["x"]),
        Judgement(admitted=0),
    ],
)
def test_whatever_is_wrong_fails_the_run(wrong: Judgement) -> None:
    report = replace(HELD, judgement=wrong)
    assert len(report.failures) == 1
    assert report.figures()["ok"] is False


def test_a_turn_that_was_held_for_too_long_fails_the_run() -> None:
    assert len(replace(HELD, longest_held_s=5.01).failures) == 1


def test_a_stale_write_that_was_accepted_fails_the_run() -> None:
    assert len(replace(HELD, stale_accepted=1).failures) == 1


def test_a_minute_without_a_kind_of_fault_or_a_refusal_proves_nothing() -> None:
    rare = dict.fromkeys(Fault, 1) | {Fault.UPKEEP_KILL: 0}
    assert replace(HELD, faults=rare).failures == ["no fault of kind upkeep.kill"]
    assert replace(HELD, refused_of_stale_writer=0).failures == ["no stale write was refused"]


def test_a_shorter_run_may_lack_both() -> None:
    assert replace(HELD, seconds=20.0, faults={}, refused_of_stale_writer=0).failures == []
