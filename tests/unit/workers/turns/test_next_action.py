"""What an attempt does next: the truth table, and any place where a turn's log may stop."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.errors import CorruptRecord
from shared.domain.ids import SessionId
from shared.sessions.records import Record
from shared.sessions.vocabulary import (
    MemoryMessage,
    MemoryToolResult,
    Payload,
    RequestPrepared,
    StepEnded,
    StepResponse,
    StepStarted,
    StepUsage,
    StoredCall,
    ToolCompleted,
    ToolStarted,
    TurnEnded,
    TurnReply,
    TurnStarted,
    UserMessage,
    draft_of,
)
from workers.turns.next_action import (
    AlreadyEnded,
    AskModel,
    EndWithReply,
    NextAction,
    Open,
    SettleCalls,
    next_action,
    read_turn,
)

STARTED = TurnStarted(
    turn_id="t", run_id="r", entry="r:0", origin="user", user_message=UserMessage(text="hi")
)
REPLY = TurnReply(outcome="completed", text="done", step=0)
ENDED = TurnEnded(reason="completed")


def header(step: int) -> RequestPrepared:
    return RequestPrepared(
        run_id="r",
        run=0,
        step=step,
        system="",
        tools=[],
        tool_choice="auto",
        model={"name": "m"},
        cache_key="s",
        call_policy={},
        recipe={},
        through="r:0",
    )


def stored_calls(step: int, count: int) -> list[StoredCall]:
    return [
        StoredCall(
            invocation_id=f"1.0.{step}:t:{n}",
            call_id=f"c{n}",
            name="t",
            arguments="{}",
            argument_digest="d",
            token=f"r:call:{step}.{n}",
        )
        for n in range(count)
    ]


def response(step: int, count: int) -> StepResponse:
    return StepResponse(
        run_id="r",
        run=0,
        step=step,
        text="",
        calls=stored_calls(step, count),
        finish_reason="tool_calls",
        model="m",
        usage={"input_tokens": 1},
    )


def commits(steps: Sequence[int]) -> list[list[Payload]]:
    """A turn's commits as the loop makes them: one number a step with calls, then the closing one."""
    found: list[list[Payload]] = [[STARTED, StepStarted(run=0, step=0), header(0)]]
    for step, count in enumerate(steps):
        calls = stored_calls(step, count)
        started = [ToolStarted(run=0, step=step, invocation_id=c.invocation_id, name="t") for c in calls]
        completed = [
            ToolCompleted(run=0, step=step, invocation_id=c.invocation_id, name="t", status="ok")
            for c in calls
        ]
        found.append([response(step, count), *started])
        found += [[c] for c in completed[:-1]]
        results = [
            MemoryToolResult(
                entry="r:9", run_id="r", run=0, step=step, call_id=c.call_id, invocation_id=c.invocation_id,
                name="t", status="ok", text="",
            )
            for c in calls
        ]  # fmt: skip
        message = MemoryMessage(entry="r:8", run_id="r", run=0, step=step, text="", calls=calls)
        usage = StepUsage(run=0, step=step, model="m", usage={"input_tokens": 1})
        ended = StepEnded(run=0, step=step, status="completed")
        following = [StepStarted(run=0, step=step + 1), header(step + 1)]
        found.append([completed[-1], message, *results, usage, ended, *following])
    last = MemoryMessage(entry="r:8", run_id="r", run=0, step=len(steps), text="done")
    return [*found, [last, REPLY], [ENDED]]


def action_after(payloads: Sequence[Payload]) -> NextAction:
    drafts = [draft_of(p) for p in payloads]
    at = datetime(2030, 1, 1, tzinfo=UTC)
    records = [
        Record(SessionId("ses_1"), n, 1, d.kind, at, d.text, d.digest) for n, d in enumerate(drafts, 1)
    ]
    return next_action(read_turn(records))


@pytest.mark.parametrize(
    ("payloads", "action"),
    [
        ([], Open()),
        ([STARTED], AskModel(0, prepared=False)),
        ([STARTED, header(0)], AskModel(0, prepared=True)),
        ([STARTED, header(0), response(0, 1)], SettleCalls(response(0, 1))),
        ([STARTED, header(0), response(0, 1), REPLY], EndWithReply(REPLY)),
        ([STARTED, REPLY], EndWithReply(REPLY)),
        ([STARTED, REPLY, ENDED], AlreadyEnded(ENDED)),
        ([STARTED, header(0), response(0, 1), ENDED], AlreadyEnded(ENDED)),
        ([STARTED, header(0), ENDED], AlreadyEnded(ENDED)),
    ],
)
@pytest.mark.behaviour("RSM-37")
def test_the_first_that_holds_decides_ended_replied_response_not_started_next_step(
    payloads: list[Payload], action: NextAction
) -> None:
    assert action_after(payloads) == action


@given(st.lists(st.integers(1, 3), max_size=4), st.data())
@pytest.mark.behaviour("RSM-37", "BEY-01")
def test_wherever_a_turn_stops_it_goes_on_and_never_asks_again_for_a_stored_response(
    steps: list[int], data: st.DataObject
) -> None:
    whole = commits(steps)
    cut = data.draw(st.integers(0, len(whole)))
    payloads = [p for commit in whole[:cut] for p in commit]
    action = action_after(payloads)
    answered = {p.step for p in payloads if isinstance(p, StepResponse)}
    whole_steps = {p.step for p in payloads if isinstance(p, MemoryMessage)}
    match action:
        case Open():
            assert cut == 0
        case AskModel(step, prepared):
            assert step not in answered
            assert step == len(whole_steps)
            assert prepared == any(isinstance(p, RequestPrepared) and p.step == step for p in payloads)
        case SettleCalls(found):
            assert found.step in answered - whole_steps
            assert found == response(found.step, steps[found.step])
        case EndWithReply(reply):
            assert (reply, cut) == (REPLY, len(whole) - 1)
        case AlreadyEnded(ended):
            assert (ended, cut) == (ENDED, len(whole))


@given(st.lists(st.integers(1, 3), max_size=4))
def test_whole_steps_their_calls_and_their_usage_are_counted(steps: list[int]) -> None:
    payloads = [p for commit in commits(steps)[:-2] for p in commit]
    at = datetime(2030, 1, 1, tzinfo=UTC)
    drafts = [draft_of(p) for p in payloads]
    log = read_turn(
        Record(SessionId("s"), n, 1, d.kind, at, d.text, d.digest) for n, d in enumerate(drafts, 1)
    )
    assert (log.steps, log.calls, len(log.usages)) == (len(steps), sum(steps), len(steps))


@pytest.mark.parametrize("n", range(6))
@pytest.mark.behaviour("SES-160")
def test_a_row_of_the_turn_that_does_not_decode_fails(n: int) -> None:
    kinds = [
        "turn.started",
        "turn.reply",
        "turn.ended",
        "request.prepared",
        "step.response",
        "memory.message",
    ]
    at = datetime(2030, 1, 1, tzinfo=UTC)
    with pytest.raises(CorruptRecord) as corrupt:
        read_turn([Record(SessionId("ses_1"), 5, 1, kinds[n], at, '{"v":9}', b"")])
    assert corrupt.value.fields == {"session": "ses_1", "seq": 5, "kind": kinds[n]}
