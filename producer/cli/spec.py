"""``turnkeeper spec``: how many behaviour rows of ``docs/spec`` the tests cite.

Tests are read as text (``ast``), never imported, so the count needs no server and no test dependency.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from shared.domain.errors import Refused

MARKER: Final = "behaviour"
_ROW: Final = re.compile(r"^- \*\*(?P<id>(?P<area>[A-Z]{3})-T?\d+)\*\*")
_DEFERRED: Final = re.compile(r"\*\(deferred: .+\)\*\s*$")
_STATED: Final = re.compile(r"\*\(no test: .+\)\*\s*$")


class SpecError(Refused):
    """The rows and the tests contradict each other; the message has one finding a line."""

    code = "spec.contradiction"
    title = "Rows and tests contradict each other"


@dataclass(frozen=True, slots=True)
class Row:
    """One behaviour row: its id (``SES-17``), its area (``SES``), whether it waits, and whether it needs no test."""

    id: str
    area: str
    deferred: bool
    stated: bool = False


@dataclass(frozen=True, slots=True)
class Citation:
    """One id in a ``behaviour`` marker, and where it stands."""

    id: str
    path: Path
    line: int


@dataclass(frozen=True, slots=True)
class Area:
    """The rows of one prefix, those that a test cites, those that wait, and those that say why they need no test."""

    rows: tuple[str, ...]
    tested: frozenset[str]
    deferred: frozenset[str]
    stated: frozenset[str] = frozenset()

    @property
    def missing(self) -> tuple[str, ...]:
        """Rows that no test cites and that give no reason for it, in the order of the file."""
        return tuple(row for row in self.rows if row not in self.tested | self.deferred | self.stated)


def read_rows(folder: Path) -> dict[str, Row]:
    """Read every row below ``folder`` by id; raise ``SpecError`` for an id given twice."""
    rows: dict[str, Row] = {}
    for path in sorted(folder.glob("*.md")):
        if path.name == "README.md":
            continue  # it explains rows by examples
        for line in path.read_text(encoding="utf-8").splitlines():
            if (found := _ROW.match(line)) is None:
                continue
            row = Row(found["id"], found["area"], bool(_DEFERRED.search(line)), bool(_STATED.search(line)))
            if row.id in rows:
                raise SpecError(f"{path.name}: row {row.id} is given twice")
            rows[row.id] = row
    return rows


def read_citations(folder: Path) -> list[Citation]:
    """Read the ids of every ``behaviour`` marker below ``folder``, in the order of the files.

    Function, class and module (``pytestmark``) markers count. An argument that is no literal string is a
    ``SpecError``: it could not be counted.
    """
    return [citation for path in sorted(folder.rglob("*.py")) for citation in _citations_of(path)]


def _citations_of(path: Path) -> Iterator[Citation]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and _is_marker(node.func)):
            continue
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                raise SpecError(f"{path}:{argument.lineno}: a behaviour id must be a literal string")
            yield Citation(argument.value, path, argument.lineno)


def _is_marker(func: ast.expr) -> bool:
    match func:
        case ast.Attribute(attr=name, value=ast.Attribute(attr="mark")):
            return name == MARKER
        case _:
            return False


def tally(rows: Mapping[str, Row], citations: Iterable[Citation]) -> dict[str, Area]:
    """Count each area; raise ``SpecError`` that names every citation of no row or of a deferred one."""
    cited = list(citations)
    wrong = [f"{c.path}:{c.line}: {why}" for c in cited if (why := _objection(rows, c))]
    if wrong:
        raise SpecError("\n".join(wrong))
    tested = {citation.id for citation in cited}
    prefixes = sorted({row.area for row in rows.values()})
    return {prefix: _area([r for r in rows.values() if r.area == prefix], tested) for prefix in prefixes}


def _objection(rows: Mapping[str, Row], citation: Citation) -> str:
    row = rows.get(citation.id)
    if row is None:
        return f"no behaviour row {citation.id}"
    if row.stated:
        return f"row {row.id} says that it needs no test and yet has one"
    return f"row {row.id} is deferred and yet tested" if row.deferred else ""


def _area(rows: list[Row], tested: set[str]) -> Area:
    return Area(
        rows=tuple(row.id for row in rows),
        tested=frozenset(row.id for row in rows if row.id in tested),
        deferred=frozenset(row.id for row in rows if row.deferred),
        stated=frozenset(row.id for row in rows if row.stated),
    )


def render_table(areas: Mapping[str, Area]) -> str:
    """Draw one line an area and a sum."""
    counts = [
        (n, len(a.rows), len(a.tested), len(a.deferred), len(a.stated), len(a.missing))
        for n, a in areas.items()
    ]
    total = ("all", *(sum(column) for column in list(zip(*counts, strict=True))[1:]))
    lines = [f"{'area':<6}{'rows':>6}{'tested':>8}{'deferred':>10}{'no test':>9}{'missing':>9}"]
    for name, *numbers in (*counts, total):
        rows, tested, deferred, stated, missing = numbers
        lines.append(f"{name:<6}{rows:>6}{tested:>8}{deferred:>10}{stated:>9}{missing:>9}")
    return "\n".join(lines)


def as_json(areas: Mapping[str, Area]) -> str:
    """Encode the counts as one line: ``{"areas": {"SES": {"rows": 160, "tested": 12, "deferred": 0, …}, …}}``."""
    counts = {
        name: {
            "rows": len(area.rows),
            "tested": len(area.tested),
            "deferred": len(area.deferred),
            "no_test": len(area.stated),
        }
        for name, area in areas.items()
    }
    return json.dumps({"areas": counts})


def command(
    json_line: Annotated[
        bool, typer.Option("--json", help="Print one JSON object as the last line.")
    ] = False,
    area: Annotated[str, typer.Option("--area", help="Only this area, for example SES.")] = "",
    missing: Annotated[bool, typer.Option("--missing", help="List the rows that no test cites.")] = False,
    root: Annotated[Path, typer.Option("--root", help="The checkout that holds docs/ and tests/.")] = Path(),
) -> None:
    """Count the behaviour rows of docs/spec and those that a test proves."""
    try:
        areas = tally(read_rows(root / "docs" / "spec"), read_citations(root / "tests"))
        chosen = _choose(areas, area.upper())
    except SpecError as error:
        typer.echo(error.message, err=True)
        raise typer.Exit(code=1) from error
    typer.echo(render_table(chosen))
    if missing:
        for row in (row for one in chosen.values() for row in one.missing):
            typer.echo(row)
    if json_line:
        typer.echo(as_json(chosen))


def _choose(areas: Mapping[str, Area], name: str) -> Mapping[str, Area]:
    if not areas:
        raise SpecError("no behaviour rows found: run this in a checkout, or name it with --root")
    if name and name not in areas:
        raise SpecError(f"no area {name}; there are: {', '.join(areas)}")
    return {name: areas[name]} if name else areas
