"""Interleavings of creations, admissions and commits outside a turn (core 13: 9, 13, 18, 20), with mutation proofs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from shared.conformance.turn_stage import ended
from shared.domain.errors import CommitTooLate
from shared.domain.ids import new_session_id, new_turn_id
from shared.sessions.log import Created, NewSession
from shared.sessions.records import draft
from shared.turns.queue import AdmissionLimits, Receipt
from tests.faults.world import OWNER, admission, admit_call, fenced, hold_head, outcome, run_as, world
from tests.support.mutations import Mutation, Scenario, mutation, prove


async def scenario_commit_that_waited_past_its_time(url: str) -> None:
    """(9) A commit with ``not_after`` waits behind a lock that changes nothing, and its time passes meanwhile."""
    async with world(url) as w:
        session = await w.session()
        limit = (await w.head(session)).now + timedelta(seconds=0.3)
        note = [draft("host.note", {"n": 1})]
        async with w.transaction() as blocker:
            await hold_head(blocker, session)
            late = asyncio.create_task(outcome(w.log.commit(session, OWNER, note, not_after=limit)))
            await w.waits(late, "session_commit_v1")
            await w.until("SELECT 1 WHERE clock_timestamp() > %s", limit)
        assert isinstance(await late, CommitTooLate)
        assert await w.kinds(session) == []


async def scenario_admission_commits_while_the_end_waits(url: str) -> None:
    """(9) An admission inserts behind the open turn while the closing statement waits: the end promotes it."""
    async with world(url) as w:
        claim = await w.held_turn()
        second = new_turn_id()
        async with w.transaction() as producer:
            admitted = await run_as(producer, admit_call(claim.session_id, second), "turn_admit_v3")
            assert admitted["status"] == "queued"
            end = asyncio.create_task(w.end(claim))
            await w.waits(end, "turn_end_v3")
        assert (await end).promoted == second
        assert await w.statuses(claim.session_id) == ["ended", "ready"]


async def scenario_end_commits_while_an_admission_waits(url: str) -> None:
    """The mirror of it: an admission that waited for an end finds nothing live, and is ready at once."""
    async with world(url) as w:
        claim = await w.held_turn()
        closing = ended()
        write = fenced(claim, "end") | {
            "p_kinds": [closing.kind],
            "p_texts": [closing.text],
            "p_digests": [closing.digest],
            "p_calls": None,
            "p_outcome": "completed",
            "p_code": None,
            "p_failure": None,
            "p_usage": "{}",
            "p_counts": None,
        }
        async with w.transaction() as holder:
            assert (await run_as(holder, write, "turn_end_v3"))["result"] == "stored"
            waiting = asyncio.create_task(outcome(w.admit(claim.session_id)))
            await w.waits(waiting, "turn_admit_v3")
        receipt = await waiting
        assert isinstance(receipt, Receipt)
        assert await w.statuses(claim.session_id) == ["ended", "ready"]


async def scenario_dead_turn_blocks_no_admission(url: str) -> None:
    """The admission itself reaps a turn that nobody may continue: the session takes the next message at once."""
    async with world(url) as w:
        claim = await w.held_turn(on_worker_loss="interrupt")
        await w.expire(claim.turn_id)
        receipt = await outcome(w.admit(claim.session_id, on_busy="reject"))
        assert isinstance(receipt, Receipt)
        dead = await w.row(claim.turn_id)
        assert (dead["status"], dead["outcome"], dead["code"]) == ("ended", "interrupted", "turn.lease")
        assert await w.kinds(claim.session_id) == ["turn.started", "turn.ended"]


async def scenario_two_creations_with_one_key(url: str) -> None:
    """(13) A creation waits for another with its key: it answers that one's session, or its own when that was undone."""
    async with world(url) as w:
        alike = await w.log.create(NewSession(new_session_id(), OWNER, key="alike"))
        [stored] = await w.rows("SELECT create_print, tail FROM sessions WHERE id = %s", alike.session_id)
        for first_commits in (True, False):
            first = new_session_id()
            call = {
                "p_id": first,
                "p_owner": OWNER,
                "p_key": f"first commits: {first_commits}",
                "p_print": stored["create_print"],
                "p_title": None,
                "p_meta": "{}",
                "p_tail": stored["tail"],
            }
            async with w.transaction() as creator:
                assert (await run_as(creator, call, "session_create_v1"))["result"] == "created"
                new = NewSession(new_session_id(), OWNER, key=f"first commits: {first_commits}")
                second = asyncio.create_task(outcome(w.log.create(new)))
                await w.waits(second, "session_create_v1")
                if not first_commits:
                    await creator.execute("ROLLBACK")
            answer = await second
            assert answer == Created(first if first_commits else new.id, duplicate=first_commits)


