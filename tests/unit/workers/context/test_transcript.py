"""The transcript: folded from the log alone, pairs kept, nothing skipped (law 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.errors import CorruptRecord
from shared.domain.ids import SessionId
from shared.models.types import AssistantMessage, ToolCall, ToolMessage, UserMessage
from shared.sessions import vocabulary
from shared.sessions.records import Record
from shared.sessions.vocabulary import (
    MEMORY_KINDS,
    MemoryMessage,
    MemorySection,
    MemoryToolResult,
    Payload,
    StepEnded,
    StoredCall,
    TurnEnded,
    TurnReply,
    TurnStarted,
    draft_of,
)
from workers.context.transcript import Transcript, fold

#: How many calls each step of each turn makes; a step without calls is a turn's last.
TURNS = st.lists(st.lists(st.integers(1, 3), max_size=3), max_size=4)


def log_of(payloads: Sequence[Payload]) -> list[Record]:
    drafts = [draft_of(p) for p in payloads]
    at = datetime(2030, 1, 1, tzinfo=UTC)
    return [Record(SessionId("ses_1"), n, 1, d.kind, at, d.text, d.digest) for n, d in enumerate(drafts, 1)]


def started(turn: int) -> TurnStarted:
    return TurnStarted(
        turn_id=f"t{turn}",
        run_id=f"r{turn}",
        entry=f"r{turn}:0",
        origin="user",
        user_message=vocabulary.UserMessage(text=f"ask {turn}"),
    )


def message(turn: int, entry: int, step: int, calls: int) -> MemoryMessage:
    stored = [
        StoredCall(
            invocation_id=f"{turn}.0.{step}:t:{n}",
            call_id=f"c{step}.{n}",
            name="t",
            arguments="{}",
            argument_digest="d",
            token=f"r{turn}:call:{n}",
        )
        for n in range(calls)
    ]
    return MemoryMessage(
        entry=f"r{turn}:{entry}", run_id=f"r{turn}", run=0, step=step, text=f"says {step}", calls=stored
    )


def results(said: MemoryMessage, entry: int) -> list[MemoryToolResult]:
    return [
        MemoryToolResult(
            entry=f"{said.run_id}:{entry + n}",
            run_id=said.run_id,
            run=0,
            step=said.step,
            call_id=call.call_id,
            invocation_id=call.invocation_id,
            name=call.name,
            status="ok",
            text=f"result {n}",
        )
        for n, call in enumerate(said.calls)
    ]


def turn_payloads(turn: int, steps: Sequence[int], *, replies: bool = True) -> list[Payload]:
    told = MemorySection(entry=f"r{turn}:1", run_id=f"r{turn}", text=f"told {turn}")
    payloads: list[Payload] = [started(turn), told]
    entry = 2
    for step, calls in enumerate([*steps, 0] if replies else steps):
        said = message(turn, entry, step, calls)
        payloads += [said, *results(said, entry + 1), StepEnded(run=0, step=step, status="completed")]
        entry += 1 + calls
    if replies:
        payloads += [TurnReply(outcome="completed", text="says", step=len(steps))]
    return [*payloads, TurnEnded(reason="completed" if replies else "cancelled")]


@given(TURNS, st.booleans())
@pytest.mark.behaviour("RSM-31", "TRN-41", "TRN-42")
def test_every_call_is_followed_by_its_result_and_every_result_has_its_call(
    turns: list[list[int]], last_replies: bool
) -> None:
    payloads = [
        p
        for n, steps in enumerate(turns)
        for p in turn_payloads(n, steps, replies=last_replies or n < len(turns) - 1)
    ]
    messages = list(fold(log_of(payloads)).messages)
    while messages:
        head = messages.pop(0)
        assert not isinstance(head, ToolMessage)
        if isinstance(head, AssistantMessage):
            answers = [messages.pop(0) for _ in head.calls]
            assert [a.call_id for a in answers if isinstance(a, ToolMessage)] == [c.id for c in head.calls]


@given(TURNS, st.integers(0, 100))
@pytest.mark.behaviour("RSM-20")
def test_a_fold_over_any_part_goes_on_where_a_fold_over_the_rest_stops(
    turns: list[list[int]], cut: int
) -> None:
    """Folding in two goes, at the end of any turn, gives what folding at once gives."""
    parts = [turn_payloads(n, steps) for n, steps in enumerate(turns)]
    at = cut % (len(parts) + 1)
    first, second = (log_of([p for part in half for p in part]) for half in (parts[:at], parts[at:]))
    assert fold(second, fold(first)) == fold(log_of([p for part in parts for p in part]))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.data())
@pytest.mark.behaviour("RSM-31", "SES-160")
def test_a_call_without_its_result_or_a_result_without_its_call_is_never_shown(
    steps: list[int], data: st.DataObject
) -> None:
    records = log_of(turn_payloads(0, steps))
    paired = [n for n, r in enumerate(records) if r.kind == "memory.tool-result" or _has_calls(r)]
    lost = data.draw(st.sampled_from(paired))
    with pytest.raises(CorruptRecord) as corrupt:
        fold(records[:lost] + records[lost + 1 :])
    assert corrupt.value.fields["session"] == "ses_1"
    assert corrupt.value.fields["seq"] in {r.seq for r in records}


def _has_calls(record: Record) -> bool:
    return record.kind == "memory.message" and bool(record.data["calls"])


def test_messages_stand_as_they_were_said_and_the_last_entry_is_known() -> None:
    transcript = fold(log_of(turn_payloads(3, [1])))
    assert transcript.messages == (
        UserMessage("ask 3"),
        UserMessage("told 3"),
        AssistantMessage("says 0", (ToolCall("c0.0", "t", "{}"),)),
        ToolMessage("c0.0", "t", "result 0"),
        AssistantMessage("says 1"),
    )
    assert transcript.through == "r3:4"


def test_results_in_another_order_than_their_calls_do_not_pair() -> None:
    said = message(0, 1, 0, 2)
    with pytest.raises(CorruptRecord):
        fold(log_of([started(0), said, *reversed(results(said, 2))]))


@pytest.mark.parametrize("kind", MEMORY_KINDS)
@pytest.mark.behaviour("SES-160")
def test_a_memory_row_that_does_not_decode_fails_naming_session_and_seq(kind: str) -> None:
    records = log_of(turn_payloads(0, [1]))
    at = next(n for n, r in enumerate(records) if r.kind == kind)
    records[at] = replace(records[at], text='{"v":1,"text":1}')
    with pytest.raises(CorruptRecord) as corrupt:
        fold(records)
    assert corrupt.value.fields == {"session": "ses_1", "seq": at + 1, "kind": kind}


@pytest.mark.behaviour("RSM-21", "RSM-33")
def test_a_turn_that_was_cut_short_shows_its_message_and_its_whole_steps() -> None:
    transcript = fold(log_of([*turn_payloads(0, [1], replies=False), started(1)]))
    assert [type(m) for m in transcript.messages] == [
        *(UserMessage, UserMessage),
        *(AssistantMessage, ToolMessage),
        UserMessage,
    ]


@pytest.mark.behaviour("RSM-34")
def test_a_failed_reply_without_text_is_never_shown() -> None:
    transcript = fold(log_of([started(0), TurnReply(outcome="failed"), TurnEnded(reason="failed")]))
    assert transcript.messages == (UserMessage("ask 0"),)


@pytest.mark.behaviour("TRN-13")
def test_a_reply_that_no_step_wrote_is_shown_and_one_that_a_step_wrote_is_not_shown_twice() -> None:
    own = fold(log_of([started(0), TurnReply(outcome="completed", text="from the host")]))
    assert own.messages[-1] == AssistantMessage("from the host")
    said = message(0, 1, 0, 0)
    stepped = fold(log_of([started(0), said, TurnReply(outcome="completed", text="says 0", step=0)]))
    assert stepped.messages[1:] == (AssistantMessage("says 0"),)


def test_other_kinds_change_nothing() -> None:
    assert fold(log_of([StepEnded(run=0, step=0, status="completed"), TurnEnded(reason="failed")])) == (
        Transcript()
    )
