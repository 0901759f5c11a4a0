"""Answers questions from passages that a request carries as recalled, and from what the user said in its conversation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from producer.dev.offline.facts import Fact, find_facts
from producer.dev.offline.words import words_of

ENVELOPE_MAX_CHARS = 200_000
LINE_SHOWN_MAX_CHARS = 300

_CITATION = re.compile(r"memory:\d{1,6}")
_ARRAY_START = re.compile(r"(?:^|\n)[ \t]*(?=\[)")
_LEADING_ASKS = r"(?:please|so|and|ok(?:ay)?|hi|hello|hey|well|now)"
_QUESTION = re.compile(
    rf"\?\W*$|^\W*(?:{_LEADING_ASKS}\W+)*(?:what|who|whose|where|when|which|how|why|do|does|did|am|is|are|was|were|"
    rf"tell me|can you|could you|remind me)\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_OF_ONESELF = re.compile(r"\b(?:my|mine|i|me)\b", re.IGNORECASE)
_THIRD_PERSON = re.compile(r"^The user(?P<owns>['\u2019]s)? (?P<verb>(?!s\b)\w+)?")
_SECOND_PERSON: Final = {
    "lives": "live",
    "works": "work",
    "is": "are",
    "has": "have",
    "does": "do",
    "loves": "love",
    "likes": "like",
    "hates": "hate",
    "enjoys": "enjoy",
    "dislikes": "dislike",
    "adores": "adore",
    "prefers": "prefer",
    "asked": "asked",
}


@dataclass(frozen=True, slots=True)
class Remembered:
    """One line that may answer: what it says, and the citation of its passage; "" for what was said in this conversation."""

    line: str
    citation: str = ""


def recalled_lines(text: str) -> list[Remembered] | None:
    """Return the lines of the passages in a recall envelope, in their order; None when ``text`` is no envelope.

    An envelope ends in a JSON array of objects, each with a citation ``memory:N`` and a content with a text.
    """
    if "memory:" not in text or len(text) > ENVELOPE_MAX_CHARS:
        return None
    for start in _ARRAY_START.finditer(text):
        try:
            passages, _ = json.JSONDecoder().raw_decode(text, start.end())
        except (ValueError, RecursionError):
            continue
        lines = [_lines_of(passage) for passage in passages]
        if lines and all(found is not None for found in lines):
            return [line for found in lines for line in found or ()]
    return None


def _lines_of(passage: Any) -> list[Remembered] | None:
    if not isinstance(passage, dict):
        return None
    citation, content = passage.get("citation"), passage.get("content", passage.get("text"))
    text = content.get("text") if isinstance(content, dict) else content
    if not isinstance(citation, str) or not _CITATION.fullmatch(citation) or not isinstance(text, str):
        return None
    return [Remembered(line.strip(), citation) for line in text.splitlines() if line.strip()]


def said_lines(earlier: Iterable[str]) -> list[Remembered]:
    """Return what the user stated in ``earlier`` messages, the newest first; of one subject only the newest."""
    facts: dict[str, Fact] = {}
    for fact in (fact for text in earlier for fact in find_facts(text)):
        facts.pop(fact.subject, None)
        facts[fact.subject] = fact
    return [Remembered(fact.statement) for fact in reversed(facts.values())]


def is_question(text: str) -> bool:
    """Say whether ``text`` asks something."""
    return _QUESTION.search(text) is not None


def last_question(text: str) -> str | None:
    """Return the last sentence of ``text`` that asks something, None without one."""
    return next((part for part in reversed(_SENTENCE_END.split(text)) if is_question(part)), None)


def is_about_oneself(text: str) -> bool:
    """Say whether ``text`` speaks of its speaker."""
    return _OF_ONESELF.search(text) is not None


def recollect(question: str, lines: Sequence[Remembered]) -> Remembered | None:
    """Return the line that holds every word the question asks for, the one with the fewest others; None without one."""
    asked = words_of(question)
    if not asked:
        return None
    fitting = [(len(words_of(item.line) - asked), item) for item in lines if asked <= words_of(item.line)]
    return min(fitting, key=lambda pair: pair[0])[1] if fitting else None


def tell(remembered: Remembered) -> str:
    """Return the line as it is told to the user it is about, with its citation."""
    line = remembered.line[:LINE_SHOWN_MAX_CHARS].rstrip(".")
    told = _to_second_person(line) or f"I remember this: “{line}”"
    return f"{told} ({remembered.citation})." if remembered.citation else f"{told}."


def _to_second_person(line: str) -> str | None:
    found = _THIRD_PERSON.match(line)
    if found is None:
        return None
    if found["owns"]:
        return f"Your {line[found.start('verb') :]}" if found["verb"] else None
    verb = _SECOND_PERSON.get(found["verb"] or "")
    return f"You {verb}{line[found.end() :]}" if verb else None
