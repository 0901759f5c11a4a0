"""Finds what a user says of himself in a text, by simple rules: subjects, statements in the third person, literal words."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

#: Rules read so much of a text; a sentence longer than this says nothing that they understand.
TEXT_MAX_CHARS = 16_000
SENTENCE_MAX_CHARS = 300
SUBJECT_MAX_CHARS = 48
VALUE_MAX_WORDS = 12


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement. Equal subjects are about the same thing: the later one counts. ``quote`` is from the text."""

    subject: str
    statement: str
    quote: str


_SENTENCE = re.compile(r"[^.!?;\n]+(?:[.!?;](?=[^\s.!?;])[^.!?;\n]+)*[.!?;]*")
_QUESTION = re.compile(
    r"^\W*(?:what|who|whom|whose|where|when|why|how|which|do|does|did|is|are|am|was|were|can|could|would|will|"
    r"should|shall|may|might|have|has)\b|\?\W*$",
    re.IGNORECASE,
)
_HYPOTHETICAL = re.compile(
    r"\b(?:if|suppose|supposing|imagine|pretend|assume|assuming|unless|wish|hypothetically|would|let['\u2019]?s say)\b",
    re.IGNORECASE,
)

#: Where a clause about the user begins, and where it ends.
_BEGIN: Final = (
    r"(?:^|(?<=[,:(\u2013\u2014-])|(?<=[\"\u201c]))\W*(?:(?:and|but|so|also|because|actually|now|hi|hello|hey|well|yes|no|"
    r"please|remember|note|that|today|currently|btw|by the way)[\s,:]+)*"
    r"|(?<=\band )|(?<=\bbut )|(?<=\bbecause )|(?<=\bso )|(?<=\balso )"
)
_END: Final = r"(?=\s*(?:,|[.!?;)\"\u201d]*\s*$|\s(?:and|but|so|because|or|since|while)\s+(?:i|i['\u2019]m|my|also|please)\b|\s(?:but|because)\s))"
_WORD: Final = r"[^\W\d_][\w'\u2019-]*"
_NAME: Final = rf"{_WORD}(?:\s+(?!and\b|but\b|so\b|because\b){_WORD}){{0,3}}?"
_VALUE: Final = r"\S[^,;!?\n]*?"


def _rule(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{_BEGIN})(?P<quote>{words}){_END}", re.IGNORECASE)


Told = Callable[[re.Match[str]], tuple[str, str] | None]


def _name(found: re.Match[str]) -> tuple[str, str] | None:
    return "name", f"The user's name is {found['value']}."


def _favourite(found: re.Match[str]) -> tuple[str, str] | None:
    thing = _british(_plain(found["thing"]))
    return f"favourite-{_slug(thing)}", f"The user's favourite {thing} is {_value(found)}."


def _home(found: re.Match[str]) -> tuple[str, str] | None:
    return "home", f"The user lives {(found['where'] or 'in').lower()} {_value(found)}."


def _occupation(found: re.Match[str]) -> tuple[str, str] | None:
    return "occupation", f"The user works as {_value(found)}."


def _employer(found: re.Match[str]) -> tuple[str, str] | None:
    return "employer", f"The user works {found['where'].lower()} {_value(found)}."


def _allergy(found: re.Match[str]) -> tuple[str, str] | None:
    value = _value(found)
    return f"allergy-{_slug(value)}", f"The user is {'not ' if found['not'] else ''}allergic to {value}."


def _opinion(found: re.Match[str]) -> tuple[str, str] | None:
    value = _INTENSITY.sub("", _value(found))
    if not value or _POINTING.match(value):
        return None
    verb = found["verb"].lower()
    says = f"does not {verb}" if found["not"] else _THIRD_PERSON[verb]
    return f"opinion-{_slug(value)}", f"The user {says} {value}."


_THIRD_PERSON: Final = {
    "love": "loves",
    "like": "likes",
    "hate": "hates",
    "enjoy": "enjoys",
    "dislike": "dislikes",
    "adore": "adores",
    "prefer": "prefers",
}
_INTENSITY = re.compile(r"\s+(?:very much|so much|a lot|now|too|again|any ?more)$", re.IGNORECASE)
_POINTING = re.compile(
    r"(?:it|this|that|these|those|you|him|her|them|to|how|what|when|your)\b", re.IGNORECASE
)

