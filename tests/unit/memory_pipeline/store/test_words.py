"""Words of texts, and the passages of long documents."""

from __future__ import annotations

from memory_pipeline.store.conformance_stage import put, withdraw
from memory_pipeline.store.documents import Document, MemoryKey, NamespaceAddress
from memory_pipeline.store.transition import next_document
from memory_pipeline.store.words import QUERY_MAX_WORDS, WHOLE_MAX_CHARS, passages_of, query_words, words_of

KEY = MemoryKey(namespace=NamespaceAddress('[1,"x",1,{}]'), id="d")


def document(text: str) -> Document:
    return next_document(put(KEY, text), None, 1)


def test_words_are_lower_case_distinct_in_order_and_no_stop_words() -> None:
    assert words_of("What's the NAME of Ada's dog? The dog, \u00c9clair!") == [
        "name",
        "ada",
        "dog",
        "\u00e9clair",
    ]
    assert len(query_words(" ".join(f"w{n}" for n in range(100)))) == QUERY_MAX_WORDS


def test_a_short_document_is_one_passage_and_a_withdrawn_one_none() -> None:
    text = "x" * WHOLE_MAX_CHARS
    [passage] = passages_of(document(text), frozenset({"y"}))
    assert (passage.passage_id, passage.content.text) == ("document", text)
    assert passages_of(next_document(withdraw(KEY, "1"), document(text), 2), frozenset({"x"})) == []


def test_runs_of_lines_with_words_are_passages_also_at_both_ends() -> None:
    filler = "x" * WHOLE_MAX_CHARS
    long = document(f"a one\r\n\nb\n{filler}\nb and c")
    found = passages_of(long, frozenset({"one", "b", "c"}))
    assert [(p.passage_id, p.content.text) for p in found] == [
        ("lines:5-5", "b and c"),
        ("lines:1-1", "a one\r"),
        ("lines:3-3", "b"),
    ]
    [whole] = passages_of(long, frozenset({"absent"}))
    assert whole.passage_id == "document"
