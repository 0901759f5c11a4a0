"""Interleavings of claims and losses (core 13: 2, 7, 8, 14, 15), each with its mutation proofs."""

from __future__ import annotations

import asyncio
from typing import Final

import psycopg
import pytest

from shared.conformance.turn_stage import seen
from shared.domain.ids import OwnerId, WorkerId
from shared.turns.queue import Claim
from tests.faults.world import LEASE_S, OWNER, World, world
from tests.support.mutations import Mutation, Scenario, mutation, prove

#: What a claim judges silence by. The server has been up for longer.
SHORT_LEASE_S = 0.05
CLAIM_ONE: Final = (
    "SELECT * FROM turn_claim_v4('w1', 'turns', '{1}', 1, NULL, 60, '', '{}', false, true, 8, 3, 256, false)"
)


async def lose_to(w: World, lost: Claim, worker: str, *, lease_s: float = SHORT_LEASE_S) -> Claim:
    """Let a claim's lease pass, and have the next worker take the row."""
    await w.expire(lost.turn_id)
    found = await w.claims(worker, lease_s=lease_s)
    assert [claim.turn_id for claim in found] == [lost.turn_id]
    return found[0]


async def limit_owner(w: World, owner: OwnerId, running_max: int) -> None:
    """Set an owner's cap of running turns."""
    await w.rows("UPDATE owners SET running_max = %s WHERE id = %s", running_max, owner)


async def scenario_cap_full_of_expired_rows(url: str) -> None:
    """(2) An owner whose cap is full of expired rows: they are taken over, and nothing beyond the cap is claimed."""
    async with world(url) as w:
        held = [await w.held_turn("w1") for _ in range(2)]
        await limit_owner(w, OWNER, 2)
        await w.admit(await w.session())
        assert await w.claims("w2", places=3) == []
        await w.expire(*(claim.turn_id for claim in held))
        taken = await w.claims("w2", places=3)
        assert {claim.turn_id for claim in taken} == {claim.turn_id for claim in held}
        assert all(claim.lost for claim in taken)
        await w.open(taken[0])
        await w.end(taken[0])
        assert [claim.lost for claim in await w.claims("w2", places=3)] == [False]


async def scenario_two_claims_at_one_cap(url: str) -> None:
    """Two claims that found room for the same owner at once, each for its revision, do not exceed its cap together."""
    async with world(url) as w:
        for revision in ("1", "2"):
            await w.admit(await w.session(), agent_revision=revision)
        await limit_owner(w, OWNER, 1)
        async with w.transaction() as first:
            await first.execute(CLAIM_ONE)
            second = asyncio.create_task(w.claims("w2", revisions=("2",)))
            await w.waits(second, "turn_claim_v4")
        assert await second == []


async def scenario_turn_that_ends_while_a_claim_waits(url: str) -> None:
    """A claim that began before a turn ended, and takes the next one, tells the tail that the end left."""
    async with world(url) as w:
        ending = await w.held_turn("w1")
        behind = await w.admit(ending.session_id)
        await w.admit(await w.session())
        async with w.transaction() as owners:
            await owners.execute("SELECT 1 FROM owners FOR UPDATE")
            waiting = asyncio.create_task(w.claims("w2", places=2))
            await w.waits(waiting, "turn_claim_v4")
            await w.end(ending)
        told = {claim.turn_id: claim.tail for claim in await waiting}
        assert told[behind.turn_id] == (await w.log.head(ending.session_id, OWNER)).tail


async def scenario_old_session_beside_new_ones(url: str) -> None:
    """(7) A session at position 500 is not behind the first turns of 60 newer sessions: admission time orders them."""
    async with world(url) as w:
        old = await w.session()
        await w.rows("UPDATE sessions SET next_position = 500 WHERE id = %s", old)
        first = await w.admit(old)
        for _ in range(60):
            await w.admit(await w.session())
        assert first.position == 500
        assert (await w.claim()).turn_id == first.turn_id


async def scenario_process_that_dies_before_open(url: str) -> None:
    """(8) Each process that claims the row dies before it opens: the fourth loss ends it, and its neighbours run on."""
    async with world(url) as w:
        session = await w.session()
        poison = await w.admit(session)
        await w.admit(session)
        claim = await w.claim("dead 1", lease_s=SHORT_LEASE_S)
        counted = [(claim.attempts, claim.suspect)]
        for n in (2, 3, 4):
            claim = await lose_to(w, claim, f"dead {n}")
            counted.append((claim.attempts, claim.suspect))
        assert counted == [(0, False), (0, True), (1, True), (2, True)]
        await w.expire(claim.turn_id)
        assert await w.claims("w5") == []
        [reaped] = await w.queue.reap()
        assert (reaped.turn_id, reaped.status, reaped.outcome) == (poison.turn_id, "ended", "interrupted")
        assert (reaped.code, reaped.number) == ("turn.lease", None)
        assert await w.kinds(session) == []
        assert await w.statuses(session) == ["ended", "ready"]


