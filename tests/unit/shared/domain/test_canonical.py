"""Canonical JSON and the digests over it."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.canonical import canonical_json, chain_tail, digest_of, first_tail, record_digest

TEXT = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_what_is_written_reads_back_and_is_written_the_same_again(value: Any) -> None:
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


@given(JSON)
def test_every_value_is_written_as_the_slow_encoder_of_the_standard_library_writes_it(value: Any) -> None:
    slow = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
    text = canonical_json(value)
    if all(key <= "\uffff" for key in keys_of(value)):
        assert text == slow
    assert len(text) == len(slow)


def keys_of(value: Any) -> list[str]:
    """Every character of every key, at any depth."""
    if isinstance(value, dict):
        return [*"".join(value), *(char for inner in value.values() for char in keys_of(inner))]
    return [char for inner in value for char in keys_of(inner)] if isinstance(value, list) else []


@given(st.dictionaries(TEXT, st.integers(), max_size=8))
def test_keys_stand_in_the_order_of_their_utf16_code_units(value: dict[str, int]) -> None:
    written = list(json.loads(canonical_json(value)))
    assert written == sorted(value, key=lambda key: key.encode("utf-16-be"))


def test_a_key_beyond_the_basic_plane_stands_before_one_at_its_end_at_any_depth() -> None:
    astral, last = (
        "\U0001f600",
        "\ufb33",
    )  # the order of RFC 8785, 3.2.3; by code point it is the other way round
    assert canonical_json({last: 1, astral: 2}) == f'{{"{astral}":2,"{last}":1}}'
    assert canonical_json([{"a": ({last: 1, astral: 2},)}]) == f'[{{"a":[{{"{astral}":2,"{last}":1}}]}}]'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("\b\t\n\f\r\x0b\x1f\x7f", '"\\b\\t\\n\\f\\r\\u000b\\u001f\x7f"'),
        ('"\\/', '"\\"\\\\/"'),
        ("\u20ac\u2028", '"\u20ac\u2028"'),
        (10**40 + 1, "1" + "0" * 39 + "1"),
        (2**53 + 1, "9007199254740993"),
        ([1, 1.5, True, None], "[1,1.5,true,null]"),
        ({"b": {}, "a": []}, '{"a":[],"b":{}}'),
        ({"b": 1e16, "a": 1e-7}, '{"a":1e-07,"b":1e+16}'),
        ({"a": "\ud800"}, '{"a":"\ud800"}'),
        ((1, ("b",)), '[1,["b"]]'),
    ],
)
def test_escapes_and_numbers_are_written_one_way(value: Any, text: str) -> None:
    assert canonical_json(value) == text


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), b"x", {1, 2}, object(), {1: "a"}, [{"a": {2: 3}}], {"a": 1, 2: 3}]
)
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        canonical_json(value)


def test_the_digest_is_that_of_the_text_and_does_not_depend_on_the_order_of_keys() -> None:
    assert digest_of({"b": 1, "a": "ä"}) == hashlib.sha256('{"a":"ä","b":1}'.encode()).hexdigest()
    assert digest_of({"a": "ä", "b": 1}) == digest_of({"b": 1, "a": "ä"})


def test_a_record_digest_tells_kind_and_text_apart() -> None:
    assert record_digest("k", "{}") == hashlib.sha256(b"k\x00{}").digest()
    assert record_digest("a", "b{}") != record_digest("ab", "{}")


@given(st.integers(1, 2**63 - 1), st.none() | st.integers(1, 2**31 - 1), st.binary(min_size=32, max_size=32))
def test_the_chain_covers_the_tail_the_seq_the_turn_and_the_digest(
    seq: int, turn: int | None, digest: bytes
) -> None:
    tail = first_tail("ses_1")
    number = (turn or 0).to_bytes(4, "big")
    assert (
        chain_tail(tail, seq, turn, digest)
        == hashlib.sha256(tail + seq.to_bytes(8, "big") + number + digest).digest()
    )


def test_the_chain_refuses_numbers_that_the_database_could_not_hold() -> None:
    with pytest.raises(struct.error):
        chain_tail(first_tail("ses_1"), 1, 2**31, b"")


def test_what_holds_itself_is_refused() -> None:
    value: dict[str, object] = {}
    value["own"] = [value]
    with pytest.raises(ValueError, match="Circular"):
        canonical_json(value)
