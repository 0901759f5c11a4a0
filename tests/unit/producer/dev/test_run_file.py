"""`run.json`: what `dev` tells `chat` and `status`, for as long as it lives."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from producer.dev.run_file import RunFile, process_start, read_run_file, remove_run_file, write_run_file


@pytest.fixture
def content() -> RunFile:
    return RunFile(
        pid=os.getpid(),
        started_at=process_start(),
        producer_url="http://127.0.0.1:8000",
        flower_url="http://127.0.0.1:5555",
        database_url="postgresql://u:p@127.0.0.1/d",
        broker_url="redis://:p@127.0.0.1/0",
        feed_url="redis://:p@127.0.0.1/0",
        offline_model_url="",
        processes={"producer": {"pid": 1, "log": "producer.log"}},
    )


def test_what_was_written_is_read_by_its_owner_alone(tmp_path: Path, content: RunFile) -> None:
    write_run_file(tmp_path, content)
    write_run_file(tmp_path, content)
    assert read_run_file(tmp_path) == content
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").stat().st_mode & 0o777 == 0o600


def test_the_file_of_a_dead_run_is_none(tmp_path: Path, content: RunFile) -> None:
    write_run_file(tmp_path, dataclasses.replace(content, started_at=content.started_at - 60))
    assert read_run_file(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pid": 1}'])
def test_a_file_that_says_nothing_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    assert read_run_file(tmp_path) is None


def test_no_file_is_none_and_removing_it_twice_is_nothing(tmp_path: Path, content: RunFile) -> None:
    assert read_run_file(tmp_path) is None
    write_run_file(tmp_path, content)
    remove_run_file(tmp_path)
    remove_run_file(tmp_path)
    assert read_run_file(tmp_path) is None
