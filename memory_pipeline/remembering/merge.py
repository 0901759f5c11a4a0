"""Merging facts into a profile document: pure, source-aware, and never by truncation.

A profile holds one fact a line. Line, attribution and subject stand at the same index; the subjects are in the metadata.
A fact of the same subject replaces the old one, unless the old one was said later: items run in any order, and what the
user said last must win. The replaced fact stays in the document's history (REM-26).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from memory_pipeline.remembering.intents import Proposal, ProposedFact, Source, parse_record_id
from memory_pipeline.store.documents import (
    METADATA_MAX_BYTES,
    STORED_MAX_BYTES,
    Attribution,
    Content,
    Document,
    encode,
)
from shared.domain.canonical import canonical_json

PROFILE_FACTS_MAX: Final = 128
SPEAKER: Final = "user"
SUBJECTS: Final = "subjects"
#: A line without a subject: another writer's. Nothing of the background replaces it.
NO_SUBJECT: Final = ""


@dataclass(frozen=True, slots=True)
class PutContent:
    """Write this content."""

    content: Content


@dataclass(frozen=True, slots=True)
class NoChange:
    """The document says it already, or says what was said later."""

    why: str


@dataclass(frozen=True, slots=True)
class Reject:
    """The document cannot take the facts; it stays as it is."""

    why: str


Decision = PutContent | NoChange | Reject


@dataclass(frozen=True, slots=True)
class _Line:
    subject: str
    text: str
    attribution: Attribution


def merge(current: Document | None, proposal: Proposal, source: Source) -> Decision:
    """Decide what the facts of one source make of the document as it is now.

    ``Reject`` codes: ``target-withdrawn``; ``profile-format`` for a document whose lines have no attribution each;
    ``profile-full`` above ``PROFILE_FACTS_MAX`` facts or a bound of the store.
    """
    if current is None:
        return _written(None, [], proposal, source)
    if current.content is None:
        return Reject("target-withdrawn")
    lines = _lines_of(current.content)
    return Reject("profile-format") if lines is None else _written(current.content, lines, proposal, source)


def _written(old: Content | None, lines: Sequence[_Line], proposal: Proposal, source: Source) -> Decision:
    # A statement that is read once more, in other words perhaps, replaces what was read of it before: no fact twice.
    merged = [line for line in lines if line.attribution.origin_id != source.key.id]
    for fact in proposal.facts:
        _lay(merged, _line_of(fact, proposal, source), old)
    if {(line.subject, line.text) for line in merged} == {(line.subject, line.text) for line in lines}:
        return NoChange("known")
    if len(merged) > PROFILE_FACTS_MAX:
        return Reject("profile-full")
    content = _content_of(old, merged, proposal)
    return Reject("profile-full") if content is None else PutContent(content)


def _lay(merged: list[_Line], new: _Line, old: Content | None) -> None:
    """Put one fact into the lines: nowhere if it is known or outdated, in its subject's place, or at the end."""
    for at, line in enumerate(merged):
        if line.subject == new.subject:
            if line.text != new.text and not _said_later(line.attribution, new.attribution, old):
                merged[at] = new
            return
    # The same words under another subject are no second fact.
    if all(line.text != new.text for line in merged):
        merged.append(new)


def _said_later(kept: Attribution, new: Attribution, old: Content | None) -> bool:
    """Say whether ``kept`` was said after ``new``: by seq in one session, else by time.

    A fact of unknown time counts as said when the document was last recorded.
    """
    place, new_place = parse_record_id(kept.origin_id), parse_record_id(new.origin_id)
    if place is not None and new_place is not None and place[0] == new_place[0]:
        return place[1] > new_place[1]
    at = kept.activity_at
    if at is None:
        at = old.recorded_at if old is not None else 0
    return at > (new.activity_at or 0)


def _line_of(fact: ProposedFact, proposal: Proposal, source: Source) -> _Line:
    attribution = Attribution(
        origin_id=source.key.id,
        speaker=SPEAKER,
        locator=source.locator,
        activity_at=proposal.recorded_at,
        interpretation=fact.statement,
    )
    return _Line(fact.subject, fact.statement, attribution)


def _lines_of(content: Content) -> list[_Line] | None:
    """Return the lines of a profile, or None for a document that is none."""
    texts = content.text.split("\n")
    subjects: Any = content.metadata.get(SUBJECTS, [NO_SUBJECT] * len(texts))
    if not isinstance(subjects, list) or not all(isinstance(subject, str) for subject in subjects):
        return None
    if not len(texts) == len(subjects) == len(content.attributions):
        return None
    return [_Line(*parts) for parts in zip(subjects, texts, content.attributions, strict=True)]


def _content_of(old: Content | None, lines: Sequence[_Line], proposal: Proposal) -> Content | None:
    """Return the content of these lines, or None when a bound of the store does not hold it."""
    metadata = dict(old.metadata if old is not None else {}) | {SUBJECTS: [line.subject for line in lines]}
    if len(canonical_json(metadata).encode()) > METADATA_MAX_BYTES:
        return None
    try:
        content = Content(
            text="\n".join(line.text for line in lines),
            attributions=tuple(line.attribution for line in lines),
            metadata=metadata,
            recorded_at=max(proposal.recorded_at, old.recorded_at if old is not None else 0),
            extracted_at=proposal.extracted_at,
        )
    except ValidationError:
        return None
    return content if len(encode(content).encode()) <= STORED_MAX_BYTES else None