RULES: Final[tuple[tuple[re.Pattern[str], Told], ...]] = (
    (_rule(rf"(?:my name(?:['\u2019]s| is)|i(?: am|['\u2019]m) called)\s+(?P<value>{_NAME})"), _name),
    # Only a word written like a name: "call me later" names nobody.
    (_rule(rf"(?:you can |just )?call me\s+(?P<value>(?-i:[A-Z]){_NAME}|(?-i:[A-Z]))"), _name),
    (
        _rule(rf"my favou?rite\s+(?P<thing>{_NAME})(?:['\u2019]s|\s+is|\s+are)\s+(?P<value>{_VALUE})"),
        _favourite,
    ),
    (
        _rule(
            rf"i(?:\s+(?:now|currently|still))?(?:(?:\s+live|(?:\s+am|['\u2019]m)\s+living)\s+(?P<where>in|at|on|near)"
            rf"|(?:\s+have|['\u2019]ve)?(?:\s+just)?\s+moved\s+to)\s+(?P<value>{_VALUE})"
        ),
        _home,
    ),
    (_rule(rf"i(?:\s+now)?\s+work\s+as\s+(?P<value>{_VALUE})"), _occupation),
    (_rule(rf"i(?:\s+now)?\s+work\s+(?P<where>at|for)\s+(?P<value>{_VALUE})"), _employer),
    (_rule(rf"i(?: am|['\u2019]m)\s+(?P<not>not\s+)?allergic to\s+(?P<value>{_VALUE})"), _allergy),
    (
        _rule(
            rf"i\s+(?:(?:really|absolutely|just|now|also|still|simply)\s+)*"
            rf"(?P<not>(?:do not|don['\u2019]t)\s+(?:really\s+)?)?"
            rf"(?P<verb>{'|'.join(_THIRD_PERSON)})\s+(?P<value>{_VALUE})"
        ),
        _opinion,
    ),
)
_REMEMBER = re.compile(
    r"^\W*(?:(?:and|also|please|so)[\s,]+)*remember(?:\s+that\b|\s*:)\s*(?P<quote>\S.*?)[.!;]*\s*$",
    re.IGNORECASE,
)


def find_facts(text: str) -> list[Fact]:
    """Return the facts that ``text`` states, in its order; of a subject told twice only the last.

    Questions, and what is only supposed or wished, state nothing.
    """
    facts: dict[str, Fact] = {}
    for sentence in _SENTENCE.finditer(text[:TEXT_MAX_CHARS]):
        words = sentence.group()
        if len(words) > SENTENCE_MAX_CHARS or _QUESTION.search(words) or _HYPOTHETICAL.search(words):
            continue
        for fact in _facts_of(words):
            facts.pop(fact.subject, None)
            facts[fact.subject] = fact
    return list(facts.values())


def _facts_of(sentence: str) -> list[Fact]:
    found = sorted(_matches(sentence))
    if found:
        return [Fact(subject, statement, quote) for _, subject, statement, quote in found]
    if (note := _REMEMBER.match(sentence)) is None:
        return []
    what = note["quote"]
    topic = re.split(r"\s+(?:is|are|was|were|has|have|will|must|should)\b", what, maxsplit=1)[0]
    return [Fact(f"note-{_slug(_plain(topic))}", f"The user asked to remember: {what}.", what)]


def _matches(sentence: str) -> Iterator[tuple[int, str, str, str]]:
    for pattern, tell in RULES:
        for found in pattern.finditer(sentence):
            if len(found["value"].split()) <= VALUE_MAX_WORDS and (told := tell(found)) is not None:
                yield found.start("quote"), *told, found["quote"]


def _value(found: re.Match[str]) -> str:
    return " ".join(found["value"].split())


def _plain(text: str) -> str:
    return re.sub(r"^(?:the|a|an|my|our)\s+", "", " ".join(text.lower().split()))


def _british(text: str) -> str:
    return text.replace("color", "colour").replace("favorite", "favourite")


def _slug(text: str) -> str:
    """Return ``text`` as lower-case words of ASCII with hyphens; what has none of those gets a name by its digest."""
    folded = unicodedata.normalize("NFKD", _plain(text)).encode("ascii", "ignore").decode()
    slug = "-".join(re.findall(r"[a-z0-9]+", folded))[:SUBJECT_MAX_CHARS].strip("-")
    return slug or hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
