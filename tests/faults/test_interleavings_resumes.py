"""Interleavings of resumes: two of one turn, a worker that wakes up, and what comes between admission and opening."""

from __future__ import annotations

import asyncio

import pytest

from shared.conformance.turn_stage import commit_id, step
from shared.domain.errors import NotResumable, SessionBusy, TurnClosed
from shared.domain.ids import SessionId, new_turn_id
from shared.inbox.port import Delivery
from shared.inbox.postgres import PostgresInbox
from shared.turns.queue import Begun, Claim
from tests.faults.test_interleavings_begins import begin
from tests.faults.world import (
    OWNER,
    World,
    admission,
    admit_call,
    hold_head,
    outcome,
    run_as,
    world,
)
from tests.support.mutations import Mutation, Scenario, mutation, prove

ROUNDS = 1_000


async def cut_session(w: World) -> tuple[SessionId, Claim]:
    """A session whose one turn was cancelled."""
    session = await w.session()
    begun = await begin(w, admission(session))
    assert isinstance(begun, Begun)
    await w.queue.cancel(begun.claim.turn_id, OWNER)
    return session, begun.claim


async def scenario_two_resumes_wait_for_one_head(url: str) -> None:
    """Two resumes of one turn behind a lock: one opens, the other is busy, and a third finds the turn answered."""
    async with world(url) as w:
        session, _ = await cut_session(w)
        async with w.transaction() as blocker:
            await hold_head(blocker, session)
            tries = [asyncio.create_task(begin(w, admission(session, resumes=1))) for _ in range(2)]
            for each in tries:
                await w.waits(each, "turn_begin_v2")
        answers = await asyncio.gather(*tries)
        [opened] = [answer for answer in answers if isinstance(answer, Begun)]
        assert sum(isinstance(answer, SessionBusy) for answer in answers) == 1
        await w.end(opened.claim)
        late = await begin(w, admission(session, resumes=1))
        assert isinstance(late, NotResumable)
        assert late.fields["reason"] == "superseded"
        assert await w.kinds(session) == ["turn.started", "turn.ended"] * 2


async def scenario_worker_wakes_up_while_its_turn_is_resumed(url: str) -> None:
    """A resume reaps a dead worker's turn; the worker's write waits behind it and is refused, and nothing is interleaved."""
    async with world(url) as w:
        old = await w.held_turn(on_worker_loss="interrupt")
        session = old.session_id
        await w.expire(old.turn_id)
        async with w.transaction() as producer:
            answer = await run_as(
                producer, dict(admit_call(session, new_turn_id())) | {"p_resumes": 1}, "turn_admit_v3"
            )
            waking = asyncio.create_task(outcome(w.queue.append(old, commit_id(old, "late"), [step()])))
            await w.waits(waking, "turn_append_v2")
        assert answer["result"] == "admitted", "one admission reaps and resumes"
        late = await waking
        assert isinstance(late, TurnClosed)
        assert late.fields["reason"] == "interrupted"
        assert await w.kinds(session) == ["turn.started", "turn.ended"]
        assert (await w.records(session))[-1].data == {"v": 1, "reason": "interrupted", "code": "turn.lease"}
        resumed = await w.claim("w2")
        assert resumed.resumes == 1
        await w.open(resumed)
        assert (await w.row(resumed.turn_id))["number"] == 2


async def scenario_resume_is_judged_again_as_it_opens(url: str) -> None:
    """Another turn opened between a resume's admission and its opening: the row ends refused, nothing is in the log."""
    async with world(url) as w:
        session, _ = await cut_session(w)
        await w.admit(session)
        waiting = await w.admit(session, resumes=1)
        claim = await w.claim()
        await w.open(claim)
        await w.end(claim)
        resumed = await w.claim()
        assert resumed.turn_id == waiting.turn_id
        refused = await outcome(w.open(resumed))
        assert isinstance(refused, NotResumable)
        row = await w.row(waiting.turn_id)
        found = (row["status"], row["code"], row["last_failure"], row["number"], row["lease_owner"])
        assert found == ("refused", "turn.not-resumable", "superseded", None, None)
        assert await w.kinds(session) == ["turn.started", "turn.ended"] * 2


