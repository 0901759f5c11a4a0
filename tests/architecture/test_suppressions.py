"""A suppression names its rule and gives a reason on its line; tests take parts by argument and patch nothing."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from typing import Final

import pytest

from tests.architecture.tree import Source, sources_of_tests, standing_sources

_SUPPRESSION: Final = re.compile(
    r"#\s*(?P<tool>type:\s*ignore|noqa|pyright:\s*ignore|pragma:\s*no cover|nosec)\b"
)
_EXPLAINED: Final = re.compile(
    r"#\s*(?:type:\s*ignore\[[\w, -]+\]|noqa:\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)\s*(?:#|-|;|:)\s*\w.{8,}"
)


def unexplained(source: Source) -> Iterator[str]:
    if not _SUPPRESSION.search(source.text):
        return
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type != tokenize.COMMENT or not _SUPPRESSION.search(token.string):
            continue
        if not _EXPLAINED.search(token.string):
            yield f"{source.path}:{token.start[0]}: {token.string}"


def patches(source: Source) -> Iterator[str]:
    for name, line in source.imports():
        if name.startswith(("unittest.mock", "mock.", "pytest_mock")) or name == "mock":
            yield f"{source.path}:{line}: {name}"
    for function in source.functions():
        for argument in (*function.args.args, *function.args.kwonlyargs):
            if argument.arg in {"monkeypatch", "mocker"}:
                yield f"{source.path}:{argument.lineno}: {argument.arg}"


def test_every_suppression_names_its_rule_and_gives_a_reason() -> None:
    assert [
        finding for source in standing_sources() + sources_of_tests() for finding in unexplained(source)
    ] == []


def test_no_test_patches_what_it_tests() -> None:
    assert [finding for source in sources_of_tests() for finding in patches(source)] == []


@pytest.mark.parametrize(
    "comment",
    [
        "# type" + ": ignore",
        "# type" + ": ignore[misc]",
        "# no" + "qa",
        "# no" + "qa: E501",
        "# pragma" + ": no cover",
    ],
)
def test_a_bare_suppression_is_seen(comment: str) -> None:
    assert len(list(unexplained(Source("x.py", f"x = 1  {comment}\n")))) == 1


@pytest.mark.parametrize(
    "comment",
    [
        "# type" + ": ignore[misc]  # kombu has no types",
        "# no" + "qa: PLC0415 - loaded in the child process only",
    ],
)
def test_an_explained_suppression_passes(comment: str) -> None:
    assert list(unexplained(Source("x.py", f"x = 1  {comment}\n"))) == []


@pytest.mark.parametrize("text", ["from unittest import mock", "def test_x(monkeypatch): ..."])
def test_a_patch_is_seen(text: str) -> None:
    assert len(list(patches(Source("x.py", text)))) == 1