async def scenario_later_admission_waits_for_the_earlier(url: str) -> None:
    """(18) A later position never commits before an earlier one: turns run in the order of their admission."""
    async with world(url) as w:
        for first_commits in (True, False):
            session = await w.session()
            first = new_turn_id()
            async with w.transaction() as producer:
                assert (await run_as(producer, admit_call(session, first), "turn_admit_v3"))[
                    "status"
                ] == "ready"
                later = asyncio.create_task(outcome(w.admit(session)))
                await w.waits(later, "turn_admit_v3")
                if not first_commits:
                    await producer.execute("ROLLBACK")
            receipt = await later
            assert isinstance(receipt, Receipt)
            assert receipt.position == (2 if first_commits else 1)
            assert await w.statuses(session) == (["ready", "queued"] if first_commits else ["ready"])


async def scenario_retry_finds_the_first_admission(url: str) -> None:
    """A retry that comes while the first try has not committed waits for it, and answers its receipt."""
    async with world(url) as w:
        session = await w.session()
        one = admission(session, key="k")
        async with w.transaction() as blocker:
            await hold_head(blocker, session)
            tries = [
                asyncio.create_task(outcome(w.queue.admit(replace(one, turn_id=turn), AdmissionLimits())))
                for turn in (one.turn_id, one.turn_id, new_turn_id())
            ]
            for attempt in tries:
                await w.waits(attempt, "turn_admit_v3")
        receipts = [answer for answer in await asyncio.gather(*tries) if isinstance(answer, Receipt)]
        assert len(receipts) == len(tries)
        assert len({receipt.turn_id for receipt in receipts}) == 1
        assert await w.statuses(session) == ["ready"]


async def scenario_producer_dies_after_its_commit(url: str) -> None:
    """(20) A producer dies after its commit, before any wake: a claim that nobody asked for finds the row."""
    async with world(url) as w:
        session = await w.session()
        turn = new_turn_id()
        async with w.transaction() as producer:
            await run_as(producer, admit_call(session, turn), "turn_admit_v3")
        assert [c.turn_id for c in await w.claims(places=4)] == [turn]


HEAD_LOCK = (
    "SELECT * INTO v_head FROM sessions WHERE id = p_session AND owner = p_owner FOR NO KEY UPDATE;",
    "SELECT * INTO v_head FROM sessions WHERE id = p_session AND owner = p_owner;",
)
LIVE = (
    "SELECT * INTO v_live FROM turns t WHERE t.session_id = p_session"
    " AND t.status IN ('ready', 'running', 'waiting');"
)