async def scenario_inbox_turns_stand_in_no_resumes_way(url: str) -> None:
    """Turns of the inbox ran since, and are none to resume: the last turn of a user is still the last."""
    async with world(url) as w:
        session, _ = await cut_session(w)
        inbox = PostgresInbox(w.database)
        for n in range(3):
            delivery = Delivery(session, OWNER, f"item {n}", "test", "news")
            await inbox.deliver(delivery)
            claim = await w.claim()
            assert claim.origin == "inbox"
            opening = [(await inbox.waiting(session, OWNER))[0].id]
            await w.queue.open(claim, commit_id(claim, "open"), [step()], claims=opening)
            await w.end(claim)
        refused = await begin(w, admission(session, resumes=3))
        assert isinstance(refused, NotResumable)
        assert refused.fields["reason"] == "inbox"
        await inbox.deliver(Delivery(session, OWNER, "last", "test", "news"))
        resumed = await begin(w, admission(session, resumes=1))
        assert isinstance(resumed, Begun)
        assert resumed.opened.number == 5


async def two_at_once(w: World) -> None:
    session, _ = await cut_session(w)
    asked = [admission(session, resumes=1, key=key) for key in (None, "resume:1")]
    answers = await asyncio.gather(*(begin(w, one) for one in asked))
    assert sum(isinstance(answer, Begun) for answer in answers) == 1
    assert sum(isinstance(answer, SessionBusy | NotResumable) for answer in answers) == 1
    assert await w.kinds(session) == ["turn.started", "turn.ended", "turn.started"]


PROOFS: list[tuple[Scenario, Mutation]] = [
    (
        scenario_two_resumes_wait_for_one_head,
        mutation(
            "a resume looks at its turn alone",
            "turn_resume_refusal_v1",
            ("IF v_last.number > p_number THEN", "IF false THEN"),
        ),
    ),
    (
        scenario_two_resumes_wait_for_one_head,
        mutation(
            "a begin asks not what it resumes",
            "turn_begin_v2",
            ("IF p_resumes IS NOT NULL THEN", "IF false THEN"),
        ),
    ),
    (
        scenario_worker_wakes_up_while_its_turn_is_resumed,
        mutation(
            "an admission reaps nothing",
            "turn_admit_v3",
            ("v_live := turn_live_v1(v_head, p_attempts_max);", "v_live := NULL;"),
        ),
    ),
    (
        scenario_resume_is_judged_again_as_it_opens,
        mutation(
            "a resume is judged once",
            "turn_open_v3",
            ("IF v_turn.resumes_number IS NOT NULL THEN", "IF false THEN"),
        ),
    ),
    (
        scenario_inbox_turns_stand_in_no_resumes_way,
        mutation(
            "any later turn supersedes",
            "turn_resume_refusal_v1",
            ("AND origin = 'user' AND number IS NOT NULL ORDER", "AND number IS NOT NULL ORDER"),
        ),
    ),
]


@pytest.mark.behaviour("RSM-05", "RSM-10", "RSM-12")
async def test_of_two_resumes_that_waited_for_one_head_one_opens(database_url: str) -> None:
    await scenario_two_resumes_wait_for_one_head(database_url)


@pytest.mark.behaviour("RSM-06")
async def test_a_worker_that_wakes_up_while_its_turn_is_resumed_is_refused(database_url: str) -> None:
    await scenario_worker_wakes_up_while_its_turn_is_resumed(database_url)


@pytest.mark.behaviour("RSM-12")
async def test_a_resume_that_holds_no_more_as_it_opens_ends_refused(database_url: str) -> None:
    await scenario_resume_is_judged_again_as_it_opens(database_url)


@pytest.mark.behaviour("RSM-02", "RSM-04", "RSM-09")
async def test_a_turn_of_the_inbox_stands_in_no_resume_s_way_and_is_none_to_resume(database_url: str) -> None:
    await scenario_inbox_turns_stand_in_no_resumes_way(database_url)


@pytest.mark.behaviour("RSM-12", "RSM-40")
async def test_a_thousand_times_two_resumes_at_once_open_one_turn(database_url: str) -> None:
    async with world(database_url) as w:
        for _ in range(ROUNDS // 4):
            await asyncio.gather(*(two_at_once(w) for _ in range(4)))


@pytest.mark.mutation
@pytest.mark.parametrize(("scenario", "change"), [pytest.param(s, m, id=m.name) for s, m in PROOFS])
async def test_scenario_fails_without_its_rule(
    database_url: str, scenario: Scenario, change: Mutation
) -> None:
    await prove(database_url, scenario, change)
