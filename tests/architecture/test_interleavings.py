"""Each interleaving of docs/core.md, section 13, is a scenario of tests/faults with a proof that it fails without its rule."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.architecture.tree import ROOT, Source, sources_of_tests

#: Those whose ground is not built, or whose scenario waits for it.
WAITING: Final[dict[int, str]] = {}
_NUMBER: Final = re.compile(r"\((\d+)\) ")


def numbers_of_the_document() -> set[int]:
    """The numbers that section 13 gives."""
    text = (ROOT / "docs" / "core.md").read_text()
    return {int(number) for number in _NUMBER.findall(text[text.index("## 13. ") :])}


def scenarios(source: Source) -> Iterator[tuple[str, int]]:
    """The scenarios of a file whose docstring names an interleaving, with its number."""
    for function in source.functions():
        named = _NUMBER.match(ast.get_docstring(function) or "")
        if function.name.startswith("scenario_") and named:
            yield function.name, int(named[1])


def proved(source: Source) -> set[str]:
    """The scenarios that a file's list of mutation proofs names."""
    found: set[str] = set()
    for node in source.tree.body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == "PROOFS":
            found |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return found


def test_every_interleaving_has_a_scenario_or_says_what_it_waits_for() -> None:
    found = {n for source in sources_of_tests() for _, n in scenarios(source)}
    assert found | WAITING.keys() == numbers_of_the_document() == set(range(1, 21))
    assert found & WAITING.keys() == set(), "an excuse that is no longer needed"


def test_every_scenario_of_an_interleaving_fails_without_its_rule() -> None:
    unproved = {
        f"{source.path}::{name}"
        for source in sources_of_tests()
        for name, _ in scenarios(source)
        if name not in proved(source)
    }
    assert unproved == set()
