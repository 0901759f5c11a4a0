"""Interleavings of deliveries with what opens and ends turns (core 13: 5, 9), with mutation proofs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import pytest

from shared.conformance.turn_stage import ended
from shared.domain.errors import InboxMoved, SessionBusy
from shared.domain.ids import SessionId, WorkerId
from shared.inbox.delivering import queued_draft
from shared.inbox.port import Delivered, Delivery
from shared.sessions.records import draft
from shared.turns.queue import AdmissionLimits, Ended
from tests.faults.world import ATTEMPTS_MAX, OWNER, admission, fenced, outcome, run_as, world
from tests.support.mutations import Mutation, Scenario, mutation, prove

CLAIM_ONE: Final = (
    "SELECT * FROM turn_claim_v4('w1', 'turns', '{1}', 1, NULL, 60, '', '{}', false, true, 8, 3, 256, false)"
)


def deliver_call(session: SessionId, item: str) -> Mapping[str, Any]:
    """Return the arguments of a delivery that the test runs in a transaction of its own; as ``World.deliver`` asks."""
    content = f"about {item}"
    record = queued_draft(Delivery(session, OWNER, item, "mail", content))
    return {
        "p_session": session,
        "p_owner": OWNER,
        "p_id": item,
        "p_source": "mail",
        "p_content": content,
        "p_record_text": record.text,
        "p_record_digest": record.digest,
        "p_meta": None,
        "p_agent": None,
        "p_revision": None,
        "p_on_worker_loss": None,
        "p_max_pending": 20,
        "p_attempts_max": 2,
        "p_turn_attempts_max": ATTEMPTS_MAX,
    }


async def scenario_item_of_a_reaped_turn_is_answered(url: str) -> None:
    """(5) An inbox turn whose holder is gone for good is reaped: its item waits again and is still answered."""
    async with world(url) as w:
        claim = await w.held_turn(on_worker_loss="interrupt")
        session = claim.session_id
        await w.deliver(session, "item")
        await w.end(claim)
        assert await w.statuses(session) == ["ended", "ready"]
        lost = await w.claim("w1")
        await w.open(lost, "item")
        assert await w.waiting(session) == []
        await w.expire(lost.turn_id)
        assert [view.turn_id for view in await w.queue.reap()] == [lost.turn_id]
        assert await w.waiting(session) == ["item"]
        follower = await w.claim("w2")
        assert (follower.origin, follower.session_id) == ("inbox", session)
        await w.open(follower, "item")
        answer = await w.end(follower)
        assert (answer.pending, await w.waiting(session)) == (0, [])


async def scenario_delivery_commits_while_the_end_waits(url: str) -> None:
    """A delivery that commits before the closing commit is counted by it, and its turn is promoted."""
    async with world(url) as w:
        claim = await w.held_turn()
        async with w.transaction() as deliverer:
            call = deliver_call(claim.session_id, "item")
            delivered = await run_as(deliverer, call, "inbox_deliver_v2")
            assert (delivered["result"], delivered["turn_id"]) == ("delivered", None)
            end = asyncio.create_task(w.end(claim))
            await w.waits(end, "turn_end_v3")
        answer = await end
        assert answer.pending == 1
        assert answer.promoted == await w.inbox_turn(claim.session_id)
        assert await w.statuses(claim.session_id) == ["ended", "ready"]


async def scenario_end_commits_while_a_delivery_waits(url: str) -> None:
    """The mirror of it: a delivery that waited for the end finds the session free, and inserts the turn itself."""
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
            answer = await run_as(holder, write, "turn_end_v3")
            assert (answer["result"], answer["pending"]) == ("stored", 0)
            waiting = asyncio.create_task(outcome(w.deliver(claim.session_id, "item")))
            await w.waits(waiting, "inbox_deliver_v2")
        delivered = await waiting
        assert isinstance(delivered, Delivered)
        assert delivered.turn_id is not None
        assert delivered.turn_id == await w.inbox_turn(claim.session_id)
        assert await w.statuses(claim.session_id) == ["ended", "ready"]


async def scenario_delivery_waits_for_its_own_first_try(url: str) -> None:
    """(9) A delivery that waited behind the same one finds it, though it was not there when the statement began."""
    async with world(url) as w:
        session = await w.session()
        async with w.transaction() as first:
            assert (await run_as(first, deliver_call(session, "item"), "inbox_deliver_v2"))["seq"] == 1
            again = asyncio.create_task(outcome(w.deliver(session, "item")))
            await w.waits(again, "inbox_deliver_v2")
        answer = await again
        assert isinstance(answer, Delivered), answer
        assert (answer.seq, answer.duplicate, answer.pending) == (1, True, 1)
        assert await w.kinds(session) == ["inbox.queued"]


async def scenario_delivery_commits_while_an_inbox_turn_opens(url: str) -> None:
    """What came after the items were read is not claimed unseen: it waits for the next turn."""
    async with world(url) as w:
        session = await w.session()
        await w.deliver(session, "one")
        claim = await w.claim()
        async with w.transaction() as deliverer:
            await run_as(deliverer, deliver_call(session, "two"), "inbox_deliver_v2")
            opening = asyncio.create_task(outcome(w.open(claim, "one")))
            await w.waits(opening, "turn_open_v3")
        assert not isinstance(await opening, BaseException)
        assert (await w.waiting(session), (await w.head(session)).inbox_waiting) == (["two"], 1)
        assert (await w.end(claim)).promoted == await w.inbox_turn(session)
        again = await w.claim()
        await w.open(again, "two")
        assert await w.waiting(session) == []


async def scenario_turn_names_others_than_the_oldest(url: str) -> None:
    """A turn opens with the oldest items that wait, oldest first, and with no others."""
    async with world(url) as w:
        session = await w.session()
        for item in ("one", "two"):
            await w.deliver(session, item)
        claim = await w.claim()
        assert isinstance(await outcome(w.open(claim, "two")), InboxMoved)
        assert isinstance(await outcome(w.open(claim, "two", "one")), InboxMoved)
        assert await w.waiting(session) == ["one", "two"]
        await w.open(claim, "one", "two")
        assert await w.waiting(session) == []


async def scenario_claim_commits_while_a_host_begins(url: str) -> None:
    """A worker's claim of the inbox turn commits while a host's begin looks at it: the host finds the session busy."""
    async with world(url) as w:
        session = await w.session()
        await w.deliver(session, "one")
        asked = admission(session)
        first = draft("turn.started", {"v": 1, "turn_id": str(asked.turn_id)})
        async with w.transaction() as worker:
            row = await (await worker.execute(CLAIM_ONE.encode())).fetchone()
            assert row is not None
            begun = w.queue.begin(
                asked,
                WorkerId("host"),
                lease_s=None,
                commit_id="b",
                drafts=[first],
                limits=AdmissionLimits(),
            )
            beginning = asyncio.create_task(outcome(begun))
            await w.waits(beginning, "turn_begin_v2")
        assert isinstance(await beginning, SessionBusy)
        assert await w.statuses(session) == ["running"]
        assert (await w.head(session)).open is None


async def scenario_interrupted_end_waits_for_a_delivery(url: str) -> None:
    """An interrupted inbox turn gives its items back beside what came meanwhile: both wait, for one next turn."""
    async with world(url) as w:
        session = await w.session()
        await w.deliver(session, "one")
        claim = await w.claim()
        await w.open(claim, "one")
        async with w.transaction() as deliverer:
            await run_as(deliverer, deliver_call(session, "two"), "inbox_deliver_v2")
            end = asyncio.create_task(outcome(w.end(claim, "interrupted")))
            await w.waits(end, "turn_end_v3")
        answer = await end
        assert isinstance(answer, Ended)
        assert (answer.pending, await w.waiting(session)) == (2, ["one", "two"])
        assert (await w.head(session)).inbox_waiting == 2
        assert await w.statuses(session) == ["ended", "ready"]


HEAD_LOCK: Final = "WHERE id = p_session AND owner = p_owner FOR NO KEY UPDATE;"
UNLOCKED: Final = HEAD_LOCK.replace(" FOR NO KEY UPDATE", "")

PROOFS: list[tuple[Scenario, Mutation]] = [
    (
        scenario_item_of_a_reaped_turn_is_answered,
        mutation(
            "a close settles nothing",
            "turn_close_open_v2",
            ("PERFORM inbox_settle_v1(p_turn, p_reason, p_code IS DISTINCT FROM 'turn.superseded');", ""),
        ),
    ),
    (
        scenario_item_of_a_reaped_turn_is_answered,
        mutation("nothing follows an end", "turn_promote_v1", ("PERFORM inbox_follow_v1(p_session);", "")),
    ),
    (
        scenario_delivery_commits_while_the_end_waits,
        mutation(
            "an end looks at the inbox before the lock",
            "turn_end_v3",
            (
                "DECLARE v_head sessions;",
                "DECLARE v_owed int := (SELECT inbox_waiting FROM sessions WHERE id = p_session); v_head sessions;",
            ),
            (
                "SELECT s.inbox_waiting INTO STRICT pending FROM sessions s WHERE s.id = p_session;",
                "pending := v_owed;",
            ),
        ),
    ),
    (
        scenario_end_commits_while_a_delivery_waits,
        mutation("a delivery inserts no turn", "inbox_put_v2", ("PERFORM turn_promote_v1(p_head.id);", "")),
    ),
    (
        scenario_delivery_waits_for_its_own_first_try,
        mutation("a delivery locks no head", "inbox_deliver_v2", (HEAD_LOCK, UNLOCKED)),
    ),
    (
        scenario_delivery_commits_while_an_inbox_turn_opens,
        mutation(
            "a turn claims what it did not name",
            "inbox_claim_v2",
            (" AND id = ANY (p_claims)", ""),
        ),
    ),
    (
        scenario_turn_names_others_than_the_oldest,
        mutation(
            "a turn claims any that wait",
            "inbox_judge_v1",
            ("v_waiting[1:v_named] = p_claims", "v_waiting @> p_claims"),
        ),
    ),
    (
        scenario_claim_commits_while_a_host_begins,
        mutation(
            "a begin looks at the inbox turn without a lock",
            "turn_begin_v2",
            ("AND t.number IS NULL FOR NO KEY UPDATE;", "AND t.number IS NULL;"),
        ),
    ),
    (
        scenario_interrupted_end_waits_for_a_delivery,
        mutation(
            "given-back items are the only ones",
            "inbox_settle_v1",
            ("SET inbox_waiting = inbox_waiting + v_back", "SET inbox_waiting = v_back"),
        ),
    ),
    (
        scenario_interrupted_end_waits_for_a_delivery,
        mutation(
            "interrupted items are done",
            "inbox_settle_v1",
            ("IN ('completed', 'partial', 'cancelled')", "<> 'failed'"),
        ),
    ),
]


@pytest.mark.behaviour("INB-13", "INB-16")
async def test_item_of_a_reaped_turn_is_still_answered(database_url: str) -> None:
    await scenario_item_of_a_reaped_turn_is_answered(database_url)


@pytest.mark.behaviour("INB-30", "INB-31")
async def test_delivery_that_commits_before_the_end_is_counted_by_it(database_url: str) -> None:
    await scenario_delivery_commits_while_the_end_waits(database_url)


@pytest.mark.behaviour("INB-30", "INB-31")
async def test_delivery_that_commits_after_the_end_inserts_its_turn(database_url: str) -> None:
    await scenario_end_commits_while_a_delivery_waits(database_url)


@pytest.mark.behaviour("INB-02")
async def test_delivery_that_waits_for_its_own_first_try_finds_it(database_url: str) -> None:
    await scenario_delivery_waits_for_its_own_first_try(database_url)


@pytest.mark.behaviour("INB-07")
async def test_delivery_that_commits_while_an_inbox_turn_opens_is_not_claimed_unseen(
    database_url: str,
) -> None:
    await scenario_delivery_commits_while_an_inbox_turn_opens(database_url)


@pytest.mark.behaviour("INB-07")
async def test_turn_that_names_others_than_the_oldest_does_not_open(database_url: str) -> None:
    await scenario_turn_names_others_than_the_oldest(database_url)


async def test_host_that_begins_while_a_claim_commits_finds_the_session_busy(database_url: str) -> None:
    await scenario_claim_commits_while_a_host_begins(database_url)


@pytest.mark.behaviour("INB-13", "INB-31")
async def test_items_given_back_wait_beside_what_came_meanwhile(database_url: str) -> None:
    await scenario_interrupted_end_waits_for_a_delivery(database_url)


@pytest.mark.mutation
@pytest.mark.parametrize(("scenario", "change"), [pytest.param(s, m, id=m.name) for s, m in PROOFS])
async def test_scenario_fails_without_its_rule(
    database_url: str, scenario: Scenario, change: Mutation
) -> None:
    await prove(database_url, scenario, change)
