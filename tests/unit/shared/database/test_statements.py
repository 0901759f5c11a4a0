"""Named statements are read from a file, whole and once."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.database.statements import load_statements
from shared.domain.errors import Broken


def written(folder: Path, text: str) -> Path:
    path = folder / "queries.sql"
    path.write_text(text, encoding="utf-8")
    return path


def test_each_block_is_a_statement_without_its_comments_and_its_semicolon(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "-- What stands here.\n\n-- name: one\n-- Reads one.\nSELECT 1\n-- inside\n  WHERE true;\n\n-- name: two_b\nSELECT 2\n",
    )
    found = load_statements(path)
    assert {name: s.text for name, s in found.items()} == {
        "one": "SELECT 1\n  WHERE true",
        "two_b": "SELECT 2",
    }
    assert found["one"].name == "one"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 0;\n-- name: one\nSELECT 1;",
        "-- name: one\nSELECT 1;\n-- name: one\nSELECT 2;",
        "-- name: one\n-- only words\n-- name: two\nSELECT 2;",
        "-- name: one\n;",
    ],
)
def test_text_before_a_name_a_name_given_twice_and_an_empty_block_are_refused(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(Broken):
        load_statements(written(tmp_path, text))


def test_a_heading_that_is_no_name_does_not_begin_a_block(tmp_path: Path) -> None:
    found = load_statements(written(tmp_path, "-- name: one\nSELECT 1\n-- name: Two\nWHERE true\n"))
    assert [s.text for s in found.values()] == ["SELECT 1\nWHERE true"]
