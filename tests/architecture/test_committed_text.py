"""What is committed runs anywhere: no package registry, no path of one machine, no leftover of a merge."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.architecture.tree import committed_texts

#: Written with one letter in brackets each, so that this file does not name them either.
REGISTRY: Final = re.compile(
    r"pyp[i]\.(?:org|io)|pythonhoste[d]\.org|npmj[s]\.(?:org|com)|crate[s]\.io|docke[r]\.io|ghc[r]\.io|qua[y]\.io"
    r"|huggingfac[e]\.co|proxy\.golan[g]\.org|(?:extra-)?inde[x]-url|://registr[y]\.",
    re.IGNORECASE,
)
MACHINE_PATH: Final = re.compile(r"(?<![\w./~-])/(?:work|home|root|Users)/[\w.-]|\b[A-Z]:\\Users")
MERGE_LEFTOVER: Final = re.compile(r"^(?:<{7} |>{7} )", re.MULTILINE)


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{text.count(chr(10), 0, found.start()) + 1}: {found.group()}"
        for path, text in committed_texts()
        for found in pattern.finditer(text)
    ]


def test_no_text_names_a_package_registry() -> None:
    assert lines_with(REGISTRY) == []


def test_no_text_names_a_path_of_one_machine() -> None:
    assert lines_with(MACHINE_PATH) == []


def test_no_text_holds_the_leftover_of_a_merge() -> None:
    assert lines_with(MERGE_LEFTOVER) == []


@pytest.mark.parametrize(
    "host", ["https://pyp" + "i.org/simple", "--extra-index" + "-url x", "docker" + ".io/redis"]
)
def test_a_registry_is_seen(host: str) -> None:
    assert REGISTRY.search(host)


@pytest.mark.parametrize("path", ["open('/home" + "/me/x')", "/root" + "/.cache", "cd /work" + "/main"])
def test_a_path_of_one_machine_is_seen(path: str) -> None:
    assert MACHINE_PATH.search(path)


@pytest.mark.parametrize(
    "path", ["/v1/home/x", "tests/work/x", "/tmp/x", "~/home/x", "https://example.org/root/x"]
)
def test_other_paths_are_not(path: str) -> None:
    assert MACHINE_PATH.search(path) is None
