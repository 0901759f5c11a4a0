"""Where a task stands, by its turn's row and the records that may end it."""

from __future__ import annotations

from typing import Any

import pytest

from shared.tasks.port import TaskResult
from shared.tasks.states import TaskRecord, TaskTurn, state_of

RESULT = TaskRecord("task.result", {"v": 1, "task": "t", "outcome": "completed", "text": "done"})
CANCELLED = TaskRecord("task.cancelled", {"v": 1, "task": "t"})
REPLY = TaskRecord("turn.reply", {"v": 1, "outcome": "partial", "text": "half", "reason": "tokens"})


def turn(status: str, *, opened: bool = False, outcome: str | None = None, **rest: Any) -> TaskTurn:
    return TaskTurn(status, opened, outcome, **rest)  # type: ignore[arg-type] # a wrong one, or one of a table, is the point


@pytest.mark.parametrize(
    ("row", "status"),
    [
        (turn("ready"), "pending"),
        (turn("queued"), "pending"),
        (turn("running"), "running"),
        (turn("ready", opened=True), "running"),
        (turn("waiting", opened=True), "running"),
    ],
    ids=["ready", "queued", "running", "released-open", "waiting"],
)
def test_an_unfinished_task_is_pending_until_someone_runs_it(row: TaskTurn, status: str) -> None:
    assert state_of(row) == TaskResult(status)  # type: ignore[arg-type] # a wrong one, or one of a table, is the point


@pytest.mark.behaviour("TSK-23")
def test_the_first_of_result_and_cancel_ends_the_task() -> None:
    row = turn("ended", opened=True, outcome="completed")
    assert state_of(row, [RESULT, CANCELLED]) == TaskResult("completed", "done")
    assert state_of(row, [CANCELLED, RESULT]) == TaskResult("cancelled")


@pytest.mark.behaviour("TSK-23")
def test_a_stored_result_ends_the_task_before_its_turn_is_closed() -> None:
    assert state_of(turn("running", opened=True), [RESULT]).status == "completed"


@pytest.mark.behaviour("TSK-22")
def test_what_nobody_stored_reads_as_lost() -> None:
    lost = TaskResult("interrupted", code="task.lost")
    assert state_of(turn("ended", opened=True, outcome="interrupted", code="turn.lease")) == lost
    assert state_of(turn("ended", opened=True, outcome="completed")) == lost
    assert state_of(None) == lost


def test_a_reply_of_a_turn_that_was_reaped_is_its_result() -> None:
    row = turn("ended", opened=True, outcome="partial")
    assert state_of(row, [REPLY]) == TaskResult("partial", "half", "tokens")
    assert state_of(turn("running", opened=True), [REPLY]) == TaskResult("running")


@pytest.mark.behaviour("TSK-24")
def test_a_child_that_the_host_did_not_admit_failed_with_the_hosts_reason() -> None:
    row = turn("refused", code="quota.spent", failure="no more today")
    assert state_of(row) == TaskResult("failed", None, "quota.spent", "no more today")


@pytest.mark.behaviour("TSK-25", "TSK-27")
@pytest.mark.parametrize(
    ("row", "code"),
    [
        (turn("expired", code="turn.deadline"), "task.deadline"),
        (turn("ended", opened=True, outcome="interrupted", code="task.deadline"), "task.deadline"),
        (turn("ended", opened=True, outcome="interrupted", code="task.turn"), "task.turn"),
    ],
    ids=["never-opened", "open", "its-closer"],
)
def test_a_turn_past_its_deadline_or_cut_by_its_closer_ends_interrupted(row: TaskTurn, code: str) -> None:
    assert state_of(row) == TaskResult("interrupted", code=code)


def test_a_turn_that_was_cancelled_by_itself_and_one_that_failed_say_so() -> None:
    assert state_of(turn("cancelled", code="turn.superseded")) == TaskResult(
        "cancelled", code="turn.superseded"
    )
    assert state_of(turn("ended", opened=True, outcome="cancelled")) == TaskResult("cancelled")
    failed = turn("ended", opened=True, outcome="failed", code="turn.timeout", failure="too long")
    assert state_of(failed) == TaskResult("failed", None, "turn.timeout", "too long")