async def scenario_third_counted_loss_of_an_open_turn(url: str) -> None:
    """(8) An open turn that kills its workers ends interrupted; a step in between would have begun the count anew."""
    async with world(url) as w:
        claim = await w.held_turn("dead 1", lease_s=LEASE_S)
        for n in (2, 3):
            claim = await lose_to(w, claim, f"dead {n}")
            await w.rows("UPDATE turns SET expires_at = expires_at + interval '60 s'")
            await w.open(claim)
        await w.append(claim, "step", stepped=True)
        row = await w.row(claim.turn_id)
        assert (row["attempts"], row["suspect"]) == (0, False)
        for n in (4, 5, 6):
            claim = await lose_to(w, claim, f"dead {n}")
        await w.admit(claim.session_id)
        await w.expire(claim.turn_id)
        assert await w.claims("w7") == []
        [reaped] = await w.queue.reap()
        assert (reaped.status, reaped.outcome, reaped.code) == ("ended", "interrupted", "turn.lease")
        assert await w.kinds(claim.session_id) == ["turn.started", "step.started", "turn.ended"]
        assert await w.statuses(claim.session_id) == ["ended", "ready"]


async def scenario_live_holder_that_always_loses(url: str) -> None:
    """(8) A process that lives and always loses its lease: ten losses in a row are free, the next one counts."""
    async with world(url) as w:
        await w.admit(await w.session())
        claim = await w.claim("alive")
        for n in range(11):
            await w.queue.seen(seen(WorkerId("alive")))
            claim = await lose_to(w, claim, "alive", lease_s=5.0)
            assert (claim.attempts, claim.suspect) == (int(n == 10), False)


async def scenario_sixteen_owners_at_their_cap(url: str) -> None:
    """(14) Sixteen owners at their cap stand before one with room."""
    async with world(url) as w:
        for n in range(16):
            owner = OwnerId(f"full {n:02}")
            await w.held_turn("w1", owner)
            await w.admit(await w.session(owner), owner)
            await limit_owner(w, owner, 1)
        roomy = OwnerId("roomy")
        admitted = await w.admit(await w.session(roomy), roomy)
        assert [claim.turn_id for claim in await w.claims("w2", places=4)] == [admitted.turn_id]


async def scenario_claim_whose_answer_is_lost(url: str) -> None:
    """(15) A claim commits after its process stopped listening: the process finds the row it owns, and gives it back."""
    async with world(url) as w:
        admitted = await w.admit(await w.session())
        async with w.transaction() as blocker:
            await blocker.execute("SELECT 1 FROM owners WHERE id = %s FOR NO KEY UPDATE", (OWNER,))
            lost = psycopg.connect(w.url, autocommit=True)
            lost.pgconn.send_query(CLAIM_ONE.encode())
            await w.until(
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query = %s", CLAIM_ONE
            )
            lost.close()
        await w.until("SELECT 1 FROM turns WHERE id = %s AND status = 'running'", admitted.turn_id)
        watched = await w.queue.watch(WorkerId("w1"), {})
        assert list(watched.orphans) == [admitted.turn_id]
        assert (await w.queue.watch(WorkerId("w2"), {})).orphans == {}
        assert await w.queue.release(admitted.turn_id, watched.orphans[admitted.turn_id])
        claim = await w.claim("w2")
        assert (claim.turn_id, claim.attempts, claim.lost) == (admitted.turn_id, 0, False)


