"""The judgement sees what is wrong with inbox items and tasks: each test plants one wrong thing beside things that are right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from producer.dev.torture.judging.judgement import Judgement
from producer.dev.torture.judging.results import judge_items, judge_tasks, read_items
from producer.dev.torture.load.notes import Item, Notes
from producer.dev.torture.load.tasks import StartedTask
from shared.domain.ids import SessionId
from shared.sessions.records import Record, draft

Told = tuple[str, int | None, Mapping[str, Any]]


def queued(item: str = "a") -> Told:
    return ("inbox.queued", None, {"id": item})


def dropped(item: str = "a") -> Told:
    return ("inbox.dropped", None, {"id": item})


def turn(number: int, reason: str, *claimed: str) -> tuple[Told, Told]:
    return (("turn.started", number, {"claimed": list(claimed)}), ("turn.ended", number, {"reason": reason}))


def log_of(*told: Told) -> list[Record]:
    made = [
        (n, number, draft(kind, {"v": 1, **data})) for n, (kind, number, data) in enumerate(told, start=1)
    ]
    now = datetime.now(UTC)
    return [Record(SessionId("s"), n, number, d.kind, now, d.text, d.digest) for n, number, d in made]


def judged(*told: Told, items: Iterable[Item] = ()) -> Judgement:
    found = Judgement()
    judge_items(
        found, Notes(items={item.name: item for item in items}), {"s": read_items("s", log_of(*told))}
    )
    return found


def judged_task(task: StartedTask, *told: Told, rows: Iterable[Mapping[str, Any]] = ()) -> Judgement:
    found = Judgement()
    judge_tasks(found, Notes(tasks={task.name: task}), {"s": read_items("s", log_of(*told))}, rows)
    return found


def child(status: str = "ended") -> dict[str, Any]:
    return {"session_id": "t", "origin": "task", "status": status}


def started(cancel: str = "") -> StartedTask:
    return StartedTask("t", "s", {"t"}, cancel=cancel)  # type: ignore[arg-type]  # one of the literals


@pytest.mark.parametrize("reason", ["completed", "partial", "cancelled"])
def test_an_item_whose_turn_settles_it_is_answered_once(reason: str) -> None:
    found = judged(queued(), *turn(1, reason, "a"), items=[Item("a", "s", is_acknowledged=True)])
    assert (found.lost, found.doubled_items, found.log_errors) == ([], [], [])
    assert (found.delivered, found.answered, found.dropped) == (1, 1, 0)


@pytest.mark.parametrize("reason", ["failed", "interrupted"])
def test_an_item_that_was_given_back_and_answered_then_is_right(reason: str) -> None:
    found = judged(queued(), *turn(1, reason, "a"), *turn(2, "completed", "a"))
    assert (found.lost, found.doubled_items, found.log_errors) == ([], [], [])


def test_an_item_that_was_given_back_and_dropped_is_right() -> None:
    found = judged(queued(), *turn(1, "failed", "a"), dropped())
    assert (found.lost, found.doubled_items, found.dropped) == ([], [], 1)


def test_an_item_that_nobody_answered_is_lost() -> None:
    assert len(judged(queued()).lost) == 1
    assert len(judged(queued(), *turn(1, "interrupted", "a")).lost) == 1


def test_an_acknowledged_item_that_is_not_stored_is_lost() -> None:
    assert len(judged(items=[Item("a", "s", is_acknowledged=True)]).lost) == 1
    assert judged(items=[Item("a", "s")]).lost == []


def test_an_item_queued_or_answered_twice_is_doubled() -> None:
    assert len(judged(queued(), queued(), *turn(1, "completed", "a")).doubled_items) == 1
    twice = judged(queued(), *turn(1, "completed", "a"), *turn(2, "completed", "a"))
    assert len(twice.doubled_items) == 1
    assert len(judged(queued(), *turn(1, "completed", "a"), dropped()).doubled_items) == 1


def test_a_claim_of_an_item_that_does_not_wait_is_an_error() -> None:
    assert len(judged(*turn(1, "completed", "a")).log_errors) == 1
    assert len(judged(queued(), *turn(1, "completed", "a"), *turn(2, "failed", "a")).log_errors) == 1


def test_a_task_with_one_finished_turn_and_one_notice_is_right() -> None:
    found = judged_task(started(), queued("task:t"), rows=[child()])
    assert (found.lost, found.doubled_tasks, found.tasks) == ([], [], 1)


@pytest.mark.parametrize("rows", [[], [child("ready")]], ids=["no-turn", "unfinished"])
def test_an_acknowledged_task_without_a_finished_turn_is_lost(rows: list[dict[str, Any]]) -> None:
    assert len(judged_task(started(), queued("task:t"), rows=rows).lost) == 1


def test_a_task_that_its_parent_never_heard_of_is_lost_unless_it_was_cancelled() -> None:
    assert len(judged_task(started(), rows=[child()]).lost) == 1
    assert len(judged_task(started("too-late"), rows=[child()]).lost) == 1
    assert judged_task(started("asked"), rows=[child()]).lost == []
    assert judged_task(started("cancelled"), rows=[child()]).lost == []


def test_a_task_with_two_turns_or_told_of_after_its_cancel_is_doubled() -> None:
    assert len(judged_task(started(), queued("task:t"), rows=[child(), child()]).doubled_tasks) == 1
    assert len(judged_task(started("cancelled"), queued("task:t"), rows=[child()]).doubled_tasks) == 1


def test_a_key_that_was_answered_with_two_tasks_is_doubled() -> None:
    task = StartedTask("key", "s", {"t", "u"})
    other = child() | {"session_id": "u"}
    told = (queued("task:t"), queued("task:u"))
    assert len(judged_task(task, *told, rows=[child(), other]).doubled_tasks) == 1


def test_a_task_that_nobody_acknowledged_may_be_absent() -> None:
    assert judged_task(StartedTask("t", "s")).lost == []
