"""Every failpoint is reached by product code under its own name, and armed by a test that needs it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from shared.domain.failpoints import POINTS
from tests.architecture.tree import Source, product_sources, sources_of_tests

#: Folders whose tests run product code with a point armed; unit tests of the registry itself arm nothing.
ARMING: Final = ("faults", "integration", "acceptance", "conformance")


def hits(source: Source) -> Iterator[str]:
    """The point of every ``….hit("name")``; a name that is no literal yields ``<computed>``."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="hit"), args=[ast.Constant(value=str(name))]):
                yield name
            case ast.Call(func=ast.Attribute(attr="hit"), args=[_]):
                yield "<computed>"


def armed(source: Source) -> set[str]:
    """The points that a test names, alone or as ``name=action`` inside a longer text."""
    return {
        point
        for text, _ in source.strings()
        for point in POINTS
        for part in text.split(",")
        if part.strip().partition("=")[0] == point
    }


def test_product_code_reaches_every_point_and_no_other() -> None:
    reached = {name for source in product_sources() for name in hits(source)}
    assert reached == set(POINTS)


def test_every_point_is_armed_by_a_test() -> None:
    named = {point for folder in ARMING for source in sources_of_tests(folder) for point in armed(source)}
    assert set(POINTS) - named == set()


def test_a_hit_and_an_arming_are_seen() -> None:
    point = POINTS[0]
    assert list(hits(Source("x.py", f"points.hit({point!r})\npoints.hit(name)"))) == [point, "<computed>"]
    assert armed(Source("x.py", f"env = '{POINTS[1]}=stop@2, {point}=kill'")) == {point, POINTS[1]}
    assert armed(Source("x.py", f"kind = '{point}.more'")) == set()
