"""Interleavings of group commits (core 13: 17), each with its mutation proofs."""

from __future__ import annotations

import asyncio

import pytest

from shared.conformance.turn_stage import step
from shared.domain.errors import FenceLost, StoreDefect
from shared.domain.ids import OwnerId
from shared.turns.queue import CallEntry, Ended, Receipt
from tests.faults.crowd import answers, crowd
from tests.faults.world import hold_head, hold_row, outcome, world
from tests.support.mutations import Mutation, Scenario, mutation, prove

BOB = OwnerId("bob")
#: A line of the ledger that the database refuses.
BAD = CallEntry("c", 1, 1, "tool", "d", "t", "bogus")  # type: ignore[arg-type]  # that is what is bad about it

BOTH_WAIT = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    " AND strpos(query, 'turn_') > 0 HAVING count(*) >= %s"
)


async def scenario_two_groups_in_opposite_order(url: str) -> None:
    """(17) Two groups over the same two sessions in opposite order: neither waits for the other's heads."""
    async with world(url) as w, crowd(w) as one, crowd(w) as other:
        a, b = await w.held_turn(), await w.held_turn()
        async with w.transaction() as holder:
            await hold_row(holder, a.turn_id)
            await hold_row(holder, b.turn_id)
            first = await one.together(one.end(a), one.admit(b.session_id))
            await w.until(BOTH_WAIT, 1)
            second = await other.together(other.end(b), other.admit(a.session_id))
            await w.until(BOTH_WAIT, 2)
        told = await answers(*first, *second)
        assert [type(answer) for answer in told] == [Ended, Receipt, Ended, Receipt]
        assert [one.groups_sent(), other.groups_sent()] == [1, 1], "a group was undone"
        for session in (a.session_id, b.session_id):
            assert await w.kinds(session) == ["turn.started", "turn.ended"]
            assert await w.statuses(session) == ["ended", "ready"]


async def scenario_one_bad_member(url: str) -> None:
    """(17) One member is bad: it fails alone, and the others are stored, each once."""
    async with world(url) as w, crowd(w) as one:
        claims = [await w.held_turn() for _ in range(3)]
        good, bad, ending = claims
        told = await answers(
            *await one.together(
                one.append(good, "step"), one.append(bad, "step", calls=[BAD]), one.end(ending)
            )
        )
        assert [type(answer) for answer in told] == [int, StoreDefect, Ended]
        assert [await w.kinds(claim.session_id) for claim in claims] == [
            ["turn.started", "step.started"],
            ["turn.started"],
            ["turn.started", "turn.ended"],
        ]
        assert one.groups_sent() == 0


async def scenario_one_head_held(url: str) -> None:
    """(17) One head is held for seconds: its member waits by itself, and the others are answered meanwhile."""
    async with world(url) as w, crowd(w) as one:
        free, stuck = await w.held_turn(), await w.held_turn()
        async with w.transaction() as holder:
            await hold_head(holder, stuck.session_id)
            quick, late = await one.together(one.append(free, "step"), one.append(stuck, "step"))
            assert not await w.waits(quick, "turn_group_v1"), "the group waits for a head"
            assert await answers(quick) == [2]
            assert await w.waits(late, "turn_append_v2")
            assert await w.kinds(free.session_id) == ["turn.started", "step.started"]
        assert await answers(late) == [2]
        assert await w.kinds(stuck.session_id) == ["turn.started", "step.started"]


async def scenario_group_that_waited(url: str) -> None:
    """A group waits for a row until the lease of another member has passed: that one is judged then, and refused alone."""
    async with world(url) as w, crowd(w) as one:
        waiting, late = sorted([await w.held_turn(), await w.held_turn()], key=lambda c: c.session_id)
        async with w.transaction() as holder:
            await hold_row(holder, waiting.turn_id)
            sent = await one.together(one.end(waiting), one.append(late, "step"))
            assert await w.waits(sent[0], "turn_group_v1")
            await w.expire(late.turn_id)
        told = await answers(*sent)
        assert [type(answer) for answer in told] == [Ended, FenceLost]
        assert await w.kinds(late.session_id) == ["turn.started"]


async def scenario_admission_into_another_owners_session(url: str) -> None:
    """An admission that names another owner's session finds none, and holds nothing of it."""
    async with world(url) as w, crowd(w) as one:
        a, theirs = await w.held_turn(), await w.held_turn(owner=BOB)
        async with w.transaction() as holder:
            await hold_row(holder, a.turn_id)
            sent = await one.together(one.end(a), one.admit(theirs.session_id))
            assert await w.waits(sent[0], "turn_group_v1")
            written = asyncio.create_task(outcome(w.append(theirs, "step")))
            assert not await w.waits(written, "turn_append_v2"), "a stranger's admission holds the head"
        told = await answers(*sent, written)
        assert [getattr(answer, "code", None) for answer in told] == [None, "session.missing", None]
        assert step().kind in await w.kinds(theirs.session_id, BOB)


GROUP = "turn_group_v1"
PROOFS: list[tuple[Scenario, Mutation]] = [
    (
        scenario_two_groups_in_opposite_order,
        mutation(
            "each member locks its own head in its turn",
            GROUP,
            ("FOR NO KEY UPDATE SKIP LOCKED", ""),
        ),
    ),
    (
        scenario_one_bad_member,
        mutation(
            "a group that failed is answered as if it held",
            GROUP,
            ("  END LOOP;", "  END LOOP;\n  EXCEPTION WHEN OTHERS THEN NULL;"),
        ),
    ),
    (
        scenario_one_head_held,
        mutation(
            "a group waits for its heads", GROUP, ("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE")
        ),
    ),
    (
        scenario_one_head_held,
        mutation(
            "a member whose head is held is told that it is done",
            GROUP,
            ("SELECT member, 'skipped'::text, NULL::bigint", "SELECT member, 'appended'::text, 2::bigint"),
        ),
    ),
    (
        scenario_group_that_waited,
        mutation(
            "a group has one clock", "turn_append_v2", ("v_now := clock_timestamp();", "v_now := now();")
        ),
    ),
    (
        scenario_admission_into_another_owners_session,
        mutation(
            "a group locks what it is told",
            GROUP,
            ("AND s.owner = coalesce(p_owners[array_position(p_sessions, s.id)], s.owner)", ""),
        ),
    ),
]


async def test_two_groups_in_opposite_order_never_wait_for_each_other(database_url: str) -> None:
    await scenario_two_groups_in_opposite_order(database_url)


async def test_one_bad_member_of_a_group_fails_alone(database_url: str) -> None:
    await scenario_one_bad_member(database_url)


async def test_a_head_that_is_held_for_seconds_holds_up_its_own_member_only(database_url: str) -> None:
    await scenario_one_head_held(database_url)


async def test_a_member_is_judged_by_the_clock_as_its_turn_comes(database_url: str) -> None:
    await scenario_group_that_waited(database_url)


async def test_a_group_holds_nothing_of_another_owners_session(database_url: str) -> None:
    await scenario_admission_into_another_owners_session(database_url)


@pytest.mark.mutation
@pytest.mark.parametrize(("scenario", "change"), [pytest.param(s, m, id=m.name) for s, m in PROOFS])
async def test_scenario_fails_without_its_rule(
    database_url: str, scenario: Scenario, change: Mutation
) -> None:
    await prove(database_url, scenario, change)
