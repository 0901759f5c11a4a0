"""Merging facts into a profile: what replaces what, what is kept, and what is refused rather than cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from memory_pipeline.remembering.intents import Position, Proposal, ProposedFact, Source
from memory_pipeline.remembering.merge import NoChange, PutContent, Reject, merge
from memory_pipeline.store.documents import (
    Attribution,
    Content,
    Document,
    MemoryKey,
    NamespaceAddress,
    SourceReference,
)

NAMESPACE = NamespaceAddress('[1,"profile",1,{"owner":"ann"}]')
KEY = MemoryKey(namespace=NAMESPACE, id="profile-1")


def said(seq: int = 1, session: str = "s") -> Source:
    return Source(
        key=MemoryKey(namespace=NAMESPACE, id=f"{session}:{seq}"),
        locator=f"session/{session}/records/{seq}",
        revision="r",
        position=Position(authority_generation=session, sequence=seq),
    )


def proposal(facts: Sequence[tuple[str, str]], source: Source, at: int) -> Proposal:
    return Proposal(
        source=source.reference(),
        facts=tuple(
            ProposedFact(subject=s, statement=t, start_byte=0, end_byte=1, quote="q") for s, t in facts
        ),
        recorded_at=at,
        extracted_at=at + 5,
    )


def document(content: Content | None) -> Document:
    return Document(
        key=KEY,
        source=SourceReference(id=KEY.id, locator="memory/profile-1", revision="1"),
        generation=1,
        modified_at=1,
        content=content,
        reason=None if content is not None else "forgotten",
    )


def put(
    current: Content | None, *facts: tuple[str, str], source: Source | None = None, at: int = 100
) -> Content:
    """The content that the facts lead to."""
    source = source or said()
    decision = merge(document(current) if current else None, proposal(facts, source, at), source)
    assert isinstance(decision, PutContent), decision
    return decision.content


def unchanged(current: Content, *facts: tuple[str, str], source: Source | None = None, at: int = 100) -> str:
    source = source or said()
    decision = merge(document(current), proposal(facts, source, at), source)
    assert isinstance(decision, NoChange), decision
    return decision.why


@pytest.mark.behaviour("REM-26")
def test_facts_are_lines_with_an_attribution_and_a_subject_each() -> None:
    content = put(None, ("name", "The user is Ann."), ("diet", "The user eats no meat."))
    assert content.text == "The user is Ann.\nThe user eats no meat."
    assert content.metadata == {"subjects": ["name", "diet"]}
    assert [a.interpretation for a in content.attributions] == content.text.split("\n")
    assert {(a.origin_id, a.speaker, a.locator, a.activity_at) for a in content.attributions} == {
        ("s:1", "user", "session/s/records/1", 100)
    }
    assert (content.recorded_at, content.extracted_at) == (100, 105)


@pytest.mark.behaviour("REM-26")
def test_a_fact_of_the_same_subject_takes_the_old_ones_place() -> None:
    first = put(None, ("jazz", "The user loves jazz."), ("name", "The user is Ann."))
    second = put(first, ("jazz", "The user hates jazz."), source=said(5), at=200)
    assert second.text == "The user hates jazz.\nThe user is Ann."
    assert [a.origin_id for a in second.attributions] == ["s:5", "s:1"]


@pytest.mark.behaviour("REM-26")
@pytest.mark.parametrize(
    ("source", "at"),
    [(said(3), 900), (said(9, "other"), 199)],
    ids=["earlier in the session", "earlier in another session"],
)
def test_what_was_said_earlier_never_replaces_what_was_said_later(source: Source, at: int) -> None:
    current = put(None, ("jazz", "The user hates jazz."), source=said(5), at=200)
    assert unchanged(current, ("jazz", "The user loves jazz."), source=source, at=at) == "known"


@pytest.mark.behaviour("REM-26", "ACT-30")
def test_a_known_fact_changes_nothing_and_keeps_its_first_witness() -> None:
    current = put(None, ("jazz", "The user loves jazz."))
    assert unchanged(current, ("jazz", "The user loves jazz."), source=said(7), at=900) == "known"
    assert unchanged(current, ("music", "The user loves jazz."), source=said(7), at=900) == "known"


@pytest.mark.behaviour("REM-26", "REM-41")
def test_lines_of_another_writer_are_kept_and_replaced_by_nothing() -> None:
    human = Attribution(origin_id="edit:1", speaker="owner", locator="api", interpretation="By hand.")
    current = Content(text="By hand.", attributions=(human,), metadata={"note": 1}, recorded_at=50)
    content = put(current, ("jazz", "The user loves jazz."))
    assert content.text == "By hand.\nThe user loves jazz."
    assert content.metadata == {"note": 1, "subjects": ["", "jazz"]}
    assert content.attributions[0] == human


@pytest.mark.behaviour("REM-26", "REM-41")
def test_a_correction_of_unknown_time_gives_way_only_to_what_was_said_after_it_was_recorded() -> None:
    human = Attribution(origin_id="edit:1", speaker="owner", locator="api", interpretation="Ann.")
    current = Content(text="Ann.", attributions=(human,), metadata={"subjects": ["name"]}, recorded_at=150)
    assert unchanged(current, ("name", "Anne."), at=149) == "known"
    assert put(current, ("name", "Anne."), at=151).text == "Anne."


def test_of_two_facts_of_one_subject_in_one_source_the_last_counts() -> None:
    assert (
        put(None, ("jazz", "The user loves jazz."), ("jazz", "The user hates jazz.")).text
        == "The user hates jazz."
    )


def test_the_document_is_recorded_when_its_newest_source_was() -> None:
    current = put(None, ("name", "Ann."), at=500)
    assert put(current, ("diet", "No meat."), source=said(1, "other"), at=100).recorded_at == 500


def test_a_profile_that_is_full_is_refused_and_not_cut_but_still_corrected() -> None:
    full = put(None, ("s-0", "0"))
    for n in range(1, 128):
        full = put(full, (f"s-{n}", str(n)), source=said(n + 1))
    source = said(500)
    assert merge(document(full), proposal([("more", "more")], source, 100), source) == Reject("profile-full")
    assert put(full, ("s-7", "seven"), source=said(501)).text.split("\n")[7] == "seven"


def test_subjects_beyond_the_bound_of_metadata_are_refused() -> None:
    long = [(f"{'x' * 60}-{n:03}", str(n)) for n in range(127)]
    content: Content | None = None
    decision = None
    for n, subject in enumerate(long, start=1):
        source = said(n)
        decision = merge(document(content) if content else None, proposal([subject], source, 100), source)
        if not isinstance(decision, PutContent):
            break
        content = decision.content
    assert decision == Reject("profile-full")


@pytest.mark.parametrize(
    ("text", "subjects"),
    [("two\nlines", None), ("one", ["a", "b"]), ("one", "a"), ("one", [1])],
)
def test_a_document_that_is_no_profile_is_refused(text: str, subjects: object) -> None:
    by = Attribution(origin_id="edit:1", speaker="owner", locator="api", interpretation="x")
    metadata = {} if subjects is None else {"subjects": subjects}
    current = Content(text=text, attributions=(by,), metadata=metadata, recorded_at=1)
    source = said()
    assert merge(document(current), proposal([("a", "b")], source, 1), source) == Reject("profile-format")


def test_a_withdrawn_document_is_refused() -> None:
    source = said()
    assert merge(document(None), proposal([("a", "b")], source, 1), source) == Reject("target-withdrawn")


@pytest.mark.behaviour("REM-26")
def test_a_statement_that_is_read_again_in_other_words_leaves_no_fact_twice() -> None:
    source = said(1)
    first = put(None, ("favourite-colour", "Favourite colour: teal."), ("name", "Ann."), source=source)
    other = put(first, ("diet", "No meat."), source=said(2))
    again = put(other, ("colour", "The user likes teal best."), source=source)
    assert again.text.split("\n") == ["No meat.", "The user likes teal best."]
    # Read again in the same words, in whatever order, it changes nothing.
    same = proposal([("name", "Ann."), ("favourite-colour", "Favourite colour: teal.")], source, 100)
    assert merge(document(first), same, source) == NoChange("known")
