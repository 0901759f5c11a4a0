"""Interleavings of ends, cancels, deadlines and stored replies (core 13: 3, 6, 19), each with its mutation proofs."""

from __future__ import annotations

import asyncio

import pytest

from shared.conformance.turn_stage import fences
from shared.domain.errors import TurnClosed
from shared.domain.ids import WorkerId
from shared.turns.queue import Cancelled, Ended
from tests.faults.world import OWNER, outcome, run_as, world
from tests.support.mutations import Mutation, Scenario, mutation, prove


async def scenario_end_repeated_after_the_next_turn_opened(url: str) -> None:
    """(6) The end commits, its answer is lost, and it is repeated after the next turn opened."""
    async with world(url) as w:
        first = await w.held_turn("w1")
        await w.admit(first.session_id)
        answered = await w.end(first)
        second = await w.claim("w2")
        assert second.turn_id == answered.promoted
        await w.open(second)
        repeated = await outcome(w.end(first))
        assert isinstance(repeated, Ended)
        assert repeated.seq == answered.seq
        assert await w.kinds(first.session_id) == ["turn.started", "turn.ended", "turn.started"]
        head = await w.head(first.session_id)
        assert head.open is not None
        assert head.open.turn_id == second.turn_id


async def scenario_cancel_of_a_released_turn(url: str) -> None:
    """(3) A released turn is open in the log though its row only waits: cancel ends it there."""
    async with world(url) as w:
        claim = await w.held_turn()
        await w.queue.release(claim.turn_id, claim.fence)
        cancelled = await outcome(w.queue.cancel(claim.turn_id, OWNER))
        assert isinstance(cancelled, Cancelled)
        assert (cancelled.took_effect, cancelled.status, cancelled.outcome) == (True, "ended", "cancelled")
        assert await w.kinds(claim.session_id) == ["turn.started", "turn.ended"]
        assert (await w.head(claim.session_id)).open is None


async def scenario_deadline_of_a_released_turn(url: str) -> None:
    """(3) A deadline ends only what never opened; an open turn's time counts from its first open, over all attempts."""
    async with world(url) as w:
        claim = await w.held_turn()
        await w.queue.release(claim.turn_id, claim.fence)
        await w.rows(
            "UPDATE turns SET deadline = clock_timestamp() - interval '1 s',"
            " opened_at = clock_timestamp() - interval '100 s', max_duration_s = 60 WHERE id = %s",
            claim.turn_id,
        )
        await w.queue.expire()
        # The sweep finds without a lock: a row that opened since it was found must be left alone too.
        await w.rows("SELECT * FROM turn_expire_v1(%s)", claim.turn_id)
        assert await w.statuses(claim.session_id) == ["ready"]
        again = await w.claim("w2")
        assert again.open_for_s is not None
        assert again.open_for_s >= 100
        assert (await w.open(again)).result == "took-over"


async def scenario_cancel_beats_an_open_that_waits(url: str) -> None:
    """A cancel of a claimed row commits while its open waits: the turn never opens."""
    async with world(url) as w:
        session = await w.session()
        await w.admit(session)
        claim = await w.claim()
        async with w.transaction() as canceller:
            cancel = {"p_id": claim.turn_id, "p_owner": OWNER, "p_attempts_max": 3}
            assert (await run_as(canceller, cancel, "turn_cancel_v1"))["result"] == "cancelled"
            opening = asyncio.create_task(outcome(w.open(claim)))
            await w.waits(opening, "turn_open_v3")
        refused = await opening
        assert isinstance(refused, TurnClosed)
        assert refused.fields["reason"] == "cancelled"
        assert await w.kinds(session) == []


async def scenario_nothing_runs_after_a_cancel(url: str) -> None:
    """After the cancel commits, its holder, which works on, stores nothing and hears of it."""
    async with world(url) as w:
        claim = await w.held_turn("w1")
        await w.append(claim, "one")
        cancelled = await w.queue.cancel(claim.turn_id, OWNER)
        assert (cancelled.took_effect, cancelled.holder) == (True, "w1")
        refused = await outcome(w.append(claim, "two"))
        assert isinstance(refused, TurnClosed)
        assert refused.fields["reason"] == "cancelled"
        watched = await w.queue.watch(WorkerId("w1"), fences(claim))
        assert watched.lost == {claim.turn_id: "cancelled"}
        assert await w.kinds(claim.session_id) == ["turn.started", "step.started", "turn.ended"]


