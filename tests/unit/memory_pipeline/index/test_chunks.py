"""Chunks: whole code points, nothing lost, bounded; and the profile that names them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_pipeline.index.chunks import check_chunks, chunks_of
from memory_pipeline.index.profile import Chunker, SemanticProfile, decode_profile
from shared.domain.errors import IndexBudget, InvalidInput, MemoryCorrupt
from shared.models.embeddings import EmbedderProfile

PROFILE = SemanticProfile("p", "m", "1", 3)
TEXTS = st.text(st.one_of(st.characters(exclude_characters="\x00", codec="utf-8"), st.just("\n")), min_size=1)


def cut(text: str, size: int, chunker: Chunker = "utf8-codepoint@1", **bounds: int) -> list[str]:
    profile = replace(PROFILE, max_chunk_bytes=size, chunker=chunker)
    limits = {"max_source_bytes": 10_000, "max_chunks": 10_000} | bounds
    chunks = chunks_of(
        text, profile, max_source_bytes=limits["max_source_bytes"], max_chunks=limits["max_chunks"]
    )
    check_chunks(chunks, profile)
    return [chunk.text for chunk in chunks]


@pytest.mark.behaviour("SEM-27", "SEM-28", "SEM-33", "SEM-T05")
@given(text=TEXTS, size=st.integers(4, 40), chunker=st.sampled_from(("utf8-codepoint@1", "utf8-line@1")))
def test_chunks_are_the_source_whole_in_order_and_within_their_bound(
    text: str, size: int, chunker: Chunker
) -> None:
    chunks = cut(text, size, chunker)
    assert "".join(chunks).encode() == text.encode()
    assert all(0 < len(chunk.encode()) <= size for chunk in chunks)
    assert cut(text, size, chunker) == chunks


@pytest.mark.behaviour("SEM-27")
@given(text=TEXTS, size=st.integers(4, 40))
def test_a_chunk_takes_every_code_point_that_still_fits(text: str, size: int) -> None:
    chunks = cut(text, size)
    for chunk, following in pairwise(chunks):
        assert len((chunk + following[0]).encode()) > size


@pytest.mark.behaviour("SEM-27", "SEM-T05")
@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("abcde", ["abcd", "e"]),
        ("abcé", ["abc", "é"]),
        ("abéc", ["abé", "c"]),
        ("ab€", ["ab", "€"]),
        ("a€b", ["a€", "b"]),
        ("a😀b", ["a", "😀", "b"]),
        ("😀😀", ["😀", "😀"]),
    ],
)
def test_code_points_of_one_to_four_bytes_are_never_cut(text: str, chunks: list[str]) -> None:
    assert cut(text, 4) == chunks


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("one\ntwo", ["one\n", "two"]),
        ("one\ntwo\n", ["one\n", "two\n"]),
        ("\n one\n \n  two\n\n", ["\n one\n \n", "  two\n\n"]),
        ("12345678901\n2", ["1234567890", "1\n", "2"]),
        ("\n\n", ["\n\n"]),
    ],
)
def test_by_lines_each_line_that_says_something_is_a_chunk(text: str, chunks: list[str]) -> None:
    assert cut(text, 10, "utf8-line@1") == chunks


@pytest.mark.behaviour("SEM-29")
def test_a_chunks_id_is_the_digest_of_the_profile_and_its_ordinal() -> None:
    [first, second] = chunks_of(
        "abcde", replace(PROFILE, max_chunk_bytes=4), max_source_bytes=5, max_chunks=2
    )
    digest = replace(PROFILE, max_chunk_bytes=4).digest
    assert (first.passage_id, second.passage_id) == (f"chunk:{digest}:0", f"chunk:{digest}:1")
    assert (second.start_byte, second.end_byte) == (4, 5)


@pytest.mark.behaviour("SEM-T07", "SEM-31")
def test_a_source_over_its_bytes_or_chunks_is_refused() -> None:
    assert len(cut("é" * 8, 4, max_source_bytes=16, max_chunks=4)) == 4
    with pytest.raises(IndexBudget) as large:
        cut("é" * 8, 4, max_source_bytes=15)
    with pytest.raises(IndexBudget) as many:
        cut("é" * 8, 4, max_chunks=3)
    assert (large.value.fields["reason"], many.value.fields["reason"]) == ("source-bytes", "chunks")


@pytest.mark.behaviour("SEM-T05")
@pytest.mark.parametrize("text", ["", "\ud800", "a\x00"])
def test_an_empty_or_unstorable_source_has_no_chunks(text: str) -> None:
    with pytest.raises(InvalidInput):
        cut(text, 4)


@pytest.mark.behaviour("SEM-04", "SEM-05", "SEM-06", "SEM-08")
def test_a_profile_is_named_by_all_its_parts_and_read_back_exactly() -> None:
    others = [
        replace(PROFILE, provider="q"),
        replace(PROFILE, model="n"),
        replace(PROFILE, model_revision="2"),
        replace(PROFILE, dimensions=4),
        replace(PROFILE, max_chunk_bytes=512),
        replace(PROFILE, chunker="utf8-line@1"),
    ]
    assert len({profile.digest for profile in (PROFILE, *others)}) == 7
    for profile in (PROFILE, *others):
        assert decode_profile(profile.encoding) == profile
    assert SemanticProfile.of(EmbedderProfile("p", "m", "1", 3)) == PROFILE


@pytest.mark.behaviour("SEM-T05")
@pytest.mark.parametrize("size", [3, 8_193, True])
def test_a_bound_that_may_hold_no_code_point_is_no_profile(size: int) -> None:
    with pytest.raises(InvalidInput):
        replace(PROFILE, max_chunk_bytes=size)


@pytest.mark.parametrize("encoding", ["", "[]", "{}", PROFILE.encoding + " ", '{"version":1}'])
def test_a_stored_profile_that_is_not_canonical_is_corrupt(encoding: str) -> None:
    with pytest.raises(MemoryCorrupt):
        decode_profile(encoding)
