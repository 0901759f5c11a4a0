"""The import contracts of ``pyproject.toml`` hold, and cover every room of ``shared/``."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from tests.architecture.tree import BENCHMARKS, HOUSES, ROOT


def test_the_import_contracts_hold() -> None:
    # A process of its own: the linter sets up logging for the whole process that it runs in.
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


def test_the_contracts_cover_every_house_and_every_room_of_shared() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    assert set(options["root_packages"]) == {*HOUSES, BENCHMARKS}
    (rooms,) = (contract for contract in options["contracts"] if contract["id"] == "shared-layers")
    assert rooms["exhaustive"] is True
