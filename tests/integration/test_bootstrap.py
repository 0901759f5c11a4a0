"""The script `./turnkeeper`: when it installs, when it goes straight to the command line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from producer.cli.bootstrap import is_current

CHECKOUT = Path(__file__).resolve().parents[2]

PROGRAM = '#!/bin/sh\necho "ran $*"\n'
SET_UP = "import sys\nprint('set up', sys.argv[2])\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with the real script, an environment whose Python echoes, and a set-up that only tells it ran."""
    root = (tmp_path / "check out").resolve()
    program = root / ".venv" / "bin" / "python"
    for folder in (program.parent, root / ".venv" / "turnkeeper", root / "producer" / "cli"):
        folder.mkdir(parents=True)
    shutil.copy(CHECKOUT / "turnkeeper", root / "turnkeeper")
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (root / "producer" / "cli" / "bootstrap.py").write_text(SET_UP)
    for name in ("pyproject.toml", "constraints.txt"):
        (root / name).write_text(name)
        (root / ".venv" / "turnkeeper" / name).write_text(name)
    note_extras(root, "embedded")
    return root


def note_extras(root: Path, extras: str) -> None:
    (root / ".venv" / "turnkeeper" / "installed").write_text(f"{root}\n{extras}\n")


def run(root: Path, *arguments: str, cwd: Path | None = None, script: str | None = None) -> list[str]:
    command = [script or str(root / "turnkeeper"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd).stdout.splitlines()


def test_an_unchanged_checkout_runs_the_command_at_once_from_anywhere(root: Path, tmp_path: Path) -> None:
    ran = ["ran -P -m producer.cli status --json"]
    assert run(root, "status", "--json", cwd=tmp_path) == ran
    link = tmp_path / "linked"
    link.symlink_to(root / "turnkeeper")
    assert run(root, "status", "--json", script=str(link)) == ran
    assert run(root, "status", "--json", script="./turnkeeper", cwd=root) == ran


def test_arguments_reach_the_command_as_they_were_given(root: Path) -> None:
    (root / ".venv/bin/python").write_text('#!/bin/sh\nfor a in "$@"; do echo "$a"; done\n')
    assert run(root, "chat", "two words", "$HOME")[-2:] == ["two words", "$HOME"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_file_is_installed_first(root: Path, name: str) -> None:
    assert is_current(root, "embedded")
    (root / name).write_text("changed")
    assert not is_current(root, "embedded")
    assert run(root, "status") == ["set up embedded", "ran -P -m producer.cli status"]


def test_tests_need_their_tools_and_other_commands_leave_them_installed(root: Path) -> None:
    assert run(root, "test")[0] == "set up embedded,test"
    assert not is_current(root, "embedded,test")
    note_extras(root, "embedded,test")
    assert is_current(root, "embedded")
    assert run(root, "test") == ["ran -P -m producer.cli test"]
    (root / "pyproject.toml").write_text("changed")
    assert run(root, "status")[0] == "set up embedded,test"


def test_a_moved_checkout_is_installed_anew(root: Path, tmp_path: Path) -> None:
    moved = root.rename(tmp_path / "moved")
    assert not is_current(moved, "embedded")
    assert run(moved, "status")[0] == "set up embedded"


def test_an_interrupted_installation_counts_as_none(root: Path) -> None:
    (root / ".venv" / "turnkeeper" / "installed").unlink()
    assert not is_current(root, "embedded")
    assert run(root, "status")[0] == "set up embedded"