PROOFS: list[tuple[Scenario, Mutation]] = [
    (
        scenario_commit_that_waited_past_its_time,
        mutation(
            "judged before the lock",
            "session_commit_v1",
            ("v_now := clock_timestamp();", "v_now := statement_timestamp();"),
        ),
    ),
    (
        scenario_admission_commits_while_the_end_waits,
        mutation(
            "whether anything follows is looked for before the lock",
            "turn_end_v3",
            (
                "DECLARE v_head sessions;",
                "DECLARE v_next bigint := (SELECT s.next_position FROM sessions s WHERE s.id = p_session); v_head sessions;",
            ),
            ("v_head.next_position > v_turn.position + 1", "v_next > v_turn.position + 1"),
        ),
    ),
    (
        scenario_end_commits_while_an_admission_waits,
        mutation(
            "the live row is looked for before the lock",
            "turn_admit_v3",
            (LIVE, ""),
            (HEAD_LOCK[0], LIVE + HEAD_LOCK[0]),
        ),
    ),
    (
        scenario_dead_turn_blocks_no_admission,
        mutation(
            "the door reaps nothing",
            "turn_live_v1",
            ("OR NOT turn_is_dead_v1(v_live, clock_timestamp(), p_attempts_max) THEN", "OR true THEN"),
        ),
    ),
    (
        scenario_two_creations_with_one_key,
        mutation(
            "the winner is not read",
            "session_create_v1",
            ("WHERE s.owner = p_owner AND s.create_key = p_key;", "WHERE false;"),
        ),
    ),
    (
        scenario_two_creations_with_one_key,
        mutation("creations collide", "session_create_v1", ("p_tail) ON CONFLICT DO NOTHING;", "p_tail);")),
    ),
    (
        scenario_later_admission_waits_for_the_earlier,
        mutation("admission locks no head", "turn_admit_v3", HEAD_LOCK),
    ),
    (scenario_retry_finds_the_first_admission, mutation("retries lock no head", "turn_admit_v3", HEAD_LOCK)),
    (
        scenario_retry_finds_the_first_admission,
        mutation(
            "the key is the turn's id",
            "turn_admit_v3",
            ("AND key = coalesce(p_key, p_id::text);", "AND key = p_id::text;"),
        ),
    ),
    (
        scenario_producer_dies_after_its_commit,
        mutation(
            "claims follow wakes only",
            "turn_claim_v4",
            (
                "v_owners := turn_owners_v3(p_pool, p_revisions, p_cursor, p_running_max,"
                " CASE WHEN v_background > 0 THEN 2 ELSE 1 END, p_users_only);",
                "v_owners := ARRAY(SELECT DISTINCT t.owner FROM turns t WHERE t.id = ANY (p_hints));",
            ),
        ),
    ),
]


@pytest.mark.behaviour("SES-14", "SES-26")
async def test_commit_that_waited_past_its_time_is_refused(database_url: str) -> None:
    await scenario_commit_that_waited_past_its_time(database_url)


async def test_end_promotes_what_was_admitted_while_it_waited(database_url: str) -> None:
    await scenario_admission_commits_while_the_end_waits(database_url)


async def test_admission_that_waited_for_an_end_is_ready_at_once(database_url: str) -> None:
    await scenario_end_commits_while_an_admission_waits(database_url)


async def test_dead_turn_is_reaped_by_the_next_admission(database_url: str) -> None:
    await scenario_dead_turn_blocks_no_admission(database_url)


async def test_two_creations_with_one_key_make_one_session(database_url: str) -> None:
    await scenario_two_creations_with_one_key(database_url)


async def test_admissions_commit_in_the_order_of_their_positions(database_url: str) -> None:
    await scenario_later_admission_waits_for_the_earlier(database_url)


@pytest.mark.behaviour("API-03")
async def test_retry_beside_its_first_try_answers_one_receipt(database_url: str) -> None:
    await scenario_retry_finds_the_first_admission(database_url)


async def test_row_of_a_producer_that_died_is_claimed_unasked(database_url: str) -> None:
    await scenario_producer_dies_after_its_commit(database_url)


@pytest.mark.mutation
@pytest.mark.parametrize(("scenario", "change"), [pytest.param(s, m, id=m.name) for s, m in PROOFS])
async def test_scenario_fails_without_its_rule(
    database_url: str, scenario: Scenario, change: Mutation
) -> None:
    await prove(database_url, scenario, change)
