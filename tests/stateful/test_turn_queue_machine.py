"""The turn queue keeps its promises whatever comes in whatever order: on the twin, on Postgres, and both alike."""

from __future__ import annotations

import pytest

from tests.stateful.queue_machine import TurnQueueMachine
from tests.stateful.resuming_machine import ResumingMachine
from tests.stateful.searching import search
from tests.stateful.sides import Side


@pytest.mark.behaviour("DST-09", "SES-40", "SES-101")
def test_the_twin_keeps_its_promises_in_any_order_of_steps(twin: Side) -> None:
    search(TurnQueueMachine, twin, examples=120, steps=50)


@pytest.mark.behaviour("DST-09", "SES-40", "SES-101")
def test_postgres_keeps_its_promises_and_answers_as_the_twin_does(twin: Side, postgres: Side) -> None:
    search(TurnQueueMachine, twin, postgres, examples=60, steps=50)


@pytest.mark.behaviour("DST-09", "SES-40", "SES-101")
def test_postgres_and_the_twin_answer_alike_where_turns_come_far_and_are_resumed(
    twin: Side, postgres: Side
) -> None:
    search(ResumingMachine, twin, postgres, examples=40, steps=50)


@pytest.mark.behaviour("DST-09", "SES-40", "SES-101")
def test_groups_keep_the_promises_of_their_members_and_answer_as_the_twin_does(
    twin: Side, grouped: Side
) -> None:
    search(TurnQueueMachine, twin, grouped, examples=40, steps=50)
