"""The decoder of server-sent events: however the bytes are cut, the same events come out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.models.sse import EventTooLarge, SseDecoder


def decode(*chunks: bytes, event_max_bytes: int = 1024) -> list[bytes]:
    decoder = SseDecoder(event_max_bytes=event_max_bytes)
    return [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.finish()


def test_events_come_out_as_soon_as_their_blank_line_is_there() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: one\n") == []
    assert decoder.feed(b"\ndata: two\n\ndata:") == [b"one", b"two"]
    assert decoder.feed(b" three\n\n") == [b"three"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_end_in_lf_crlf_or_cr(end: bytes) -> None:
    stream = end.join([b"data: one", b"", b": comment", b"data: two", b"", b""])
    assert decode(stream) == [b"one", b"two"]


def test_a_crlf_that_is_cut_in_its_middle_is_one_line_end() -> None:
    assert decode(b"data: one\r", b"\ndata: more\r", b"\n\r", b"\n") == [b"one\nmore"]


def test_data_of_many_lines_is_joined_by_line_feeds() -> None:
    assert decode(b"data: a\ndata:b\ndata:  c\n\n") == [b"a\nb\n c"]


def test_comments_and_other_fields_are_read_over() -> None:
    assert decode(b": ping\nevent: delta\nid: 7\nretry: 10\ndata: x\n\n: ping\n\nevent: end\n\n") == [b"x"]


def test_a_byte_order_mark_before_the_first_line_is_skipped_however_it_is_cut() -> None:
    assert decode(b"\xef\xbb\xbfdata: x\n\n") == [b"x"]
    assert decode(b"\xef", b"\xbb", b"\xbfdata: x\n\n") == [b"x"]


def test_a_last_event_without_its_blank_line_counts() -> None:
    assert decode(b"data: one\n\ndata: [DONE]") == [b"one", b"[DONE]"]
    assert decode(b"data: [DONE]\r") == [b"[DONE]"]


def test_a_line_without_end_is_bounded_before_it_is_whole() -> None:
    decoder = SseDecoder(event_max_bytes=100)
    decoder.feed(b"data: " + b"x" * 90)
    with pytest.raises(EventTooLarge, match="100 bytes"):
        decoder.feed(b"x" * 10)


def test_the_data_of_one_event_is_bounded_over_all_its_lines() -> None:
    with pytest.raises(EventTooLarge, match="100 bytes"):
        decode(b"data: xxxxxxxxxx\n" * 11, event_max_bytes=100)
    assert len(decode(b"data: xxxxxxxxxx\n\n" * 11, event_max_bytes=100)) == 11


@given(
    events=st.lists(st.text(alphabet="aé🙂: \t", min_size=1).map(str.encode), max_size=6),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(min_value=0, max_value=200), max_size=8),
)
def test_any_cut_of_the_bytes_gives_the_same_events(events: list[bytes], end: bytes, cuts: list[int]) -> None:
    stream = b"".join(b": c" + end + b"data: " + event + end + end for event in events)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[a:b] for a, b in itertools.pairwise(places)]
    assert decode(*chunks) == events
