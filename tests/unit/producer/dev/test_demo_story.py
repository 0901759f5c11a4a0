"""What the demo reports of what it has seen."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from producer.dev.story import Findings, Said, owners_of


def said(admission_ms: float, first_text_ms: float) -> Said:
    return Said("Noted.", admission_ms, first_text_ms, datetime.now(UTC))


def test_a_story_that_was_never_told_is_not_ok_and_measures_nothing() -> None:
    report = Findings().report()
    assert (report["ok"], report["turns"]) == (False, 0)
    assert {report[name] for name in ("commit_to_recall_ms", "admission_ms", "first_delta_ms")} == {None}


@pytest.mark.parametrize("missing", ["recalled", "isolated", "withdrawn"])
def test_it_is_ok_only_when_every_promise_was_kept(missing: str) -> None:
    findings = Findings(recalled=True, isolated=True, withdrawn=True)
    assert findings.report()["ok"] is True
    setattr(findings, missing, False)
    assert findings.report()["ok"] is False


def test_figures_are_medians() -> None:
    findings = Findings(commit_to_recall_ms=[900.0, 100.04, 200.0], turns=[said(1, 10), said(2, 30)])
    report = findings.report()
    assert (report["commit_to_recall_ms"], report["admission_ms"], report["first_delta_ms"]) == (
        200.0,
        1.5,
        20.0,
    )


def test_every_run_has_an_owner_of_its_own() -> None:
    assert owners_of(1) == ["ann", "ben"]
    assert owners_of(3) == ["ann", "ben", "ann-2", "ann-3"]
