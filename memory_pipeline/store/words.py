"""Words of queries and texts, and the passages of a document that hold them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from memory_pipeline.store.documents import WHOLE, Content, Document, Passage

QUERY_MAX_CHARS: Final = 8_192
QUERY_MAX_WORDS: Final = 64
WHOLE_MAX_CHARS: Final = 2_048

#: What says nothing about the fact that is asked for. Short and English on purpose: a word too many in a query costs
#: rank only, one too few loses the fact.
_STOP_WORDS = """
    a about am an and any are as at be been but by can could d did do does for from had has have he her his how i if in
    is it its ll m me my no not of on or our please re s she should so t tell than that the their them then there these
    they this to us ve was we were what when where which who why will with would you your
"""
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())

_WORD: Final = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """Return the distinct words of a text in their order, lower-case, without stop words."""
    return [word for word in dict.fromkeys(_WORD.findall(text.lower())) if word not in STOP_WORDS]


def query_words(query: str) -> list[str]:
    """Return the words that a query is searched by: at most ``QUERY_MAX_WORDS`` of its first ``QUERY_MAX_CHARS``."""
    return words_of(query[:QUERY_MAX_CHARS])[:QUERY_MAX_WORDS]


def passages_of(document: Document, words: frozenset[str]) -> list[Passage]:
    """Return what of an active document may answer a query of these words: each text occurs in the document literally.

    A text of at most ``WHOLE_MAX_CHARS`` characters is one passage. Of a longer one, each run of lines that hold a word
    is one, those with most words first; a text whose lines hold none is whole.
    """
    content = document.content
    if content is None:
        return []
    if len(content.text) <= WHOLE_MAX_CHARS:
        return [_passage(document, content, WHOLE)]
    found = [
        (
            len(held),
            _passage(document, content.model_copy(update={"text": text}), f"lines:{first + 1}-{last + 1}"),
        )
        for first, last, text, held in _runs(content.text, words)
    ]
    ranked = [passage for _, passage in sorted(found, key=lambda pair: -pair[0])]
    return ranked or [_passage(document, content, WHOLE)]


def _runs(text: str, words: frozenset[str]) -> Iterator[tuple[int, int, str, set[str]]]:
    """Yield each run of neighbouring lines that hold a word: first and last line, text, the words held."""
    run: list[str] = []
    held: set[str] = set()
    lines = text.split("\n")
    for place, line in enumerate([*lines, ""]):
        here = words.intersection(words_of(line)) if place < len(lines) else set[str]()
        if here:
            run.append(line)
            held |= here
        elif run:
            yield place - len(run), place - 1, "\n".join(run), held
            run, held = [], set()


def _passage(document: Document, content: Content, passage_id: str) -> Passage:
    return Passage(
        authority=document.key.namespace, source=document.source, passage_id=passage_id, content=content
    )
