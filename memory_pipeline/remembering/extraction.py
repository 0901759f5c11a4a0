"""Extraction: what the model is asked, the schema of its answer, and the evidence that each of its facts must show.

The model's answer is untrusted (law 9): it names no owner, target or authority, and a fact counts only with a quote that
stands literally in the source. The byte ranges are computed here, never taken from the model (REM-34).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from memory_pipeline.remembering.intents import (
    FACTS_MAX,
    PROPOSAL_MAX_BYTES,
    Intent,
    Proposal,
    ProposedFact,
    Quote,
    Statement,
    Subject,
)
from memory_pipeline.remembering.sources import SourceText
from memory_pipeline.store.documents import encode
from shared.domain.bounds import clean_text
from shared.domain.errors import ProcessingRefused
from shared.models.structured import StructuredModel
from shared.models.types import ModelRequest, SystemMessage, UserMessage

#: A longer source is not extracted at all: a part of it would be read without what belongs to it.
SOURCE_MAX_BYTES: Final = 65_536
OUTPUT_MAX_TOKENS: Final = 4_096

_PROMPT: Final = (Path(__file__).parent / "prompts" / "extract.md").read_text(encoding="utf-8").strip()


class Fact(BaseModel):
    """One fact as the model gives it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    subject: Subject
    statement: Statement
    quote: Quote


class Extraction(BaseModel):
    """The model's whole answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    facts: Annotated[list[Fact], Field(max_length=FACTS_MAX)]


#: Reads facts out of one source; the only step of remembering that asks a model.
Extract = Callable[[SourceText], Awaitable[Extraction]]


def model_extraction(model: StructuredModel, *, model_name: str, instructions: str) -> Extract:
    """Return the extraction by a model. ``instructions`` is the application's text: what is worth remembering.

    Raises what the model's port says; the source's text is sent as the user's message and nothing else of the source.
    """
    system = SystemMessage(f"{_PROMPT}\n\n{instructions.strip()}")

    async def extract(source: SourceText) -> Extraction:
        request = ModelRequest(
            model=model_name,
            messages=(system, UserMessage(source.text)),
            temperature=0.0,
            max_output_tokens=OUTPUT_MAX_TOKENS,
        )
        return (await model.complete(request, Extraction)).value

    return extract


def proposed_facts(extraction: Extraction, text: str) -> tuple[ProposedFact, ...]:
    """Return the facts whose evidence stands in the text, each with its range; the others are left out.

    The first occurrence of a quote is its evidence. Statements become one line of clean text.
    """
    found = (_proposed(fact, text) for fact in extraction.facts)
    return tuple(fact for fact in found if fact is not None)


def _proposed(fact: Fact, text: str) -> ProposedFact | None:
    statement = " ".join(clean_text(fact.statement)[0].split())
    at = text.find(fact.quote)
    if at < 0 or not fact.quote.strip() or not statement:
        return None
    start = len(text[:at].encode())
    return ProposedFact(
        subject=fact.subject,
        statement=statement,
        start_byte=start,
        end_byte=start + len(fact.quote.encode()),
        quote=fact.quote,
    )


def check_proposal_size(proposal: Proposal) -> Proposal:
    """Return a proposal within ``PROPOSAL_MAX_BYTES``, else raise ``ProcessingRefused`` with reason ``budget``."""
    if len(encode(proposal).encode()) > PROPOSAL_MAX_BYTES:
        raise ProcessingRefused(
            f"the proposal is larger than {PROPOSAL_MAX_BYTES} bytes",
            reason="budget",
            limit=PROPOSAL_MAX_BYTES,
        )
    return proposal


def check_source(source: SourceText | None, intent: Intent) -> SourceText:
    """Return the source if it is still the one that was admitted; raise ``ProcessingRefused``, ``source-changed`` (REM-28)."""
    if source is None or source.source != intent.source:
        raise ProcessingRefused(
            "the source is not what was admitted", reason="source-changed", intent=intent.id
        )
    return source


def check_evidence(proposal: Proposal, source: SourceText) -> None:
    """Raise ``ProcessingRefused``, ``invalid-evidence``, unless every quote stands at its range of exactly this revision."""
    data = source.text.encode()
    sound = proposal.source == source.source.reference() and all(
        fact.start_byte < fact.end_byte <= len(data)
        and data[fact.start_byte : fact.end_byte] == fact.quote.encode()
        for fact in proposal.facts
    )
    if not sound:
        raise ProcessingRefused("the evidence is not in the source", reason="invalid-evidence")
