"""Size budgets: what is larger than "look again" is looked at, and split or excused with a reason."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from typing import Final

from tests.architecture.tree import Source, sources_of_tests, standing_sources

FILE_LINES: Final = 500
CLASS_LINES: Final = 300
FUNCTION_LINES: Final = 60
FOLDER_MODULES: Final = 14

#: What may be larger, and why.
LARGE_FILES: Final[dict[str, str]] = {}
LARGE_CLASSES: Final[dict[str, str]] = {}
LARGE_FUNCTIONS: Final[dict[str, str]] = {}
LARGE_FOLDERS: Final[dict[str, str]] = {"producer/cli": "one module a command, and little else"}


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    """Lines from the ``def`` or ``class`` line to the last, the docstring left out."""
    docstring = ast.get_docstring(node, clean=False)
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    return lines - (docstring.count("\n") + 1 if docstring is not None else 0)


def functions_over(sources: list[Source], limit: int) -> dict[str, int]:
    return {
        f"{s.path}::{f.name}": size for s in sources for f in s.functions() if (size := body_lines(f)) > limit
    }


def classes_over(sources: list[Source], limit: int) -> dict[str, int]:
    return {
        f"{s.path}::{c.name}": size for s in sources for c in s.classes() if (size := body_lines(c)) > limit
    }


def check(found: Mapping[str, int], excused: Mapping[str, str], limit: int) -> None:
    over = {name: size for name, size in found.items() if size > limit}
    assert over.keys() == excused.keys(), f"over {limit}: {over}; excused: {dict(excused)}"


def test_no_file_is_longer_than_its_budget() -> None:
    sources = standing_sources() + sources_of_tests()
    check({source.path: len(source.text.splitlines()) for source in sources}, LARGE_FILES, FILE_LINES)


def test_no_function_is_longer_than_its_budget() -> None:
    long = functions_over(standing_sources() + sources_of_tests(), FUNCTION_LINES)
    check(long, LARGE_FUNCTIONS, FUNCTION_LINES)


def test_no_class_is_longer_than_its_budget() -> None:
    check(classes_over(standing_sources(), CLASS_LINES), LARGE_CLASSES, CLASS_LINES)


def test_no_folder_holds_more_modules_than_its_budget() -> None:
    modules = [source for source in standing_sources() if source.stem != "__init__"]
    check(Counter("/".join(source.folders) for source in modules), LARGE_FOLDERS, FOLDER_MODULES)


def test_a_docstring_does_not_count_and_the_body_does() -> None:
    source = Source("x.py", 'def f():\n    """One.\n\n    Two.\n    """\n    a = 1\n    return a\n')
    assert [body_lines(node) for node in source.functions()] == [3]
    assert functions_over([source], 2) == {"x.py::f": 3}
    assert functions_over([source], 3) == {}
