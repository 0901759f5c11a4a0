"""The import contracts of ``pyproject.toml`` hold, and cover every room of ``shared/``."""

from __future__ import annotations

import tomllib

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from tests.architecture.tree import HOUSES, ROOT


def test_the_import_contracts_hold(capsys: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_the_contracts_cover_every_house_and_every_room_of_shared() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    assert set(options["root_packages"]) == set(HOUSES)
    (rooms,) = (contract for contract in options["contracts"] if contract["id"] == "shared-layers")
    assert rooms["exhaustive"] is True
