"""The words of a text that carry its meaning, brought to one form: what questions, passages and vectors are compared by."""

from __future__ import annotations

import re
from typing import Final

_WORD = re.compile(r"[^\W_]+")
_FOR_A_LIVING = re.compile(r"\b(?:do i do for a living|is my (?:job|occupation|profession))\b", re.IGNORECASE)

#: What a question may hold and its answer need not.
_EMPTY: Final = frozenset(
    word
    for line in (
        "a about again all am an and any anything are as ask asked at be been but by called can city could country",
        "did do does for from had has have how i in is it its kind know long me mine my of on or our over please recall",
        "remember remind s say said so sort still t tell that the their them there they this to too town type us user",
        "users ve was we were what when where which who whom whose why will with would you your",
    )
    for word in line.split()
)
_SAME: Final = {
    "color": "colour",
    "favorite": "favourite",
    "home": "live",
    "address": "live",
    "living": "live",
    "job": "work",
    "occupation": "work",
    "employer": "work",
    "allergy": "allergic",
    "love": "opinion",
    "like": "opinion",
    "hate": "opinion",
    "enjoy": "opinion",
    "dislike": "opinion",
    "adore": "opinion",
    "prefer": "opinion",
}


def words_of(text: str) -> frozenset[str]:
    """Return the words of ``text`` that mean something, without their endings, synonyms as one word."""
    text = _FOR_A_LIVING.sub(" work ", text)
    found = (word for word in _WORD.findall(text.casefold()) if word not in _EMPTY)
    return frozenset(_SAME.get(stem, stem) for stem in map(_stem, found))


def _stem(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        return word[:-1]
    return word
