"""What of the earlier turns is shown: the newest whole turns that fit, read backwards in pages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.agents import Agent, tool
from shared.domain.ids import SessionId
from shared.sessions.records import Record
from shared.sessions.vocabulary import (
    MemoryMessage,
    MemoryToolResult,
    Payload,
    StoredCall,
    TurnReply,
    TurnStarted,
    UserMessage,
    draft_of,
)
from workers.context.estimates import estimate_messages, estimate_text
from workers.context.history import (
    HISTORY_MAX_RECORDS,
    HISTORY_PAGE_RECORDS,
    History,
    past_turn,
    read_history,
    read_turns,
    room_for_history,
)
from workers.context.transcript import Transcript, fold

AT = datetime(2030, 1, 1, tzinfo=UTC)
#: The steps of each turn by the length of what is said; a turn that fails has no reply.
TURNS = st.lists(st.tuples(st.lists(st.integers(0, 200), max_size=4), st.booleans()), max_size=40)


def turn_of(number: int, steps: Sequence[int], *, replies: bool = True) -> list[Payload]:
    run_id = f"r{number}"
    payloads: list[Payload] = [
        TurnStarted(
            turn_id="t",
            run_id=run_id,
            entry=f"{run_id}:0",
            origin="user",
            user_message=UserMessage(text=f"ask {number}"),
        )
    ]
    for step, length in enumerate(steps):
        entry = f"{run_id}:{1 + 2 * step}"
        call = StoredCall(
            invocation_id=f"{number}.{step}",
            call_id=f"c{step}",
            name="t",
            arguments="{}",
            argument_digest="d",
            token="k",
        )
        payloads += [
            MemoryMessage(entry=entry, run_id=run_id, run=0, step=step, text="x" * length, calls=[call]),
            MemoryToolResult(
                entry=f"{run_id}:{2 + 2 * step}",
                run_id=run_id,
                run=0,
                step=step,
                call_id=f"c{step}",
                invocation_id=f"{number}.{step}",
                name="t",
                status="ok",
                text="done",
            ),
        ]
    return [*payloads, TurnReply(outcome="completed", text=f"reply {number}")] if replies else payloads


def log_of(turns: Sequence[Sequence[Payload]]) -> list[Record]:
    drafts = [(number, draft_of(p)) for number, turn in enumerate(turns, 1) for p in turn]
    return [
        Record(SessionId("ses_1"), seq, number, d.kind, AT, d.text, d.digest)
        for seq, (number, d) in enumerate(drafts, 1)
    ]


class Log:
    """A log that counts what is read of it."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.pages: list[int] = []

    async def read_back(self, before: int | None) -> Sequence[Record]:
        end = len(self.records) if before is None else before - 1
        page = self.records[max(0, end - HISTORY_PAGE_RECORDS) : end][::-1]
        self.pages.append(len(page))
        return page


@given(TURNS, st.integers(-10, 2_000))
@pytest.mark.behaviour("RSM-31", "MST-09")
async def test_the_newest_whole_turns_that_fit_are_shown_in_order(
    turns: list[tuple[list[int], bool]], room: int
) -> None:
    parts = [turn_of(n, steps, replies=replies) for n, (steps, replies) in enumerate(turns)]
    shown = await read_history(Log(log_of(parts)).read_back, room_tokens=room)
    suffixes = [fold(log_of(parts[n:])) for n in range(len(parts) + 1)]
    fitting = [t for t in suffixes if estimate_messages(t.messages) <= max(room, 0)]
    assert shown == (fitting[0] if room > 0 else Transcript())


@pytest.mark.behaviour("RSM-20")
async def test_what_is_shown_depends_on_nothing_that_comes_after_the_turns_beginning() -> None:
    records = log_of([turn_of(n, [20, 20]) for n in range(300)])
    first = await read_history(Log(records[:1_002]).read_back, room_tokens=2_000)
    again = await read_history(Log(records).read_back, room_tokens=2_000, before=1_003)
    assert first == again
    assert first.recipe == {"name": "window", "version": 1, "since": first.since}
    assert first.since.endswith(":0")
    # A turn that the cut goes through is not shown at all.
    assert first.messages[0].text.startswith("ask ")


async def test_what_is_read_is_bounded_by_the_room_and_by_a_number_of_records_never_by_the_log() -> None:
    for length in (1_000, 20_000):
        large, small = (Log(log_of([turn_of(n, [size]) for n in range(length // 4)])) for size in (4_000, 0))
        await read_history(large.read_back, room_tokens=64_000)
        assert large.pages == [HISTORY_PAGE_RECORDS]
        if length > HISTORY_MAX_RECORDS:
            shown = await read_history(small.read_back, room_tokens=10**9)
            assert sum(small.pages) == HISTORY_MAX_RECORDS
            assert len(shown.messages) == HISTORY_MAX_RECORDS


@given(TURNS, st.integers(0, 12), st.integers(-10, 2_000), st.integers(1, 2_000), st.integers(-10, 2_000))
async def test_a_history_that_is_kept_while_turns_are_added_shows_what_the_log_does_or_says_that_it_must_be_read(
    turns: list[tuple[list[int], bool]], added: int, room: int, budget: int, asked: int
) -> None:
    parts = [turn_of(n, steps, replies=replies) for n, (steps, replies) in enumerate(turns)]
    known = len(parts) - min(added, len(parts))
    history = await read_turns(Log(log_of(parts[:known])).read_back, room_tokens=min(room, budget))
    for part in parts[known:]:
        history = history.followed_by(past_turn(log_of([part])), room_tokens=budget)
    log = Log(log_of(parts))
    shown = history.shown(asked)
    assert shown in (None, await read_history(log.read_back, room_tokens=asked))
    # As much as was read of it, and as was kept while it grew, it never has to be read again.
    assert shown is not None or asked > min(room, budget)


async def test_a_history_that_is_kept_ends_where_a_reading_of_the_log_does() -> None:
    parts = [turn_of(n, [0]) for n in range(2 * HISTORY_MAX_RECORDS // 4)]
    history = History(is_complete=True)
    for part in parts:
        history = history.followed_by(past_turn(log_of([part])), room_tokens=10**9)
    assert history.shown(10**9) == await read_history(Log(log_of(parts)).read_back, room_tokens=10**9)
    # One turn more is kept: the first that is not shown.
    assert len(history.turns) == HISTORY_MAX_RECORDS // 4 + 1


async def test_without_room_nothing_is_read() -> None:
    log = Log(log_of([turn_of(0, [])]))
    assert await read_history(log.read_back, room_tokens=0) == Transcript()
    assert log.pages == []


def test_instructions_tools_and_the_turns_message_have_their_room_first() -> None:
    @tool
    def look(place: str) -> str:
        """Look somewhere."""
        return place

    bare = Agent("a", "", budget_tokens=1_000)
    assert room_for_history(bare, "") == 1_000 - 8
    assert room_for_history(bare, "x" * 400) == 1_000 - 8 - 100
    full = Agent("a", "y" * 40, tools=[look], budget_tokens=1_000)
    assert room_for_history(full, "") < 1_000 - 8 - 10 - estimate_text("Look somewhere.")
