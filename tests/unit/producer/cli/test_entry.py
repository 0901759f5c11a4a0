"""The door of the command line: help, unknown commands, typed errors."""

from __future__ import annotations

import importlib.util

import pytest

from producer.cli.entry import COMMANDS, main, module_of
from producer.cli.worker import worker_arguments


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [name for name, summary in COMMANDS.items() if name not in shown or summary not in shown] == []


def test_every_command_has_its_module() -> None:
    assert [name for name in COMMANDS if importlib.util.find_spec(module_of(name)) is None] == []


def test_an_unknown_command_is_named_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dve"]) == 2
    assert "no command 'dve'" in capsys.readouterr().err


def test_a_typed_error_is_one_line_with_its_code_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "no-such-pool"]) == 2
    assert capsys.readouterr().err == "turnkeeper: no pool 'no-such-pool' [input.invalid]\n"


def test_a_worker_serves_its_queue_under_a_name_of_its_own_and_keeps_its_heartbeat() -> None:
    first, second = worker_arguments("turns", 40), worker_arguments("turns", None)
    assert first[first.index("-Q") + 1] == "turns"
    assert first[first.index("--concurrency") + 1] == "40"
    assert "--concurrency" not in second
    assert first[first.index("-n") + 1] != second[second.index("-n") + 1]
    assert "--without-heartbeat" not in first
