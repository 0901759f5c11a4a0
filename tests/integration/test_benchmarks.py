"""The smallest run of a benchmark, as its user starts it: it ends well, says what it must, and its counts are exact."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
BOUND_S: Final = 300
#: What others read of the line; renaming one of these takes a new ``version``.
NAMES_OF_TURN: Final = {
    *(
        "turns_per_s",
        "empty_jobs_per_s",
        "ratio_to_empty_job",
        "drain_turns_per_s",
        "ratio_drain_to_empty_job",
    ),
    *("p50_ms_1_client", "empty_job_start_p50_ms", "ratio_p50", "commits_per_turn", "statements_per_turn"),
    *("wal_bytes_per_turn", "broker_messages_per_turn", "round_trips_per_turn", "rows_written_per_turn"),
}


def bench(*words: str) -> dict[str, Any]:
    """Run a benchmark for a second and return its last line."""
    command = [sys.executable, "-P", "-m", "producer.cli", "bench", *words, "--seconds", "1", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


@pytest.mark.alone
def test_turn_reports_every_figure_and_counts_what_each_turn_cost() -> None:
    line = bench("turn")
    assert line.keys() >= NAMES_OF_TURN
    assert (line["benchmark"], line["ok"], line["defects"], line["failed_turns"]) == ("turn", True, [], 0)
    assert line["counted_turns"] > 0
    # Whatever the machine's pace: admission, claim, opening and end are a commit each, or share one with other turns'.
    assert 0.1 < line["commits_per_turn"] <= 4.5
    assert line["statements_per_turn"] > 0.1
    assert line["rows_written_per_turn"] > 5
    assert {"producer", "worker", "postgres", "valkey", "load"} <= line["tables"]["cpu ms a turn"].keys()
