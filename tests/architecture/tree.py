"""The checkout as the architecture tests read it: files, parsed modules and what they import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
HOUSES: Final = ("producer", "workers", "memory_pipeline", "shared")
#: Stands on all houses, is part of none, and is not installed with them.
BENCHMARKS: Final = "benchmarks"
_GENERATED: Final = {"__pycache__", "build", "dist"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the root (``shared/domain/ids.py``) and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.text, filename=self.path)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree, walked once."""
        return tuple(ast.walk(self.tree))

    @property
    def stem(self) -> str:
        """The file's name without its ending."""
        return Path(self.path).stem

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders it lies in, from the root down."""
        return Path(self.path).parent.parts

    def classes(self) -> Iterator[ast.ClassDef]:
        """Every class, nested ones included."""
        return (node for node in self.nodes if isinstance(node, ast.ClassDef))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Every function, methods and nested ones included."""
        return (node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    def imports(self) -> Iterator[tuple[str, int]]:
        """The dotted name and line of every absolute import, wherever it stands in the file."""
        for node in self.nodes:
            match node:
                case ast.Import(names=names):
                    yield from ((alias.name, node.lineno) for alias in names)
                case ast.ImportFrom(module=str(module), level=0):
                    yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)

    def strings(self) -> Iterator[tuple[str, int]]:
        """Every string constant that is no docstring, with its line; the fixed parts of f-strings included."""
        docstrings = {id(node) for node in self._docstrings()}
        for node in self.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield node.value, node.lineno

    def _docstrings(self) -> Iterator[ast.expr]:
        for node in self.nodes:
            if isinstance(node, Definition) and node.body and isinstance(node.body[0], ast.Expr):
                yield node.body[0].value


def product_sources() -> list[Source]:
    """Every Python file of the houses."""
    return [source for house in HOUSES for source in _sources(house)]


def standing_sources() -> list[Source]:
    """Every Python file of the houses and of the benchmarks."""
    return product_sources() + _sources(BENCHMARKS)


def sources_of_tests(folder: str = "") -> list[Source]:
    """Every Python file below ``tests/`` or one folder of it."""
    return _sources(f"tests/{folder}" if folder else "tests")


def committed_texts() -> Iterator[tuple[str, str]]:
    """Path and text of every text file of the checkout that no ignore rule is meant for."""
    for path in _files(ROOT):
        try:
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an image


@cache
def _sources(folder: str) -> list[Source]:
    paths = [path for path in _files(ROOT / folder) if path.suffix == ".py"]
    return [Source(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in paths]


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if not _is_generated(path.name):
                yield from _files(path)
        elif path.name != ".git":
            yield path


def _is_generated(folder: str) -> bool:
    hidden = folder.startswith(".") and folder not in {".ci", ".github"}
    return hidden or folder in _GENERATED or folder.endswith(".egg-info")