async def scenario_stored_reply_wins(url: str) -> None:
    """(19) Whoever closes a turn whose reply is stored ends it by that reply; an earlier turn's reply is not its own."""
    async with world(url) as w:
        first = await w.held_turn(on_worker_loss="interrupt")
        await w.reply(first)
        await w.expire(first.turn_id)
        [reaped] = await w.queue.reap()
        assert (reaped.status, reaped.outcome, reaped.code) == ("ended", "completed", None)
        await w.admit(first.session_id)
        second = await w.claim()
        await w.open(second)
        without = await w.queue.cancel(second.turn_id, OWNER)
        assert (without.reason, without.outcome) == ("cancelled", "cancelled")
        third = await w.held_turn()
        await w.reply(third)
        replied = await w.queue.cancel(third.turn_id, OWNER)
        assert (replied.took_effect, replied.outcome) == (False, "completed")


FENCE = "AND turn_fence_holds_v1(v_turn, p_epoch, p_token, v_now)"
HEAD_FENCE = "v_head.open_turn = p_id AND v_head.open_epoch = p_epoch AND v_head.open_token = p_token"

PROOFS: list[tuple[Scenario, Mutation]] = [
    (
        scenario_end_repeated_after_the_next_turn_opened,
        mutation("the end is not found again", "turn_end_v3", ("v_turn.end_commit = p_commit", "false")),
    ),
    (
        scenario_end_repeated_after_the_next_turn_opened,
        mutation("a repeat answers the head", "turn_end_v3", ("max(r.seq)", "max(v_head.seq)")),
    ),
    (
        scenario_cancel_of_a_released_turn,
        mutation(
            "cancel looks at the status",
            "turn_cancel_v1",
            ("ELSIF v_head.open_turn = p_id THEN", "ELSIF v_turn.status = 'running' THEN"),
        ),
    ),
    (
        scenario_deadline_of_a_released_turn,
        mutation(
            "expiry looks at the status",
            "turn_expire_v1",
            ("OR v_turn.number IS NOT NULL OR v_head.open_turn IS NOT DISTINCT FROM p_id", ""),
            ("SET status = 'expired',", "SET status = 'expired', number = NULL,"),
        ),
    ),
    (
        scenario_deadline_of_a_released_turn,
        mutation(
            "time counts from the claim",
            "turn_claim_v4",
            ("extract(epoch FROM clock_timestamp() - t.opened_at)", "extract(epoch FROM interval '0')"),
        ),
    ),
    (
        scenario_cancel_beats_an_open_that_waits,
        mutation(
            "open trusts its claim",
            "turn_open_v3",
            ("turn_fence_holds_v1(v_turn, p_epoch, p_token, v_now)", "true"),
        ),
    ),
    (
        scenario_nothing_runs_after_a_cancel,
        mutation(
            "append trusts its holder",
            "turn_append_v2",
            (HEAD_FENCE, "true"),
            (FENCE, ""),
        ),
    ),
    (
        scenario_stored_reply_wins,
        mutation(
            "reap passes over a reply",
            "turn_reap_locked_v1",
            ("IF v_reply IS NOT NULL THEN", "IF false THEN"),
        ),
    ),
    (
        scenario_stored_reply_wins,
        mutation(
            "cancel passes over a reply", "turn_cancel_v1", ("IF v_reply IS NOT NULL THEN", "IF false THEN")
        ),
    ),
    (
        scenario_stored_reply_wins,
        mutation(
            "any turn's reply counts",
            "turn_reply_outcome_v1",
            ("AND seq >= p_turn.started_seq AND turn = p_turn.number", ""),
        ),
    ),
]


async def test_end_repeated_after_the_next_turn_opened_answers_its_first_result(database_url: str) -> None:
    await scenario_end_repeated_after_the_next_turn_opened(database_url)


@pytest.mark.behaviour("SES-126")
async def test_cancel_of_a_released_turn_ends_it_in_the_log(database_url: str) -> None:
    await scenario_cancel_of_a_released_turn(database_url)


async def test_deadline_leaves_a_released_turn_open(database_url: str) -> None:
    await scenario_deadline_of_a_released_turn(database_url)


async def test_cancelled_row_never_opens_though_its_open_was_under_way(database_url: str) -> None:
    await scenario_cancel_beats_an_open_that_waits(database_url)


@pytest.mark.behaviour("SES-125", "SES-126")
async def test_nothing_of_a_turn_is_stored_after_its_cancel(database_url: str) -> None:
    await scenario_nothing_runs_after_a_cancel(database_url)


async def test_stored_reply_decides_how_its_turn_ends(database_url: str) -> None:
    await scenario_stored_reply_wins(database_url)


@pytest.mark.mutation
@pytest.mark.parametrize(("scenario", "change"), [pytest.param(s, m, id=m.name) for s, m in PROOFS])
async def test_scenario_fails_without_its_rule(
    database_url: str, scenario: Scenario, change: Mutation
) -> None:
    await prove(database_url, scenario, change)
