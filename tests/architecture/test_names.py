"""Names come from the glossary: no grab-bag modules, no second word for one thing, a docstring on every module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

import pytest

from tests.architecture.tree import Source, sources_of_tests, standing_sources

GRAB_BAGS: Final = frozenset(
    {
        "util",
        "utils",
        "helper",
        "helpers",
        "common",
        "manager",
        "managers",
        "base",
        "core",
        "service",
        "services",
    }
    | {"misc", "tools_util", "lib", "stuff"}
)

#: Words that no class name holds, and the word to use.
FOREIGN_WORDS: Final = {
    "Thread": "a conversation is a session; for one of the operating system say what it does",
    "Task": "a child session's turn is a background task, named Task in rooms of that name; a Celery task is a job",
    "Manager": "say what it does",
    "Helper": "say what it does",
    "Util": "say what it does",
    "Utils": "say what it does",
    "Abstract": "a port is a plain noun",
    "Base": "a port is a plain noun",
    "Impl": "an adapter is named after its backend",
}
ALLOWED_PAIRS: Final = {("Background", "Task")}
#: Files whose path says that their tasks are background tasks.
ROOMS_OF_TASKS: Final = re.compile(r"(?:^|[/_])(?:background_)?tasks?(?:[/_.]|$)")

#: Class names that keep a foreign word, and why.
EXCUSED_CLASSES: Final[dict[str, str]] = {}

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*")


def foreign_words(name: str) -> list[str]:
    """The words of a class name that the glossary has no place for."""
    words = _WORD.findall(name)
    previous = ["", *words]
    return [
        word
        for before, word in zip(previous, words, strict=False)
        if word in FOREIGN_WORDS and (before, word) not in ALLOWED_PAIRS
    ]


def grab_bags(source: Source) -> Iterator[str]:
    for name in (*source.folders, source.stem):
        if name.strip("_") in GRAB_BAGS:
            yield f"{source.path}: {name}"


def test_no_module_or_folder_is_a_grab_bag() -> None:
    assert [
        finding for source in standing_sources() + sources_of_tests() for finding in grab_bags(source)
    ] == []


def test_every_module_says_what_lives_in_it() -> None:
    silent = [s.path for s in standing_sources() + sources_of_tests() if not ast.get_docstring(s.tree)]
    assert silent == []


def test_class_names_use_the_words_of_the_glossary() -> None:
    found = {
        f"{source.path}::{node.name}": f"{word}: {FOREIGN_WORDS[word]}"
        for source in standing_sources()
        for node in source.classes()
        for word in foreign_words(node.name)
        if word != "Task" or not ROOMS_OF_TASKS.search(source.path)
    }
    assert found.keys() == EXCUSED_CLASSES.keys(), found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ThreadStore", ["Thread"]),
        ("TaskRunner", ["Task"]),
        ("BackgroundTask", []),
        ("SessionManager", ["Manager"]),
        ("HTTPBase", ["Base"]),
        ("Tasked", []),
        ("TurnQueue", []),
    ],
)
def test_a_foreign_word_is_seen_as_a_whole_word(name: str, words: list[str]) -> None:
    assert foreign_words(name) == words


@pytest.mark.parametrize("path", ["shared/utils.py", "shared/core/x.py", "tests/unit/_helpers.py"])
def test_a_grab_bag_is_seen(path: str) -> None:
    assert len(list(grab_bags(Source(path, "")))) == 1
