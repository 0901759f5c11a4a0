"""Reading request bodies: bounds before parsing, strict JSON, nothing that cannot be stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.bodies import BODY_MAX_VALUES, check_media_type, parse_body, parse_strictly, read_bounded
from shared.domain.bounds import BODY_MAX_DEPTH
from shared.domain.canonical import canonical_json
from shared.domain.errors import InputTooLarge, InvalidInput, MalformedInput, UnsupportedMedia


class Chunks:
    """A body in pieces that counts how many were taken."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            self.taken += 1
            yield chunk


@pytest.mark.behaviour("API-13")
async def test_a_body_that_is_declared_too_large_is_refused_before_a_byte_of_it() -> None:
    chunks = Chunks(b"x")
    with pytest.raises(InputTooLarge):
        await read_bounded(chunks, declared="11", max_bytes=10)
    assert chunks.taken == 0


@pytest.mark.behaviour("API-13")
@pytest.mark.parametrize("declared", [None, "3", "nonsense"])
async def test_a_body_without_an_honest_length_is_refused_at_the_chunk_that_passes_the_bound(
    declared: str | None,
) -> None:
    chunks = Chunks(b"x" * 6, b"x" * 6, b"x" * 6)
    with pytest.raises(InputTooLarge):
        await read_bounded(chunks, declared=declared, max_bytes=10)
    assert chunks.taken == 2


async def test_a_body_of_exactly_the_bound_is_read() -> None:
    assert await read_bounded(Chunks(b"12345", b"67890"), declared="10", max_bytes=10) == b"1234567890"


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/json; charset=utf-8", 'Application/JSON; charset="UTF-8"'],
)
def test_json_in_utf8_is_read(content_type: str) -> None:
    check_media_type(content_type, None)


@pytest.mark.behaviour("API-13")
@pytest.mark.parametrize(
    ("content_type", "encoding"),
    [
        (None, None),
        ("text/plain", None),
        ("application/x-www-form-urlencoded", None),
        ("application/json; charset=utf-16", None),
        ("application/json", "gzip"),
    ],
)
def test_other_types_charsets_and_encodings_are_refused(
    content_type: str | None, encoding: str | None
) -> None:
    with pytest.raises(UnsupportedMedia):
        check_media_type(content_type, encoding)


@pytest.mark.behaviour("API-13")
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"a":1,}',
        b"{'a':1}",
        b'"unterminated',
        b'"\\',
        b"nul",
        b'{"a":1}{"b":2}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1,"a":2}',
        b'{"a":{"b":1,"c":2,"b":1}}',
        b'{"a":"\x01"}',
        b'{"a":"\x00"}',
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-16-le"),
        b'\xef\xbb\xbf{"a":1}',
    ],
)
def test_what_is_no_strict_json_in_utf8_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedInput):
        parse_strictly(raw)


@pytest.mark.behaviour("API-13")
@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":"\\u0000"}',
        b'{"a":"\\ud800"}',
        b'{"a":"\\udc00\\ud800"}',
        b'{"\\ud83d":1}',
        b'{"a":[{"b":"x\\u0000y"}]}',
        b'{"a":1e999}',
        b'{"a":' + b"9" * 1001 + b"}",
        b'{"a":' + b"9" * 100_000 + b"}",
        b'{"a":0.' + b"1" * 100_000 + b"}",
    ],
)
def test_json_that_cannot_be_stored_breaks_a_bound_and_names_it(raw: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_strictly(raw)
    assert refused.value.bound


def test_a_bound_broken_deep_inside_is_pointed_at() -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_strictly(b'{"message":{"text":"a\\u0000b"}}')
    assert refused.value.field == "/message/text"


def test_the_six_characters_of_an_escape_stay_text() -> None:
    assert parse_strictly(rb'{"a":"\\u0000 \\ud800"}') == {"a": "\\u0000 \\ud800"}


def test_pairs_of_surrogates_and_large_integers_are_kept() -> None:
    assert parse_strictly(b'["\\ud83d\\ude00", 123456789012345678901234567890]') == [
        "😀",
        123456789012345678901234567890,
    ]


@pytest.mark.parametrize("inner", ["", "1", '"]]]"'])
def test_as_deep_as_the_bound_is_read(inner: str) -> None:
    parse_strictly(("[" * BODY_MAX_DEPTH + inner + "]" * BODY_MAX_DEPTH).encode())


@pytest.mark.behaviour("API-13")
@pytest.mark.parametrize("deep", [BODY_MAX_DEPTH + 1, 1_000, 500_000])
@pytest.mark.parametrize(("opener", "closer"), [("[", "]"), ('{"a":', "}")])
def test_deeper_than_the_bound_is_refused_whatever_the_stack(deep: int, opener: str, closer: str) -> None:
    for text in (opener * deep + "1" + closer * deep, opener * deep):
        with pytest.raises(MalformedInput, match="deeper"):
            parse_strictly(text.encode())


def test_brackets_inside_strings_and_many_flat_ones_are_no_depth() -> None:
    text = "[" * 500
    assert (
        parse_strictly(f'{{"a":"{text}","b":["\\"[",{"[],".join("" for _ in range(400))}[]]}}'.encode())["a"]
        == text
    )


@pytest.mark.behaviour("API-13")
@pytest.mark.parametrize("unit", ["[],", '"",', "1,", '{"a":1},'])
def test_a_body_that_would_unfold_to_very_many_values_is_refused(unit: str) -> None:
    raw = ("[" + unit * BODY_MAX_VALUES + "1]").encode()
    with pytest.raises(InvalidInput, match="too many values"):
        parse_strictly(raw)


def test_a_long_text_of_commas_and_quotes_is_one_value() -> None:
    text = ',"[' * BODY_MAX_VALUES
    escaped = text.replace('"', '\\"')
    assert parse_strictly(f'{{"a":"{escaped}"}}'.encode()) == {"a": text}


def test_an_unterminated_string_full_of_quotes_is_looked_at_once() -> None:
    with pytest.raises(MalformedInput):
        parse_strictly(b'["' + rb"\"" * 1_000_000)


async def test_a_large_body_is_parsed_like_a_small_one() -> None:
    assert await parse_body(b'{"a":"' + b"x" * 200_000 + b'"}') == {"a": "x" * 200_000}
    with pytest.raises(MalformedInput):
        await parse_body(b'{"a":"' + b"x" * 200_000)


_STORABLE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _STORABLE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_STORABLE, inner, max_size=4),
    max_leaves=20,
)


@given(_JSON)
def test_every_storable_value_comes_through_unchanged(value: object) -> None:
    assert parse_strictly(canonical_json(value).encode()) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_with_a_typed_error(raw: bytes) -> None:
    with suppress(MalformedInput, InvalidInput):
        parse_strictly(raw)
