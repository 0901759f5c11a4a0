"""Interleavings of interrupting admissions (core 13: 4, 5), with mutation proofs."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from shared.domain.errors import TurnClosed
from shared.domain.ids import SessionId, TurnId, WorkerId
from shared.turns.queue import Receipt
from tests.faults.world import OWNER, World, outcome, world
from tests.support.mutations import Mutation, Scenario, mutation, prove

CLAIM_ONE: Final = (
    "SELECT * FROM turn_claim_v4('w1', 'turns', '{1}', 1, NULL, 60, '', '{}', false, true, 8, 3, 256, false)"
)


async def interrupt(w: World, session: SessionId) -> Receipt:
    """Admit a turn that ends what the session is at."""
    receipt = await outcome(w.admit(session, on_busy="interrupt"))
    assert isinstance(receipt, Receipt), receipt
    return receipt


async def inbox_turn(w: World, session: SessionId) -> TurnId:
    """Deliver an item; return the turn that will answer it."""
    await w.deliver(session, "item")
    return await w.inbox_turn(session)


async def scenario_claim_commits_while_an_interruption_waits(url: str) -> None:
    """(4) A claimed turn that never opened is cancelled, its holder is told, and its open finds it gone."""
    async with world(url) as w:
        session = await w.session()
        first = await w.admit(session)
        async with w.transaction() as worker:
            row = await (await worker.execute(CLAIM_ONE.encode())).fetchone()
            assert row is not None
            interrupting = asyncio.create_task(outcome(w.admit(session, on_busy="interrupt")))
            await w.waits(interrupting, "turn_admit_v3")
        receipt = await interrupting
        assert isinstance(receipt, Receipt)
        assert dict(receipt.superseded) == {first.turn_id: WorkerId("w1")}
        assert await w.statuses(session) == ["cancelled", "ready"]
        dead = await w.row(first.turn_id)
        assert (dead["code"], dead["lease_owner"], dead["token"]) == ("turn.superseded", None, None)
        assert await w.kinds(session) == []
        assert (await w.claim("w2")).turn_id == receipt.turn_id


async def scenario_open_after_an_interruption(url: str) -> None:
    """(4) The other way round: an open that comes after the interruption opens nothing."""
    async with world(url) as w:
        session = await w.session()
        await w.admit(session)
        claim = await w.claim()
        receipt = await interrupt(w, session)
        assert isinstance(await outcome(w.open(claim)), TurnClosed)
        assert await w.kinds(session) == []
        assert await w.statuses(session) == ["cancelled", "ready"]
        opened = await outcome(w.open(await w.claim("w2")))
        assert not isinstance(opened, Exception)
        assert (await w.head(session)).open is not None
        assert (await w.row(receipt.turn_id))["number"] == 1


async def scenario_inbox_turn_is_interrupted_unopened(url: str) -> None:
    """(5) The interrupting turn is cancelled in its turn: the item that waited is still answered."""
    async with world(url) as w:
        claim = await w.held_turn()
        session = claim.session_id
        waiting = await inbox_turn(w, session)
        receipt = await interrupt(w, session)
        assert await w.statuses(session) == ["ended", "cancelled", "ready", "queued"]
        assert (await w.row(waiting))["code"] == "turn.superseded"
        await w.queue.cancel(receipt.turn_id, OWNER)
        assert await w.statuses(session) == ["ended", "cancelled", "cancelled", "ready"]
        follower = await w.claim("w2")
        assert (follower.origin, follower.turn_id != waiting, follower.message) == ("inbox", True, None)
        await w.open(follower, "item")
        await w.end(follower)
        assert await w.waiting(session) == []


async def scenario_inbox_turn_is_interrupted_while_open(url: str) -> None:
    """(5) An open inbox turn ends interrupted, no attempt of it is counted, and one like it follows the new turn."""
    async with world(url) as w:
        session = await w.session()
        waiting = await inbox_turn(w, session)
        claim = await w.claim()
        await w.open(claim, "item")
        await interrupt(w, session)
        ended = await w.row(waiting)
        assert (ended["status"], ended["outcome"], ended["code"]) == (
            "ended",
            "interrupted",
            "turn.superseded",
        )
        assert [item.attempts for item in await w.inbox.waiting(session, OWNER)] == [0]
        assert await w.kinds(session) == ["inbox.queued", "turn.started", "turn.ended"]
        assert await w.statuses(session) == ["ended", "ready", "queued"]


async def scenario_interruption_without_items_leaves_no_inbox_turn(url: str) -> None:
    """Nothing waits any more: the inbox turn is ended and none takes its place."""
    async with world(url) as w:
        claim = await w.held_turn()
        await inbox_turn(w, claim.session_id)
        await w.rows("DELETE FROM inbox_items WHERE session_id = %s", claim.session_id)
        await w.rows("UPDATE sessions SET inbox_waiting = 0 WHERE id = %s", claim.session_id)
        await interrupt(w, claim.session_id)
        assert await w.statuses(claim.session_id) == ["ended", "cancelled", "ready"]


LOCKS: Final = (
    "PERFORM 1 FROM turns t WHERE t.session_id = p_head.id AND t.status IN ('queued', 'ready', 'running', 'waiting')\n"
    "    ORDER BY t.id FOR NO KEY UPDATE;"
)
SPARED: Final = "AND t.id IS DISTINCT FROM p_head.open_turn"

PROOFS: list[tuple[Scenario, Mutation]] = [
    (
        scenario_claim_commits_while_an_interruption_waits,
        mutation("holders are read before the locks", "turn_supersede_v1", (LOCKS, "")),
    ),
    (
        scenario_claim_commits_while_an_interruption_waits,
        mutation(
            "claimed rows are spared", "turn_supersede_v1", (SPARED, SPARED + " AND t.status <> 'running'")
        ),
    ),
    (
        scenario_open_after_an_interruption,
        mutation(
            "open trusts its claim",
            "turn_open_v3",
            ("turn_fence_holds_v1(v_turn, p_epoch, p_token, v_now)", "true"),
        ),
    ),
    (
        scenario_inbox_turn_is_interrupted_unopened,
        mutation(
            "the inbox turn is forgotten",
            "turn_admit_v3",
            ("IF v_inbox IS NOT NULL THEN PERFORM turn_requeue_inbox_v1(v_inbox); END IF;", ""),
        ),
    ),
    (
        scenario_inbox_turn_is_interrupted_while_open,
        mutation(
            "an inbox turn is cancelled as a user's",
            "turn_supersede_v1",
            ("ELSIF v_open.origin = 'inbox'", "ELSIF false"),
        ),
    ),
    (
        scenario_interruption_without_items_leaves_no_inbox_turn,
        mutation(
            "an inbox turn always follows",
            "inbox_follow_v1",
            ("IF v_head.inbox_waiting = 0 THEN RETURN NULL; END IF;", ""),
            ("IF NOT FOUND THEN RETURN NULL; END IF;", ""),
        ),
    ),
]


@pytest.mark.behaviour("API-02")
async def test_claim_that_commits_while_an_interruption_waits_is_cancelled(database_url: str) -> None:
    await scenario_claim_commits_while_an_interruption_waits(database_url)


async def test_open_after_an_interruption_finds_its_turn_gone(database_url: str) -> None:
    await scenario_open_after_an_interruption(database_url)


async def test_inbox_item_is_answered_though_its_turn_and_the_interrupting_one_were_ended(
    database_url: str,
) -> None:
    await scenario_inbox_turn_is_interrupted_unopened(database_url)


async def test_open_inbox_turn_is_interrupted_uncounted_and_followed(database_url: str) -> None:
    await scenario_inbox_turn_is_interrupted_while_open(database_url)


async def test_interruption_leaves_no_inbox_turn_without_items(database_url: str) -> None:
    await scenario_interruption_without_items_leaves_no_inbox_turn(database_url)


@pytest.mark.mutation
@pytest.mark.parametrize(("scenario", "change"), [pytest.param(s, m, id=m.name) for s, m in PROOFS])
async def test_scenario_fails_without_its_rule(
    database_url: str, scenario: Scenario, change: Mutation
) -> None:
    await prove(database_url, scenario, change)
