"""``turnkeeper demo`` as a newcomer runs it: it keeps its promise, says so, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.producer_process import clean_environment

BOUND_S = 120.0
FIGURES = {"commit_to_recall_ms", "admission_ms", "first_delta_ms"}


@pytest.mark.behaviour("OPS-02")
def test_the_demo_recalls_isolates_withdraws_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "producer.cli", "demo", "--json"],
        cwd=tmp_path,
        env=clean_environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *transcript, last = done.stdout.splitlines()
    found = json.loads(last)
    assert found.keys() == {"ok", "recalled", "isolated", "withdrawn", "turns", *FIGURES}
    assert (found["ok"], found["recalled"], found["isolated"], found["withdrawn"]) == (True,) * 4
    assert found["turns"] == 4
    assert all(found[name] > 0 for name in FIGURES)
    assert any("teal" in line for line in transcript)
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


def processes_of(folder: Path) -> list[int]:
    """Return the processes that were told to use this folder, as every part of the demo is."""
    found = []
    for process in psutil.process_iter():
        try:
            told = " ".join([*process.cmdline(), process.environ().get("TURNKEEPER_HOME", ""), process.cwd()])
        except psutil.Error:
            continue
        if str(folder) in told and process.pid != os.getpid():
            found.append(process.pid)
    return found
