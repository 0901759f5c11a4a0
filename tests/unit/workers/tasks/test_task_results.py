"""What a task's turn leaves: its result before the end, the attempt that finds it, and the time that it may take."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from shared.agents import Policy
from shared.domain.errors import TaskLate, TurnTimeout
from shared.domain.ids import OwnerId, RunId, SessionId, new_turn_id
from shared.leases.fence import Fence
from shared.sessions.records import Record
from shared.sessions.vocabulary import Payload, TurnEnded, TurnReply, TurnStarted, UserMessage, draft_of
from shared.sessions.vocabulary_around import BackgroundTaskResult
from shared.turns.queue import Claim, Ending
from workers.tasks.results import time_to_execute, with_result
from workers.turns.next_action import AlreadyEnded, EndWithResult, next_action, read_turn
from workers.turns.progress import Closing

POLICY = Policy()
CHILD = SessionId("ses_child")
STARTED = TurnStarted(
    turn_id="t", run_id="r", entry="r:0", origin="task", user_message=UserMessage(text="work")
)
REPLY = TurnReply(outcome="completed", text="42", step=0)
RESULT = BackgroundTaskResult(task=CHILD, outcome="partial", text="half")
ENDED = TurnEnded(reason="completed")


def claim(**given: Any) -> Claim:
    standard = Claim(
        turn_id=new_turn_id(),
        session_id=CHILD,
        owner=OwnerId("o"),
        fence=Fence(1, uuid4()),
        number=None,
        origin="task",
        run_id=RunId("r"),
        key=None,
        message=None,
        command=None,
        meta=None,
        agent="",
        agent_revision="1",
        on_worker_loss="continue",
        priority=2,
        attempts=0,
        suspect=False,
        lost=False,
        max_duration_s=None,
        open_for_s=None,
    )
    return replace(standard, **given)


def stored(*payloads: Payload) -> list[Record]:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    drafts = [draft_of(p) for p in payloads]
    return [Record(CHILD, n, 1, d.kind, at, d.text, b"") for n, d in enumerate(drafts, 1)]


@pytest.mark.behaviour("TSK-18")
def test_the_result_stands_before_the_end_in_the_closing_commit() -> None:
    closing = with_result(Closing((REPLY, ENDED), Ending("completed")), claim())
    assert closing.payloads == (
        REPLY,
        BackgroundTaskResult(task=CHILD, outcome="completed", text="42"),
        ENDED,
    )


@pytest.mark.behaviour("TSK-18")
def test_an_attempt_that_ends_by_a_stored_reply_tells_that_reply_as_the_result() -> None:
    closing = with_result(Closing((ENDED,), Ending("completed")), claim(), reply=REPLY)
    assert closing.payloads[0] == BackgroundTaskResult(task=CHILD, outcome="completed", text="42")


def test_a_failed_task_tells_why() -> None:
    ended = TurnEnded(reason="failed", code="model.refused", failure="no")
    closing = with_result(
        Closing((TurnReply(outcome="failed"), ended), Ending("failed", "model.refused", "no")), claim()
    )
    assert closing.payloads[1] == BackgroundTaskResult(
        task=CHILD, outcome="failed", code="model.refused", failure="no"
    )


def test_a_stored_result_is_not_told_twice_and_other_turns_tell_none() -> None:
    with_one = Closing((RESULT, ENDED), Ending("partial"))
    assert with_result(with_one, claim()) is with_one
    of_a_user = Closing((REPLY, ENDED), Ending("completed"))
    assert with_result(of_a_user, claim(origin="user")) is of_a_user


@pytest.mark.behaviour("TSK-18")
def test_an_attempt_that_finds_the_result_ends_the_turn_and_runs_nothing() -> None:
    assert next_action(read_turn(stored(STARTED, RESULT))) == EndWithResult(RESULT)
    assert next_action(read_turn(stored(STARTED, REPLY, RESULT))) == EndWithResult(RESULT)
    assert next_action(read_turn(stored(STARTED, RESULT, ENDED))) == AlreadyEnded(ENDED)


@pytest.mark.behaviour("TSK-29", "TSK-38")
@pytest.mark.parametrize(
    ("deadline_in_s", "left_s"),
    [(10.0, 8.0), (3.0, 1.5), (-1.0, 0.0)],
    ids=["the reserve", "half of a short budget", "past it"],
)
def test_a_task_stops_executing_before_its_deadline(deadline_in_s: float, left_s: float) -> None:
    limit_s, error = time_to_execute(claim(deadline_in_s=deadline_in_s), POLICY)
    assert (limit_s, type(error)) == (left_s, TaskLate)


@pytest.mark.behaviour("TSK-29")
def test_the_time_since_the_claim_is_gone() -> None:
    assert time_to_execute(claim(deadline_in_s=10.0), POLICY, held_for_s=3.0)[0] == 5.0


def test_the_earlier_of_a_turns_bounds_decides_how_it_ends() -> None:
    limit_s, error = time_to_execute(claim(deadline_in_s=10.0, max_duration_s=5.0, open_for_s=1.0), POLICY)
    assert (limit_s, type(error)) == (4.0, TurnTimeout)
    limit_s, error = time_to_execute(claim(deadline_in_s=10.0, max_duration_s=9.0), POLICY)
    assert (limit_s, type(error)) == (8.0, TaskLate)
    assert time_to_execute(claim(), POLICY)[0] == 600.0
    assert time_to_execute(claim(origin="user", deadline_in_s=1.0), POLICY)[0] == 600.0
