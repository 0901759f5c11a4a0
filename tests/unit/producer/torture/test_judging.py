"""The judgement sees what is wrong: each test plants one wrong thing beside things that are right."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from producer.dev.torture.judging.effects import Effect, judge_effects, read_journal
from producer.dev.torture.judging.judgement import Judgement
from producer.dev.torture.judging.turns import judge_records, judge_turns
from producer.dev.torture.load.notes import Notes, Order
from shared.domain.ids import SessionId
from shared.sessions.records import Record, draft

WHOLE = ("turn.started", "step.started", "turn.reply", "turn.ended")


def row(
    status: str = "ended", outcome: str | None = "completed", key: str = "order-1", **more: Any
) -> dict[str, Any]:
    return {"session_id": "s", "key": key, "status": status, "outcome": outcome} | more


def noted(*turns: str, name: str = "order-1", effects: int = 1) -> Notes:
    return Notes({name: Order(name, "s", "pay", effects, set(turns))})


def judged(notes: Notes, rows: dict[str, dict[str, Any]]) -> Judgement:
    found = Judgement()
    judge_turns(found, notes, rows)
    return found


def judged_effects(*effects: Effect, allowed: int = 1) -> Judgement:
    found = Judgement()
    judge_effects(found, noted("t", effects=allowed).orders, effects)
    return found


def judged_log(*kinds: str, outcome: str | None = "completed", reason: str = "completed") -> Judgement:
    found = Judgement()
    records = [stored(n, kind, reason) for n, kind in enumerate(kinds, start=1)]
    judge_records(found, "s", records, {1: row(outcome=outcome)})
    return found


def stored(seq: int, kind: str, reason: str) -> Record:
    made = draft(kind, {"v": 1, "reason": reason} if kind == "turn.ended" else {"v": 1})
    return Record(SessionId("s"), seq, 1, kind, datetime.now(UTC), made.text, made.digest)


def pay(token: str, tool: str = "pay") -> Effect:
    return Effect(tool, "order-1", token, "t")


def test_a_finished_turn_is_counted_by_its_outcome() -> None:
    found = judged(noted("t"), {"t": row()})
    assert (found.admitted, found.lost, found.outcomes["completed"]) == (1, [], 1)


def test_an_acknowledged_turn_that_is_not_stored_is_lost() -> None:
    assert len(judged(noted("t"), {}).lost) == 1


@pytest.mark.parametrize("status", ["queued", "ready", "running", "waiting"])
def test_an_acknowledged_turn_that_did_not_finish_is_lost(status: str) -> None:
    assert len(judged(noted("t"), {"t": row(status, None)}).lost) == 1


@pytest.mark.parametrize("status", ["cancelled", "refused", "expired"])
def test_a_turn_that_finished_unopened_is_not_lost(status: str) -> None:
    found = judged(noted("t"), {"t": row(status, None)})
    assert (found.lost, found.outcomes[status]) == ([], 1)


def test_one_key_with_two_turns_is_doubled_whoever_was_told() -> None:
    assert len(judged(noted("t"), {"t": row(), "u": row()}).doubled_turns) == 1
    assert len(judged(noted("t", "u"), {"t": row(), "u": row(key="other")}).doubled_turns) == 1


def test_an_effect_within_its_orders_calls_is_right() -> None:
    assert judged_effects(pay("run:call:0"), pay("run:call:1"), allowed=2).doubled_effects == []


def test_an_effect_twice_under_one_token_is_doubled_unless_the_outside_keeps_tokens() -> None:
    assert len(judged_effects(pay("run:call:0"), pay("run:call:0")).doubled_effects) == 1
    assert judged_effects(pay("run:call:0", "book"), pay("run:call:0", "book")).doubled_effects == []


@pytest.mark.parametrize("tool", ["pay", "book"])
def test_an_effect_twice_under_different_tokens_is_doubled_whatever_the_tool(tool: str) -> None:
    assert len(judged_effects(pay("run:call:0", tool), pay("other:call:0", tool)).doubled_effects) == 1


def test_an_effect_that_nobody_ordered_is_doubled() -> None:
    found = Judgement()
    judge_effects(found, {}, [pay("run:call:0")])
    assert len(found.doubled_effects) == 1


def test_a_whole_log_has_nothing_wrong() -> None:
    found = judged_log(*WHOLE)
    assert (found.doubled_replies, found.log_errors) == ([], [])


def test_a_second_reply_is_doubled() -> None:
    assert len(judged_log("turn.started", "turn.reply", "turn.reply", "turn.ended").doubled_replies) == 1


@pytest.mark.parametrize(
    "kinds",
    [
        ("turn.started", "turn.reply"),
        ("turn.started", "turn.reply", "turn.ended", "turn.ended"),
        (*WHOLE, "step.started"),
        ("turn.started", "turn.ended"),
    ],
)
def test_a_log_that_does_not_close_once_and_last_with_its_reply_is_an_error(kinds: tuple[str, ...]) -> None:
    assert judged_log(*kinds).log_errors


def test_a_log_that_ended_otherwise_than_its_row_is_an_error() -> None:
    assert judged_log(*WHOLE, reason="cancelled").log_errors


def test_a_cancelled_turn_needs_no_reply() -> None:
    found = judged_log("turn.started", "turn.ended", outcome="cancelled", reason="cancelled")
    assert found.log_errors == []


def test_the_journal_of_a_run_without_effects_is_empty(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none") == []
