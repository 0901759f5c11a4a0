"""Which code runs on which schema."""

from __future__ import annotations

import pytest

from shared.database.schema import COMPATIBLE_FROM, VERSION, require_compatible
from shared.domain.errors import SchemaOutOfRange


@pytest.mark.parametrize(
    ("version", "compatible_from", "code", "runs"),
    [
        (1, 1, 1, True),
        (3, 2, 2, True),
        (3, 2, 3, True),
        (3, 2, 1, False),
        (3, 2, 4, False),
        (3, 3, 2, False),
    ],
)
@pytest.mark.behaviour("OPS-05")
def test_code_runs_from_the_oldest_compatible_version_up_to_the_schemas_own(
    version: int, compatible_from: int, code: int, runs: bool
) -> None:
    row = {"version": version, "compatible_from": compatible_from}
    if runs:
        require_compatible(row, code_version=code)
        return
    with pytest.raises(SchemaOutOfRange) as refusal:
        require_compatible(row, code_version=code)
    assert refusal.value.fields == {
        "code_version": code,
        "version": version,
        "compatible_from": compatible_from,
    }
    assert f"schema {code}" in str(refusal.value) and f"at {version}" in str(refusal.value)


def test_a_database_without_a_schema_says_how_to_get_one() -> None:
    with pytest.raises(SchemaOutOfRange, match="turnkeeper migrate"):
        require_compatible(None)


def test_this_code_runs_on_what_it_migrates() -> None:
    require_compatible({"version": VERSION, "compatible_from": COMPATIBLE_FROM})
