"""Items, tasks and debts are neither lost nor doubled whatever comes in whatever order: on the twin, and on Postgres as there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from tests.stateful.inbox_machine import InboxMachine
from tests.stateful.searching import search
from tests.stateful.sides import Side
from tests.support.mutations import Mutation, apply, mutation

PLANTED: Final[Sequence[Mutation]] = [
    mutation(
        "an end leaves items without a turn", "turn_promote_v1", ("PERFORM inbox_follow_v1(p_session);", "")
    ),
    mutation(
        "a claim counts on what it took",
        "inbox_claim_v2",
        ("UPDATE sessions SET inbox_waiting = inbox_waiting - v_claimed WHERE id = p_session;", ""),
    ),
    mutation(
        "a failed turn's items are done",
        "inbox_settle_v1",
        ("IN ('completed', 'partial', 'cancelled')", "IN ('completed', 'partial', 'cancelled', 'failed')"),
    ),
    mutation(
        "a result that was told stays owed",
        "task_deliver_v1",
        (
            "DELETE FROM deliveries WHERE child = p_child AND parent = p_parent AND md5(body) = p_version"
            " RETURNING body::jsonb INTO v_debt;",
            "SELECT body::jsonb INTO v_debt FROM deliveries WHERE child = p_child AND parent = p_parent AND md5(body) = p_version;",
        ),
    ),
]


@pytest.mark.behaviour("INB-02", "INB-30", "TSK-19")
def test_the_twin_neither_loses_nor_doubles_in_any_order_of_steps(twin: Side) -> None:
    search(InboxMachine, twin, examples=100, steps=50)


@pytest.mark.behaviour("INB-02", "INB-30", "TSK-19")
def test_postgres_neither_loses_nor_doubles_and_answers_as_the_twin_does(twin: Side, postgres: Side) -> None:
    search(InboxMachine, twin, postgres, examples=20, steps=40)


@pytest.mark.mutation
@pytest.mark.parametrize("change", [pytest.param(change, id=change.name) for change in PLANTED])
def test_a_bug_in_the_database_is_found(database_url: str, postgres: Side, change: Mutation) -> None:
    apply(database_url, change)
    with pytest.raises(AssertionError):
        search(InboxMachine, postgres, examples=30, steps=40, shrinks=False)
