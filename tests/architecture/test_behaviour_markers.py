"""What tests cite exists: behaviour rows, and markers that the project declares."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from typing import Final

import pytest

from producer.cli.spec import MARKER, read_citations, read_rows, tally
from tests.architecture.tree import ROOT, Source, sources_of_tests

BUILT_IN: Final = {"parametrize", "skip", "skipif", "xfail", "usefixtures", "filterwarnings", "asyncio"}


def marks(source: Source) -> Iterator[ast.Attribute]:
    """Every ``pytest.mark.<name>`` of a file."""
    for node in source.nodes:
        match node:
            case ast.Attribute(value=ast.Attribute(attr="mark", value=ast.Name(id="pytest"))):
                yield node


def declared_markers() -> set[str]:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
    return {line.split(":")[0].split("(")[0] for line in options["ini_options"]["markers"]}


def test_every_cited_behaviour_row_exists_and_is_not_deferred() -> None:
    tally(read_rows(ROOT / "docs/spec"), read_citations(ROOT / "tests"))


def test_every_behaviour_marker_cites_at_least_one_row() -> None:
    bare = [
        f"{source.path}:{node.lineno}"
        for source in sources_of_tests()
        for called in [set(marks(source))]
        for node in source.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func in called
        and node.func.attr == MARKER
        and not node.args
    ]
    assert bare == []


def test_only_known_markers_are_used() -> None:
    known = BUILT_IN | declared_markers()
    unknown = [
        f"{source.path}:{mark.lineno}: {mark.attr}"
        for source in sources_of_tests()
        for mark in marks(source)
        if mark.attr not in known
    ]
    assert unknown == []


def test_the_index_of_the_rows_names_each_area_and_its_file() -> None:
    index = (ROOT / "docs/spec/README.md").read_text(encoding="utf-8")
    lines = {line for line in index.splitlines() if line.startswith("| ")}
    for path in sorted((ROOT / "docs/spec").glob("*.md")):
        if path.name == "README.md":
            continue
        areas = {
            row.area
            for row in read_rows(path.parent).values()
            if f"- **{row.id}**" in path.read_text("utf-8")
        }
        assert len(areas) == 1, f"{path.name} has rows of {areas}"
        assert any(line.startswith(f"| {areas.copy().pop()} | [`{path.name}`]") for line in lines), path.name


@pytest.mark.parametrize("text", ["@pytest.mark.slow\ndef test_x(): ...", "pytestmark = [pytest.mark.slow]"])
def test_an_undeclared_marker_is_seen_on_functions_and_modules(text: str) -> None:
    assert [mark.attr for mark in marks(Source("tests/x.py", text))] == ["slow"]
