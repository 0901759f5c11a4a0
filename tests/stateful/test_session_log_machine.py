"""The session log keeps its promises whatever comes in whatever order; with one taken out the machine says so."""

from __future__ import annotations

from typing import Final

import pytest

from tests.stateful.log_machine import SessionLogMachine
from tests.stateful.searching import search
from tests.stateful.sides import Side
from tests.support.mutations import Mutation, apply, mutation


@pytest.mark.behaviour("SES-13", "SES-14", "SES-35")
def test_the_twin_keeps_a_log_in_any_order_of_steps(twin: Side) -> None:
    search(SessionLogMachine, twin, examples=100, steps=40)


@pytest.mark.behaviour("SES-13", "SES-14", "SES-35")
def test_postgres_keeps_a_log_in_any_order_of_steps(postgres: Side) -> None:
    search(SessionLogMachine, postgres, examples=30, steps=40)


PLANTED: Final = [
    mutation("a commit looks at no revision", "session_commit_v1", ("p_expect <> v_head.revision", "false")),
    mutation("a commit looks at no clock", "session_commit_v1", ("v_now > p_not_after", "false")),
    mutation(
        "a commit id answers whatever it is used with",
        "session_commit_v1",
        (
            "CASE WHEN v_key.fingerprint = p_print THEN 'committed' ELSE 'key-conflict' END",
            "'committed'::text",
        ),
    ),
    mutation(
        "a commit id is not kept",
        "session_commit_v1",
        ("WHERE session_id = p_session AND space = 'commit'", "WHERE false AND space = 'commit'"),
        ("|| v_seq);", "|| v_seq) ON CONFLICT DO NOTHING;"),
    ),
    mutation(
        "a seq is left out", "log_append_v1", ("SET seq = v_seq + v_count,", "SET seq = v_seq + v_count + 1,")
    ),
    mutation(
        "anyone commits",
        "session_commit_v1",
        ("WHERE id = p_session AND owner = p_owner FOR", "WHERE id = p_session FOR"),
    ),
    mutation(
        "a removal leaves the records",
        "session_remove_v3",
        ("DELETE FROM records WHERE session_id = ANY (v_ids);", ""),
    ),
]


@pytest.mark.mutation
@pytest.mark.parametrize("change", [pytest.param(change, id=change.name) for change in PLANTED])
def test_a_bug_in_the_log_is_found(database_url: str, postgres: Side, change: Mutation) -> None:
    apply(database_url, change)
    with pytest.raises(AssertionError):
        search(SessionLogMachine, postgres, examples=30, steps=40, shrinks=False)
