"""``turnkeeper spec`` on a small tree of rows and tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from producer.cli.spec import SpecError, command, read_citations, read_rows, tally

ROWS = """# Sessions (SES)

- **SES-01** One log a session.
- **SES-02** (adapt) Two layers.
- **SES-03** Waits. *(deferred: needs the event bus)*
- **SES-04** Named so elsewhere. *(no test: a name)*

## Tests that must exist

- **SES-T01** A crash in the middle.
- a scenario without an id
"""

TESTS = '''"""Cites rows on a module, a class and a function."""
import pytest

pytestmark = [pytest.mark.behaviour("SES-01")]


@pytest.mark.behaviour("SES-02")
class TestLayers:
    @pytest.mark.behaviour("SES-T01", "SES-01")
    def test_crash(self) -> None: ...
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "docs/spec").mkdir(parents=True)
    (tmp_path / "tests/unit").mkdir(parents=True)
    (tmp_path / "docs/spec/README.md").write_text("- **SES-99** an example\n")
    (tmp_path / "docs/spec/sessions.md").write_text(ROWS)
    (tmp_path / "docs/spec/usage.md").write_text("- **USE-01** Counted.\n")
    (tmp_path / "tests/unit/test_sessions.py").write_text(TESTS)
    return tmp_path


def run(checkout: Path, *arguments: str) -> tuple[int, list[str], str]:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, ["--root", str(checkout), *arguments])
    return result.exit_code, result.stdout.splitlines(), result.stderr


def cite(checkout: Path, argument: str) -> None:
    (checkout / "tests/test_more.py").write_text(
        f"import pytest\n\n@pytest.mark.behaviour({argument})\ndef test_more(): ...\n"
    )


def test_the_last_line_of_json_counts_rows_and_distinct_tested_rows_of_each_area(checkout: Path) -> None:
    code, lines, _ = run(checkout, "--json")
    assert code == 0
    assert json.loads(lines[-1]) == {
        "areas": {
            "SES": {"rows": 5, "tested": 3, "deferred": 1, "no_test": 1},
            "USE": {"rows": 1, "tested": 0, "deferred": 0, "no_test": 0},
        }
    }


def test_the_table_has_a_line_for_each_area_and_a_sum(checkout: Path) -> None:
    _, lines, _ = run(checkout)
    assert [line.split() for line in lines[1:]] == [
        ["SES", "5", "3", "1", "1", "0"],
        ["USE", "1", "0", "0", "0", "1"],
        ["all", "6", "3", "1", "1", "1"],
    ]


def test_missing_lists_rows_that_no_test_cites_and_none_that_gives_a_reason(checkout: Path) -> None:
    _, lines, _ = run(checkout, "--missing")
    assert lines[-1] == "USE-01"
    assert "SES-03" not in lines
    assert "SES-04" not in lines


def test_one_area_can_be_chosen_in_any_letter_case(checkout: Path) -> None:
    _, lines, _ = run(checkout, "--area", "use", "--json")
    assert list(json.loads(lines[-1])["areas"]) == ["USE"]


def test_an_unknown_area_is_refused_with_the_known_ones(checkout: Path) -> None:
    code, _, complaint = run(checkout, "--area", "XYZ")
    assert code == 1
    assert "SES, USE" in complaint


def test_a_cited_id_that_no_row_has_fails_and_names_file_and_id(checkout: Path) -> None:
    cite(checkout, '"SES-77"')
    code, _, complaint = run(checkout)
    assert code == 1
    assert "test_more.py:3" in complaint
    assert "SES-77" in complaint


def test_a_deferred_row_that_a_test_cites_fails(checkout: Path) -> None:
    cite(checkout, '"SES-03"')
    code, _, complaint = run(checkout)
    assert code == 1
    assert "SES-03 is deferred" in complaint


def test_a_row_that_needs_no_test_and_has_one_fails(checkout: Path) -> None:
    cite(checkout, '"SES-04"')
    code, _, complaint = run(checkout)
    assert code == 1
    assert "SES-04 says that it needs no test" in complaint


def test_an_id_that_is_no_literal_is_refused(checkout: Path) -> None:
    cite(checkout, "ROW")
    with pytest.raises(SpecError, match="literal string"):
        read_citations(checkout / "tests")


def test_an_id_given_twice_is_refused(checkout: Path) -> None:
    (checkout / "docs/spec/other.md").write_text("- **SES-01** Again.\n")
    with pytest.raises(SpecError, match="SES-01 is given twice"):
        read_rows(checkout / "docs/spec")


def test_markers_of_other_names_cite_nothing(checkout: Path) -> None:
    (checkout / "tests/unit/test_sessions.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('SES-01', [1])\ndef test_x(): ...\n"
    )
    areas = tally(read_rows(checkout / "docs/spec"), read_citations(checkout / "tests"))
    assert areas["SES"].tested == frozenset()


def test_a_folder_without_rows_is_an_error_and_not_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    code, _, complaint = run(tmp_path)
    assert code == 1
    assert "--root" in complaint
