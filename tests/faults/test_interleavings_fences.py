"""Interleavings of holders and takeovers (core 13: 1, 9, 10), each with its mutation proofs."""

from __future__ import annotations

import asyncio

import pytest

from shared.conformance.turn_stage import fences, step
from shared.domain.errors import FenceLost
from tests.faults.world import fenced, hold_head, hold_row, outcome, run_as, world
from tests.support.mutations import Mutation, Scenario, mutation, prove


async def scenario_expired_holder_writes_nothing(url: str) -> None:
    """(1) W1's lease passes, W2 claims and has not taken over: W1's append and end are refused."""
    async with world(url) as w:
        first = await w.held_turn("w1")
        await w.expire(first.turn_id)
        second = await w.claim("w2")
        assert second.fence.epoch == first.fence.epoch + 1
        before = await w.kinds(first.session_id)
        for late in (await outcome(w.append(first, "late")), await outcome(w.end(first))):
            assert type(late) is FenceLost
        assert await w.kinds(first.session_id) == before
        assert (await w.open(second)).result == "took-over"


async def scenario_fenced_holder_is_refused_within_its_lease(url: str) -> None:
    """Two workers resume one session: the one that was taken over from is refused, and nothing is interleaved."""
    async with world(url) as w:
        first = await w.held_turn("w1")
        await w.append(first, "one")
        await w.expire(first.turn_id)
        second = await w.claim("w2")
        await w.open(second)
        stale = await outcome(w.append(first, "two"))
        assert type(stale) is FenceLost
        await w.append(second, "two")
        await w.end(second)
        assert await w.kinds(first.session_id) == [
            "turn.started",
            "step.started",
            "step.started",
            "turn.ended",
        ]


async def scenario_takeover_waits_for_a_commit_judged_in_time(url: str) -> None:
    """A commit that was judged before the lease passed is durable before the next holder reads the log."""
    async with world(url) as w:
        first = await w.held_turn("w1")
        async with w.transaction() as holder:
            draft = step()
            write = fenced(first, "in time") | {
                "p_stepped": False,
                "p_kinds": [draft.kind],
                "p_texts": [draft.text],
                "p_digests": [draft.digest],
                "p_calls": None,
            }
            assert (await run_as(holder, write, "turn_append_v2"))["result"] == "appended"
            await w.expire(first.turn_id)
            second = await w.claim("w2")
            takeover = asyncio.create_task(w.open(second))
            await w.waits(takeover, "turn_open_v3")
        opened = await takeover
        assert (opened.result, opened.seq) == ("took-over", (await w.head(first.session_id)).seq)
        assert await w.kinds(first.session_id) == ["turn.started", "step.started"]


async def scenario_lease_that_passes_while_a_commit_waits(url: str) -> None:
    """(9) A commit that waited past its lease behind a lock that changed nothing is refused."""
    async with world(url) as w:
        claim = await w.held_turn(lease_s=0.4)
        async with w.transaction() as blocker:
            await hold_head(blocker, claim.session_id)
            late = asyncio.create_task(outcome(w.append(claim, "late")))
            await w.waits(late, "turn_append_v2")
            await w.until(
                "SELECT 1 FROM turns WHERE id = %s AND expires_at < clock_timestamp()", claim.turn_id
            )
        assert type(await late) is FenceLost
        assert await w.kinds(claim.session_id) == ["turn.started"]


async def scenario_commit_judges_the_clock_once(url: str) -> None:
    """(10) A commit judged in time is stored whole, also when its lease passes between its own statements."""
    async with world(url) as w:
        claim = await w.held_turn(lease_s=0.4)
        async with w.transaction() as blocker:
            await hold_row(blocker, claim.turn_id)
            commit = asyncio.create_task(outcome(w.append(claim, "slow", stepped=True)))
            await w.waits(commit, "turn_append_v2")
            await w.until(
                "SELECT 1 FROM turns WHERE id = %s AND expires_at < clock_timestamp()", claim.turn_id
            )
        assert await commit == 2
        assert await w.kinds(claim.session_id) == ["turn.started", "step.started"]
        assert (await w.row(claim.turn_id))["stepped"]


async def scenario_step_that_loses_its_row_keeps_the_count(url: str) -> None:
    """A step's reset of the attempts never reaches a row that a claim took since the step was judged."""
    async with world(url) as w:
        claim = await w.held_turn(lease_s=0.4)
        async with w.transaction() as taker:
            await hold_row(taker, claim.turn_id)
            commit = asyncio.create_task(w.append(claim, "slow", stepped=True))
            await w.waits(commit, "turn_append_v2")
            await taker.execute(
                "UPDATE turns SET epoch = epoch + 1, token = gen_random_uuid(), suspect = true WHERE id = %s",
                (claim.turn_id,),
            )
        await commit
        assert (await w.row(claim.turn_id))["suspect"]


