"""What counts as evidence, and what a model is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from memory_pipeline.remembering.extraction import (
    Extraction,
    Fact,
    check_evidence,
    model_extraction,
    proposed_facts,
)
from memory_pipeline.remembering.intents import Position, Proposal, ProposedFact, Source
from memory_pipeline.remembering.sources import SourceText
from memory_pipeline.store.documents import MemoryKey, NamespaceAddress
from shared.domain.errors import ProcessingRefused
from shared.models.structured import response_format
from shared.models.types import SystemMessage, UserMessage
from tests.support.scripted_facts import ScriptedFacts, fact

TEXT = "Grüße! Ich heiße Änne 🎷 und heiße nie Anna."


def source_text(text: str = TEXT, revision: str = "r") -> SourceText:
    source = Source(
        key=MemoryKey(namespace=NamespaceAddress("n"), id="s:1"),
        locator="session/s/records/1",
        revision=revision,
        position=Position(authority_generation="s", sequence=1),
    )
    return SourceText(source, text, 1)


def quoted(quote: str, text: str = TEXT) -> tuple[ProposedFact, ...]:
    return proposed_facts(Extraction(facts=[fact("name", "The user is Änne.", quote)]), text)


@pytest.mark.behaviour("REM-34")
def test_a_quote_is_found_as_a_range_of_utf8_bytes_at_its_first_place() -> None:
    [found] = quoted("heiße")
    data = TEXT.encode()
    assert data[found.start_byte : found.end_byte].decode() == "heiße"
    assert found.start_byte == data.index("heiße".encode())
    [jazz] = quoted("Änne 🎷")
    assert data[jazz.start_byte : jazz.end_byte].decode() == "Änne 🎷"


@pytest.mark.behaviour("REM-34")
@pytest.mark.parametrize("quote", ["ich heiße", "Änne", "Ich  heiße", "Anne", " "])
def test_a_quote_that_does_not_stand_in_the_text_literally_is_no_evidence(quote: str) -> None:
    # The second is the same word to a reader, in decomposed letters.
    assert quoted("A\u0308nne" if quote == "Änne" else quote) == ()


@given(st.text(min_size=1, max_size=80), st.integers(0, 79), st.integers(1, 80))
def test_every_piece_of_a_text_is_evidence_where_it_stands(text: str, at: int, size: int) -> None:
    piece = text[at : at + size]
    for found in quoted(piece, text) if piece else ():
        data = text.encode()
        assert data[found.start_byte : found.end_byte] == piece.encode()
        assert found.start_byte <= len(text[:at].encode())


def test_a_statement_is_one_line_of_clean_text() -> None:
    given_fact = Fact(subject="name", statement=" The user\n is\x00  Änne. ", quote="Änne")
    [found] = proposed_facts(Extraction(facts=[given_fact]), TEXT)
    assert found.statement == "The user is\ufffd Änne."


@pytest.mark.behaviour("REM-34", "REM-36")
@pytest.mark.parametrize(
    ("start", "end", "quote", "revision"),
    [
        (0, 5, "Hallo", "r"),
        (0, 5, "Grüß", "r"),
        (0, 3, "Gr\ufffd", "r"),
        (3, 3, "x", "r"),
        (0, 9_999, "Grüße", "r"),
        (0, 7, "Grüße", "another"),
    ],
    ids=["other words", "off by one", "a split character", "empty", "past the end", "another revision"],
)
def test_saved_evidence_that_is_not_in_the_source_is_refused(
    start: int, end: int, quote: str, revision: str
) -> None:
    saved = ProposedFact(subject="a", statement="b", start_byte=start, end_byte=end, quote=quote)
    proposal = Proposal(
        source=source_text(revision=revision).source.reference(),
        facts=(saved,),
        recorded_at=1,
        extracted_at=1,
    )
    with pytest.raises(ProcessingRefused) as refused:
        check_evidence(proposal, source_text())
    assert refused.value.fields["reason"] == "invalid-evidence"


def test_saved_evidence_that_is_in_the_source_passes() -> None:
    saved = ProposedFact(subject="a", statement="b", start_byte=0, end_byte=7, quote="Grüße")
    proposal = Proposal(
        source=source_text().source.reference(), facts=(saved,), recorded_at=1, extracted_at=1
    )
    check_evidence(proposal, source_text())


@pytest.mark.behaviour("REM-35")
@pytest.mark.parametrize(
    "answer",
    [
        {"facts": [{"subject": "a", "statement": "b", "quote": "c", "target": "bob"}]},
        {"facts": [], "owner": "bob"},
        {"facts": [{"subject": "Not A Slug", "statement": "b", "quote": "c"}]},
        {"facts": [{"subject": "a", "statement": "b" * 1_025, "quote": "c"}]},
        {"facts": [{"subject": "a", "statement": "b", "quote": "c"}] * 17},
    ],
    ids=["a target", "an owner", "no slug", "a long statement", "too many facts"],
)
def test_an_answer_that_says_more_than_it_may_is_no_extraction(answer: object) -> None:
    with pytest.raises(ValidationError):
        Extraction.model_validate(answer)


@pytest.mark.behaviour("REM-35", "REM-60")
async def test_the_model_is_shown_the_text_and_the_instructions_and_nothing_of_whose_it_is() -> None:
    model = ScriptedFacts()
    await model_extraction(model, model_name="m", instructions="Only pets.")(source_text())
    [request] = model.requests
    system, user = request.messages
    assert isinstance(system, SystemMessage) and system.text.endswith(
        "What is worth remembering:\n\nOnly pets."
    )
    assert user == UserMessage(TEXT)
    assert (request.model, request.tools, request.temperature) == ("m", (), 0.0)


def test_the_schema_of_an_answer_can_be_asked_for_strictly() -> None:
    assert response_format(Extraction)["json_schema"]["name"] == "Extraction"
