"""What is refused at a door, and what is made storable on the way in from a model or a tool."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.bounds import (
    BODY_MAX_DEPTH,
    INTEGER_MAX_BITS,
    check_identity,
    check_json,
    check_text,
    clean_json,
    clean_text,
)
from shared.domain.errors import InputTooLarge, InvalidInput

LITERAL = "\\u0000 \\ud800"  # backslashes and letters: ordinary text


@pytest.mark.parametrize("value", ["a", "a b", "~" * 256, "!"])
def test_an_identity_of_printable_ascii_is_taken(value: str) -> None:
    assert check_identity(value, field="key") == value


@pytest.mark.parametrize(
    "value", ["", " ", " a", "a ", "a" * 257, "é", "a\tb", "a\n", "\x7f", "\x00", "\ud800"]
)
def test_any_other_identity_is_refused_and_the_field_named(value: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_identity(value, field="key")
    assert (refusal.value.field, refusal.value.fields["field"]) == ("key", "key")


@pytest.mark.parametrize("value", ["a\x00b", "\ud800", "x\udfff", "\udc00\ud800"])
@pytest.mark.behaviour("API-13")
def test_text_with_a_nul_or_a_lone_surrogate_is_refused_wherever_it_stands(value: str) -> None:
    for body in (value, [value], {"a": {"b": value}}, {value: 1}):
        with pytest.raises(InvalidInput):
            check_json(body, field="body")
    with pytest.raises(InvalidInput):
        check_text(value, field="text")


def test_the_six_characters_of_a_written_escape_are_ordinary_text() -> None:
    assert check_text(LITERAL, field="text") == LITERAL
    check_json({"text": LITERAL}, field="body")
    assert clean_text(LITERAL) == (LITERAL, False)


@pytest.mark.parametrize(
    ("text", "bound", "fits"), [("é" * 5, 10, True), ("é" * 5, 9, False), ("😀", 3, False)]
)
def test_a_bound_of_text_counts_utf8_bytes(text: str, bound: int, fits: bool) -> None:
    if fits:
        assert check_text(text, field="text", max_bytes=bound) == text
    else:
        with pytest.raises(InputTooLarge):
            check_text(text, field="text", max_bytes=bound)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("-inf"), 2**INTEGER_MAX_BITS, {1: 2}, b"x", {1, 2}, {"a": object()}],
)
@pytest.mark.behaviour("API-13")
def test_what_is_no_storable_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        check_json(value, field="body")


def test_the_place_of_a_bad_value_is_named_as_a_pointer() -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_json({"a": [1, {"b": "\x00"}]}, field="")
    assert refusal.value.field == "/a/1/b"


@pytest.mark.behaviour("API-13")
def test_nesting_is_taken_up_to_its_bound_and_never_recurses() -> None:
    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth - 1):
            value = [value]
        return value

    check_json(nested(BODY_MAX_DEPTH), field="body")
    for depth in (BODY_MAX_DEPTH + 1, 5_000):
        with pytest.raises(InvalidInput, match="deeper"):
            check_json(nested(depth), field="body")


@given(st.text(max_size=20))
def test_cleaned_text_can_be_stored_keeps_its_length_and_says_whether_it_changed(text: str) -> None:
    cleaned, replaced = clean_text(text)
    assert check_text(cleaned, field="text") == cleaned
    assert (len(cleaned), replaced) == (len(text), cleaned != text)
    assert clean_text(cleaned) == (cleaned, False)


def test_cleaning_reaches_every_string_and_key() -> None:
    assert clean_json({"a\x00": ["\ud800", {"b": "\x00"}, 1, None]}) == {
        "a\ufffd": ["\ufffd", {"b": "\ufffd"}, 1, None]
    }