PROOFS: list[tuple[Scenario, Mutation]] = [
    (
        scenario_cap_full_of_expired_rows,
        mutation(
            "takeovers are capped",
            "turn_take_over_v2",
            (
                "AND pool = p_pool",
                "AND pool = p_pool AND (SELECT count(*) FROM turns r WHERE r.owner = turns.owner AND r.status = 'running')"
                " < (SELECT o.running_max FROM owners o WHERE o.id = turns.owner)",
            ),
        ),
    ),
    (
        scenario_cap_full_of_expired_rows,
        mutation(
            "no takeovers",
            "turn_take_over_v2",
            ("IF v_lost = '{}' THEN RETURN v_lost;", "IF true THEN RETURN '{}';"),
        ),
    ),
    (
        scenario_two_claims_at_one_cap,
        mutation(
            "owners are not locked",
            "turn_claim_v4",
            ("PERFORM 1 FROM owners o WHERE o.id = ANY (v_owners) ORDER BY o.id FOR NO KEY UPDATE;", ""),
        ),
    ),
    (
        scenario_turn_that_ends_while_a_claim_waits,
        mutation(
            "tails are read when the claim begins",
            "turn_claim_v4",
            (
                "BEGIN\n  IF p_takeovers THEN",
                "BEGIN\n  PERFORM set_config('test.tails', (SELECT json_object_agg(id, tail::text) FROM sessions)::text, true);"
                "\n  IF p_takeovers THEN",
            ),
            ("IS NOT NULL, s.tail", "IS NOT NULL, (current_setting('test.tails')::json ->> s.id)::bytea"),
        ),
    ),
    (
        scenario_old_session_beside_new_ones,
        mutation(
            "position orders an owner",
            "turn_take_ready_v3",
            (
                "ORDER BY c.priority, c.due_at, c.id LIMIT v_room",
                "ORDER BY c.priority, c.position LIMIT v_room",
            ),
        ),
    ),
    (
        scenario_process_that_dies_before_open,
        mutation("losses are not counted", "turn_take_over_v2", ("THEN t.suspect::int ELSE", "THEN 0 ELSE")),
    ),
    (
        scenario_process_that_dies_before_open,
        mutation("the first loss counts", "turn_take_over_v2", ("THEN t.suspect::int ELSE", "THEN 1 ELSE")),
    ),
    (
        scenario_process_that_dies_before_open,
        mutation(
            "spent rows are claimed",
            "turn_take_over_v2",
            ("AND NOT ((suspect OR alive_losses >= 10) AND attempts >= p_attempts_max - 1)", ""),
        ),
    ),
    (
        scenario_third_counted_loss_of_an_open_turn,
        mutation("a step resets nothing", "turn_append_v2", ("SET attempts = 0, suspect = false,", "SET")),
    ),
    (
        scenario_third_counted_loss_of_an_open_turn,
        mutation(
            "the reaped turn promotes nothing",
            "turn_close_open_v2",
            ("PERFORM turn_promote_v1(p_turn.session_id);", ""),
        ),
    ),
    (
        scenario_live_holder_that_always_loses,
        mutation("no loss is free", "turn_take_over_v2", ("(t.alive_losses >= 10)::int", "1")),
    ),
    (
        scenario_live_holder_that_always_loses,
        mutation("every loss is free", "turn_take_over_v2", ("(t.alive_losses >= 10)::int", "0")),
    ),
    (
        scenario_live_holder_that_always_loses,
        mutation(
            "whoever loses is gone",
            "turn_take_over_v2",
            ("WHERE w.id = l.lease_owner AND w.last_seen > v_silent_since", "WHERE false"),
            ("pg_postmaster_start_time() < v_silent_since", "true"),
        ),
    ),
    (
        scenario_sixteen_owners_at_their_cap,
        mutation("owners at their cap are served", "turn_owners_v3", ("IF v_fits THEN", "IF true THEN")),
    ),
    (
        scenario_claim_whose_answer_is_lost,
        mutation(
            "nobody tells of orphans",
            "turn_watch_v1",
            ("WHERE t.lease_owner = p_worker AND", "WHERE false AND"),
        ),
    ),
    (
        scenario_claim_whose_answer_is_lost,
        mutation("any worker's rows are orphans", "turn_watch_v1", ("t.lease_owner = p_worker AND", "")),
    ),
]


@pytest.mark.behaviour("DST-06")
async def test_expired_rows_that_fill_a_cap_are_taken_over(database_url: str) -> None:
    await scenario_cap_full_of_expired_rows(database_url)


@pytest.mark.behaviour("DST-14")
async def test_two_claims_at_once_keep_an_owners_cap(database_url: str) -> None:
    await scenario_two_claims_at_one_cap(database_url)


async def test_a_claim_tells_a_tail_that_was_read_after_it_took_its_turns(database_url: str) -> None:
    await scenario_turn_that_ends_while_a_claim_waits(database_url)


@pytest.mark.behaviour("DST-06")
async def test_long_session_does_not_wait_behind_every_new_one(database_url: str) -> None:
    await scenario_old_session_beside_new_ones(database_url)


@pytest.mark.behaviour("DST-20")
async def test_turn_whose_workers_die_before_open_ends_after_its_attempts(database_url: str) -> None:
    await scenario_process_that_dies_before_open(database_url)


@pytest.mark.behaviour("DST-20")
async def test_open_turn_that_kills_its_workers_ends_and_frees_the_session(database_url: str) -> None:
    await scenario_third_counted_loss_of_an_open_turn(database_url)


async def test_losses_of_a_live_process_are_free_ten_times(database_url: str) -> None:
    await scenario_live_holder_that_always_loses(database_url)


@pytest.mark.behaviour("DST-14")
async def test_owners_at_their_cap_hide_nobody(database_url: str) -> None:
    await scenario_sixteen_owners_at_their_cap(database_url)


async def test_claim_whose_answer_was_lost_is_found_by_its_process(database_url: str) -> None:
    await scenario_claim_whose_answer_is_lost(database_url)


@pytest.mark.mutation
@pytest.mark.parametrize(("scenario", "change"), [pytest.param(s, m, id=m.name) for s, m in PROOFS])
async def test_scenario_fails_without_its_rule(
    database_url: str, scenario: Scenario, change: Mutation
) -> None:
    await prove(database_url, scenario, change)
