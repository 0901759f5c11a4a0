"""Many doors, sweeps and wakes at once on one session or row: the outcome that is documented, and never two active turns."""

from __future__ import annotations

import asyncio

import pytest

from shared.domain.errors import SessionBusy
from shared.domain.ids import SessionId
from shared.turns.queue import AdmissionLimits, OnBusy, Receipt
from tests.faults.world import World, admission, outcome, request, world

TURNS = 10
WAKES = 50
WORKERS = 4


async def admit_at_once(w: World, session: SessionId, on_busy: OnBusy) -> list[object]:
    """Admit ten turns at once; what each was answered, in the order in which they were asked."""
    asked = [admission(session, on_busy=on_busy) for _ in range(TURNS)]
    return await asyncio.gather(*(outcome(w.queue.admit(one, AdmissionLimits())) for one in asked))


async def run_all(w: World, session: SessionId) -> list[int]:
    """Claim, open and end until nothing is left; the positions in the order in which they ran, one at a time."""
    ran = []
    while claims := await w.claims(places=TURNS):
        assert len(claims) == 1
        assert (await w.statuses(session)).count("running") == 1
        ran.append((await w.row(claims[0].turn_id))["position"])
        await w.open(claims[0])
        await w.end(claims[0])
    return ran


@pytest.mark.behaviour("SES-38")
async def test_of_ten_turns_at_once_under_reject_one_runs_and_nine_are_told(database_url: str) -> None:
    async with world(database_url, connections=TURNS) as w:
        session = await w.session()
        answers = await admit_at_once(w, session, "reject")
        assert sum(isinstance(answer, Receipt) for answer in answers) == 1
        assert sum(isinstance(answer, SessionBusy) for answer in answers) == TURNS - 1
        assert await run_all(w, session) == [1]


@pytest.mark.behaviour("SES-39", "DST-14")
async def test_ten_turns_at_once_under_enqueue_run_one_after_another_in_their_order(
    database_url: str,
) -> None:
    async with world(database_url, connections=TURNS) as w:
        session = await w.session()
        answers = await admit_at_once(w, session, "enqueue")
        positions = sorted(answer.position for answer in answers if isinstance(answer, Receipt))
        assert positions == list(range(1, TURNS + 1))
        assert await w.statuses(session) == ["ready", *["queued"] * (TURNS - 1)]
        assert await run_all(w, session) == positions
        assert await w.kinds(session) == ["turn.started", "turn.ended"] * TURNS


async def test_of_ten_turns_at_once_under_interrupt_the_last_one_runs_and_the_others_are_superseded(
    database_url: str,
) -> None:
    async with world(database_url, connections=TURNS) as w:
        session = await w.session()
        answers = await admit_at_once(w, session, "interrupt")
        assert all(isinstance(answer, Receipt) for answer in answers)
        assert await w.statuses(session) == [*["cancelled"] * (TURNS - 1), "ready"]
        codes = await w.rows("SELECT DISTINCT code FROM turns WHERE status = 'cancelled'")
        assert [row["code"] for row in codes] == ["turn.superseded"]
        assert await run_all(w, session) == [TURNS]


async def test_of_two_sweepers_on_one_snapshot_one_ends_each_dead_turn(database_url: str) -> None:
    async with world(database_url, connections=TURNS) as w, world(database_url, connections=TURNS) as other:
        dead = [await w.held_turn(on_worker_loss="interrupt") for _ in range(TURNS)]
        await w.expire(*(claim.turn_id for claim in dead))
        swept = await asyncio.gather(*(one.queue.reap() for one in (w, other, w, other)))
        assert sorted(view.turn_id for views in swept for view in views) == sorted(c.turn_id for c in dead)
        for claim in dead:
            assert await w.kinds(claim.session_id) == ["turn.started", "turn.ended"]


@pytest.mark.behaviour("DST-07")
async def test_one_wake_fifty_times_to_four_workers_hands_the_turn_out_once(database_url: str) -> None:
    async with world(database_url, connections=TURNS) as w:
        turn = await w.admit(await w.session())
        wakes = [request(f"w{n % WORKERS}", 1, hints=[turn.turn_id]) for n in range(WAKES)]
        claims = await asyncio.gather(*(w.queue.claim(wake) for wake in wakes))
        assert [claim.turn_id for found in claims for claim in found] == [turn.turn_id]
        assert (await w.row(turn.turn_id))["epoch"] == 1
