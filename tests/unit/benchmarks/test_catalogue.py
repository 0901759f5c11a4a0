"""The benchmarks that the help names exist, run, and are told of in the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from benchmarks.__main__ import listing, main
from benchmarks.catalogue import BENCHMARKS, find_run

ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = (ROOT / "docs/performance.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_can_be_run_and_has_a_section_of_the_page(name: str) -> None:
    assert callable(find_run(name))
    assert re.search(rf"^## .*\b{name}\b", PAGE, re.MULTILINE)


def test_the_page_tells_of_no_benchmark_that_there_is_not() -> None:
    named = {
        name
        for line in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
        for name in re.findall(r"`([\w-]+)`", line)
    }
    assert named <= BENCHMARKS.keys()


def test_without_a_name_the_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.rstrip("\n") == listing()
    assert [name for name in BENCHMARKS if name not in listing()] == []


@pytest.mark.parametrize("words", [["no-such"], ["turn", "--seconds", "0.1"], ["turn", "--seconds", "1e9"]])
def test_what_cannot_be_run_is_one_line_with_its_code_and_status_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "[input.invalid]" in told
    assert told.count("\n") == 1
