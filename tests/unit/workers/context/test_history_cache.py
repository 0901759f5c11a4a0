"""Histories that a process keeps: each for one tail, within a bound of bytes, the one kept longest ago first to go."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from sys import getsizeof
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shared.domain.canonical import first_tail
from shared.domain.ids import SessionId
from shared.sessions.records import Record
from shared.sessions.vocabulary import (
    MemoryMessage,
    MemoryToolResult,
    StoredCall,
    TurnStarted,
    UserMessage,
    draft_of,
)
from workers.context.history import History, past_turn
from workers.context.history_cache import HistoryCache
from workers.context.transcript import Transcript

ONE, TWO = SessionId("one"), SessionId("two")
AT = datetime(2030, 1, 1, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def history(asked: str, *steps: tuple[str, str, str]) -> History:
    """A history of one turn: what was asked, and its steps, each what the model said, a call's arguments and result."""
    payloads: list[Any] = [
        TurnStarted(turn_id="t", run_id="r", entry="r:0", origin="user", user_message=UserMessage(text=asked))
    ]
    for n, (said, arguments, result) in enumerate(steps):
        of_step: dict[str, Any] = {"run_id": "r", "run": 0, "step": n}
        names: dict[str, Any] = {"call_id": f"c{n}", "invocation_id": f"i{n}", "name": "act"}
        call = StoredCall(**names, arguments=arguments, argument_digest="d", token="k")
        payloads += [
            MemoryMessage(**of_step, entry=f"r:{2 * n + 1}", text=said, calls=[call]),
            MemoryToolResult(**of_step, **names, entry=f"r:{2 * n + 2}", status="ok", text=result),
        ]
    drafts = map(draft_of, payloads)
    records = [Record(ONE, seq, 1, d.kind, AT, d.text, d.digest) for seq, d in enumerate(drafts, 1)]
    return History((past_turn(records),), is_complete=True)


def held_bytes(value: Any) -> int:
    """What a value takes with all that it holds."""
    inside: list[Any] = []
    if dataclasses.is_dataclass(value):
        inside = [getattr(value, f.name) for f in dataclasses.fields(value)]
    elif isinstance(value, tuple):
        inside = list(value)
    return getsizeof(value) + sum(map(held_bytes, inside))


def test_a_history_is_found_for_exactly_its_tail_and_once() -> None:
    cache, kept = HistoryCache(), history("hello")
    for tail in (b"tail", b"other"):
        cache.keep(ONE, b"tail", kept)
        assert cache.take(TWO, b"tail") is None
        assert cache.take(ONE, tail) == (kept if tail == b"tail" else None)
        assert cache.take(ONE, b"tail") is None
        assert (len(cache), cache.size_bytes) == (0, 0)
    assert (cache.counts.found, cache.counts.missed) == (1, 5)


def test_of_an_empty_log_all_is_known() -> None:
    cache = HistoryCache(0)
    known = cache.take(ONE, first_tail(ONE))
    assert known is not None
    assert known.shown(10**9) == Transcript()
    assert cache.take(TWO, first_tail(ONE)) is None


def test_what_was_kept_longest_ago_goes_first() -> None:
    room = HistoryCache()
    room.keep(ONE, b"", history("x"))
    cache = HistoryCache(3 * room.size_bytes)
    for name in ("a", "b", "c", "a", "d"):
        cache.keep(SessionId(name), b"", history("x"))
    assert [cache.take(SessionId(name), b"") is not None for name in "abcd"] == [True, False, True, True]


def test_a_history_that_is_too_large_by_itself_is_not_kept_and_displaces_nothing() -> None:
    cache = HistoryCache(10_000)
    cache.keep(ONE, b"", history("x"))
    cache.keep(TWO, b"", history("x" * 10_000))
    assert len(cache) == 1
    cache.keep(ONE, b"1", history("x" * 10_000))
    assert (len(cache), cache.size_bytes) == (0, 0)


@given(TEXT, st.lists(st.tuples(TEXT, TEXT, TEXT)))
def test_a_history_is_counted_as_no_less_than_it_takes(asked: str, steps: list[tuple[str, str, str]]) -> None:
    cache, kept = HistoryCache(), history(asked, *steps)
    cache.keep(ONE, b"t" * 32, kept)
    assert held_bytes(kept) <= cache.size_bytes
