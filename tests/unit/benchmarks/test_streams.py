"""What the benchmark of streams makes of what it reads: frames however they are cut, and figures of blocks."""

from __future__ import annotations

import time

import orjson
import pytest

from benchmarks.harness.arms import Measured
from benchmarks.streams.model import TOKEN_CHARS, chunked
from benchmarks.streams.readers import Reader, Seen, percentiles
from benchmarks.streams.run import LEVELS, Streams

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def delta(*ages_us: int) -> bytes:
    """A frame of text whose tokens were sent so long ago."""
    now_us = time.monotonic_ns() // 1000
    text = "".join(f" {now_us - age:011d}" for age in ages_us)
    assert len(text) == TOKEN_CHARS * len(ages_us)
    data = orjson.dumps({"turn": 1, "run": 0, "step": 0, "offset": 0, "text": text})
    return chunked(b"event: delta\ndata: %b\n\n" % data)


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_tokens_are_counted_with_their_age_however_the_answer_is_cut(size: int) -> None:
    seen = Seen(is_open=True)
    reader = Reader(seen, "127.0.0.1")
    answer = HEAD + chunked(b": open\n\n") + delta(9_000_000) + delta(6_000_000, 3_000_000)
    answer += chunked(b'event: end\ndata: {"status":"ended"}\n\n') + b"0\r\n\r\n"
    for at in range(0, len(answer), size):
        reader.data_received(answer[at : at + size])
    assert (seen.tokens, seen.frames, seen.failures, seen.streaming) == (3, 2, 0, 0)
    assert [round(lag / 1e6) for lag in seen.lags_us] == [9, 6, 3]
    assert [round(span) for span in seen.spans_s] == [9]


async def test_a_refusal_and_a_problem_in_the_stream_count_as_failures() -> None:
    seen = Seen(is_open=True)
    Reader(seen, "127.0.0.1").data_received(b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}")
    problem = chunked(b'event: problem\ndata: {"code":"store.unavailable"}\n\n')
    Reader(seen, "127.0.0.1").data_received(HEAD + problem + b"0\r\n\r\n")
    assert (seen.failures, seen.tokens, seen.spans_s) == (2, 0, [])


def test_the_cap_is_the_highest_level_that_is_not_drawn_out() -> None:
    measured = Measured()
    for level, stretch in zip(LEVELS, (1.1, 1.29, 1.31), strict=True):
        measured.add({f"stretch_p99_{level}": stretch})
    assert Streams(measured).cap() == LEVELS[1]


def test_memory_a_stream_is_the_slope_between_the_fewest_and_the_most_of_the_first_round() -> None:
    streams = Streams(memory=[(100, 200.0), (200, 210.0), (400, 230.0), (90, 300.0)])
    assert streams.kb_per_stream() == pytest.approx(30 * 1024**2 / 1000 / 300)


def test_percentiles_of_nothing_are_zero() -> None:
    assert percentiles([]) == {"p50": 0.0, "p90": 0.0, "p99": 0.0, "max": 0.0}