async def scenario_renewal_touches_no_head(url: str) -> None:
    """A renewal neither waits for a held head nor for a held row: it skips the row and says so."""
    async with world(url) as w:
        claim = await w.held_turn()
        async with w.transaction() as blocker:
            await hold_head(blocker, claim.session_id)
            renewal = asyncio.create_task(w.queue.renew(fences(claim), 60.0))
            assert not await w.waits(renewal, "turn_renew_v1")
            assert (await renewal).renewed == {claim.turn_id}
            await hold_row(blocker, claim.turn_id)
            renewal = asyncio.create_task(w.queue.renew(fences(claim), 60.0))
            assert not await w.waits(renewal, "turn_renew_v1")
            assert (await renewal).skipped == {claim.turn_id}
        await w.expire(claim.turn_id)
        assert (await w.queue.renew(fences(claim), 60.0)).lost == {claim.turn_id}


HEAD_LOCK = "SELECT * INTO v_head FROM sessions WHERE id = p_session FOR NO KEY UPDATE;"
JUDGED_AT_START = ("v_now := clock_timestamp();", "v_now := statement_timestamp();")
FENCE = "AND turn_fence_holds_v1(v_turn, p_epoch, p_token, v_now)"
HEAD_FENCE = "v_head.open_turn = p_id AND v_head.open_epoch = p_epoch AND v_head.open_token = p_token"
RESET = "alive_losses = 0, stepped = true WHERE id = p_id AND epoch = p_epoch;"
JUDGED_TWICE = (
    RESET
    + " IF NOT turn_fence_holds_v1(v_turn, p_epoch, p_token, clock_timestamp())"
    + " THEN RETURN QUERY SELECT 'lost'::text, NULL::bigint, NULL::bigint; RETURN; END IF;"
)

PROOFS: list[tuple[Scenario, Mutation]] = [
    (
        scenario_expired_holder_writes_nothing,
        mutation("append looks at the head only", "turn_append_v2", (FENCE, "")),
    ),
    (
        scenario_expired_holder_writes_nothing,
        mutation("end looks at the head only", "turn_end_v3", (FENCE, "")),
    ),
    (
        scenario_fenced_holder_is_refused_within_its_lease,
        mutation(
            "append takes any fence", "turn_append_v2", (HEAD_FENCE, "v_head.open_turn = p_id"), (FENCE, "")
        ),
    ),
    (
        scenario_takeover_waits_for_a_commit_judged_in_time,
        mutation(
            "takeover locks no head", "turn_open_v3", (HEAD_LOCK, HEAD_LOCK.replace(" FOR NO KEY UPDATE", ""))
        ),
    ),
    (
        scenario_lease_that_passes_while_a_commit_waits,
        mutation("append is judged before its lock", "turn_append_v2", JUDGED_AT_START),
    ),
    (
        scenario_commit_judges_the_clock_once,
        mutation("a later statement judges again", "turn_append_v2", (RESET, JUDGED_TWICE)),
    ),
    (
        scenario_step_that_loses_its_row_keeps_the_count,
        mutation(
            "reset of any holder's row", "turn_append_v2", (RESET, RESET.replace(" AND epoch = p_epoch", ""))
        ),
    ),
    (
        scenario_renewal_touches_no_head,
        mutation(
            "renewal waits for rows", "turn_renew_v1", ("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE")
        ),
    ),
    (
        scenario_renewal_touches_no_head,
        mutation(
            "renewal locks the head",
            "turn_renew_v1",
            (
                "v_now := clock_timestamp();",
                "PERFORM 1 FROM sessions s WHERE s.id IN (SELECT t.session_id FROM turns t WHERE t.id = ANY (p_ids))"
                " FOR NO KEY UPDATE; v_now := clock_timestamp();",
            ),
        ),
    ),
    (
        scenario_renewal_touches_no_head,
        mutation("renewal after expiry", "turn_renew_v1", ("AND t.expires_at >= v_now", "")),
    ),
]


@pytest.mark.behaviour("DST-09", "SES-101")
async def test_holder_past_its_lease_writes_nothing_though_nobody_took_over(database_url: str) -> None:
    await scenario_expired_holder_writes_nothing(database_url)


@pytest.mark.behaviour("SES-101")
async def test_second_of_two_workers_is_fenced_and_the_log_is_not_interleaved(database_url: str) -> None:
    await scenario_fenced_holder_is_refused_within_its_lease(database_url)


async def test_takeover_reads_what_was_committed_in_time(database_url: str) -> None:
    await scenario_takeover_waits_for_a_commit_judged_in_time(database_url)


@pytest.mark.behaviour("DST-09")
async def test_commit_that_waited_past_its_lease_is_refused(database_url: str) -> None:
    await scenario_lease_that_passes_while_a_commit_waits(database_url)


async def test_commit_is_judged_by_one_reading_of_the_clock(database_url: str) -> None:
    await scenario_commit_judges_the_clock_once(database_url)


async def test_step_resets_no_count_of_a_later_claim(database_url: str) -> None:
    await scenario_step_that_loses_its_row_keeps_the_count(database_url)


@pytest.mark.behaviour("SES-94")
async def test_renewal_waits_for_nothing(database_url: str) -> None:
    await scenario_renewal_touches_no_head(database_url)


@pytest.mark.mutation
@pytest.mark.parametrize(("scenario", "change"), [pytest.param(s, m, id=m.name) for s, m in PROOFS])
async def test_scenario_fails_without_its_rule(
    database_url: str, scenario: Scenario, change: Mutation
) -> None:
    await prove(database_url, scenario, change)
