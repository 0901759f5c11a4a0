"""Answers put together from chunks, as real and as hostile servers send them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.models.chat_chunks import CALLS_MAX, AnswerAssembler, ChunkError, ErrorEvent, read_usage
from shared.models.types import ModelResponse, ToolCall, Usage


def assembler(**bounds: int) -> AnswerAssembler:
    numbers = itertools.count(1)
    return AnswerAssembler(mint_call_id=lambda: f"minted_{next(numbers)}", **bounds)


def chunk(delta: Any = None, *, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    return json.dumps({"id": "c", "model": "m-1", "choices": [choice], **more}).encode()


def call_chunk(*fragments: dict[str, Any]) -> bytes:
    return chunk({"tool_calls": list(fragments)})


def take_all(*payloads: bytes, **bounds: int) -> tuple[list[str], ModelResponse]:
    """Return the deltas and the answer of a stream."""
    answer = assembler(**bounds)
    deltas = [answer.take(payload) for payload in payloads]
    deltas.append(answer.end())
    return [delta for delta in deltas if delta], answer.response()


STOP = chunk(finish="stop")
DONE = b"[DONE]"


def test_text_comes_out_piece_by_piece_and_joined() -> None:
    deltas, response = take_all(chunk({"role": "assistant", "content": ""}), chunk({"content": "Hé"}),
                                chunk({"content": "llo"}), STOP, DONE)  # fmt: skip
    assert deltas == ["Hé", "llo"]
    assert response == ModelResponse(text="Héllo", finish_reason="stop", model="m-1")


def test_only_the_first_of_several_choices_counts() -> None:
    both = {"choices": [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "yes"}}]}
    other = {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]}
    deltas, response = take_all(json.dumps(both).encode(), json.dumps(other).encode(), STOP)
    assert (deltas, response.finish_reason) == (["yes"], "stop")


def test_call_fragments_are_put_together_by_index_whatever_their_order() -> None:
    deltas, response = take_all(
        call_chunk(
            {"index": 0, "id": "a", "type": "function", "function": {"name": "clock", "arguments": ""}}
        ),
        call_chunk({"index": 1, "id": "b", "function": {"name": "calculate", "arguments": '{"x"'}}),
        call_chunk(
            {"index": 0, "function": {"arguments": "{}"}}, {"index": 1, "function": {"arguments": ":1}"}}
        ),
        chunk(finish="tool_calls"),
    )
    assert deltas == []
    assert response.calls == (ToolCall("a", "clock", "{}"), ToolCall("b", "calculate", '{"x":1}'))


def test_calls_without_an_index_begin_with_a_name_or_another_id() -> None:
    _, response = take_all(
        call_chunk({"id": "a", "function": {"name": "f", "arguments": "1"}}),
        call_chunk({"function": {"arguments": "2"}}),
        call_chunk({"id": "b", "function": {"name": "g", "arguments": "3"}}),
        call_chunk({"function": {"name": "h", "arguments": "4"}}),
        STOP,
    )
    assert [(c.name, c.arguments) for c in response.calls] == [("f", "12"), ("g", "3"), ("h", "4")]


def test_whole_calls_that_all_carry_index_0_stay_apart() -> None:
    _, response = take_all(
        call_chunk({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}),
        call_chunk({"index": 0, "id": "b", "function": {"name": "g", "arguments": "[]"}}),
        STOP,
    )
    assert response.calls == (ToolCall("a", "f", "{}"), ToolCall("b", "g", "[]"))


@pytest.mark.parametrize("call_id", [None, "", "with blank", "x" * 257, "nul\x00", 7])
def test_a_call_without_a_usable_id_gets_one(call_id: object) -> None:
    _, response = take_all(call_chunk({"index": 0, "id": call_id, "function": {"name": "f"}}), STOP)
    assert response.calls == (ToolCall("minted_1", "f", ""),)


def test_calls_that_share_an_id_are_told_apart() -> None:
    same = [{"index": n, "id": "same", "function": {"name": f"f{n}"}} for n in range(2)]
    _, response = take_all(call_chunk(*same), STOP)
    assert [call.id for call in response.calls] == ["same", "minted_1"]


def test_a_call_without_a_name_breaks_the_protocol() -> None:
    with pytest.raises(ChunkError, match="no name"):
        take_all(call_chunk({"index": 0, "id": "a", "function": {"arguments": "{}"}}), STOP)


def test_arguments_sent_as_an_object_become_their_text() -> None:
    _, response = take_all(
        call_chunk({"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": 1}}}), STOP
    )
    assert response.calls[0].arguments == '{"x":1}'


@pytest.mark.behaviour("MOD-59", "MOD-60", "MOD-61")
def test_usage_is_read_from_the_chunk_without_choices() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    _, response = take_all(
        chunk({"content": "x"}), STOP, json.dumps({"choices": [], "usage": usage}).encode(), DONE
    )
    assert response.usage == Usage(100, 20, 60, 30, 5)


@pytest.mark.behaviour("MOD-59")
@pytest.mark.parametrize(
    "reads",
    [{"prompt_cache_hit_tokens": 7}, {"cached_tokens": 7}, {"prompt_tokens_details": {"cached_tokens": 7}}],
)
def test_cache_reads_are_found_under_each_of_their_names(reads: dict[str, Any]) -> None:
    assert read_usage({"prompt_tokens": 9, **reads}).cache_read_tokens == 7


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None, "prompt_tokens_details": None}, [1]])
def test_missing_usage_is_zero(usage: object) -> None:
    _, response = take_all(chunk({"content": "x"}, usage=usage), STOP)
    assert response.usage == Usage()


@pytest.mark.parametrize("payloads", [[], [DONE], [chunk({"content": "x"})], [b'{"choices": []}']])
def test_a_stream_that_ends_before_its_answer_is_cut(payloads: list[bytes]) -> None:
    with pytest.raises(ChunkError) as caught:
        take_all(*payloads)
    assert caught.value.reason == "ended-early"


def test_a_finish_reason_or_done_ends_an_answer() -> None:
    assert take_all(chunk({"content": "x"}), STOP)[1].text == "x"
    assert take_all(chunk({"content": "x"}), DONE)[1].finish_reason == "stop"
    assert take_all(call_chunk({"id": "a", "function": {"name": "f"}}), DONE)[1].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b"7",
        b'{"choices": 1}',
        b'{"choices": [1]}',
        b'{"choices": [{"delta": 1}]}',
        b'{"choices": [{"delta": {"content": [1]}}]}',
        b'{"choices": [{"delta": {"tool_calls": 1}}]}',
        b'{"choices": [{"delta": {"tool_calls": [1]}}]}',
        b'{"choices": [{"delta": {"tool_calls": [{"function": 1}]}}]}',
        b"[" * 200_000,
    ],
)
def test_garbage_breaks_the_protocol(payload: bytes) -> None:
    with pytest.raises(ChunkError) as caught:
        assembler().take(payload)
    assert caught.value.reason == "protocol"


@pytest.mark.parametrize("error", [{"message": "no"}, "no"])
def test_an_error_object_is_told_apart_from_garbage(error: object) -> None:
    with pytest.raises(ErrorEvent) as caught:
        assembler().take(json.dumps({"error": error}).encode())
    assert caught.value.error == error


def test_text_and_arguments_are_bounded_together() -> None:
    half = "é" * 25
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "x" * 49}}
    take_all(chunk({"content": half}), call_chunk(call), STOP, answer_max_bytes=100)
    with pytest.raises(ChunkError, match="100 bytes") as caught:
        take_all(chunk({"content": half}), call_chunk(call), chunk({"content": "x"}), answer_max_bytes=100)
    assert caught.value.reason == "too-large"


def test_the_number_of_calls_is_bounded() -> None:
    calls = [{"index": n, "function": {"name": "f"}} for n in range(CALLS_MAX + 1)]
    take_all(call_chunk(*calls[:-1]), STOP)
    with pytest.raises(ChunkError) as caught:
        take_all(call_chunk(*calls), STOP)
    assert caught.value.reason == "too-large"


def test_a_character_whose_halves_come_in_two_chunks_is_whole() -> None:
    deltas, response = take_all(chunk({"content": "a\ud83d"}), chunk({"content": "\ude42b"}), STOP)
    assert deltas == ["a", "🙂b"]
    assert response.text == "a🙂b"
    assert not response.replaced_characters


def test_lone_surrogates_and_nul_become_replacement_characters_and_the_answer_says_so() -> None:
    deltas, response = take_all(
        chunk({"content": "a\ud83d"}), chunk({"content": "b\x00\udc00"}), chunk({"content": "c\ud83d"}), STOP
    )
    assert "".join(deltas) == response.text == "a\ufffdb\ufffd\ufffdc\ufffd"
    assert response.replaced_characters


def test_surrogates_in_calls_are_replaced_too() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "f\ud800", "arguments": '"\udc00'}}
    _, response = take_all(call_chunk(call, {"index": 0, "function": {"arguments": '"'}}), STOP)
    assert response.calls == (ToolCall("a", "f\ufffd", '"\ufffd"'),)
    assert response.replaced_characters


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    deltas, response = take_all(chunk({"content": "x"}).replace(b'"x"', b'"\xff"'), STOP)
    assert deltas == ["\ufffd"]
    assert response.replaced_characters


@given(
    pieces=st.lists(
        st.text(st.characters(codec=None, categories=["L", "Cs", "Cc", "So"]), min_size=1, max_size=4),
        max_size=8,
    )
)
def test_deltas_joined_are_the_text_and_can_be_stored(pieces: list[str]) -> None:
    deltas, response = take_all(*(chunk({"content": piece}) for piece in pieces), STOP)
    assert "".join(deltas) == response.text
    assert all(deltas)
    response.text.encode()
    assert "\x00" not in response.text
