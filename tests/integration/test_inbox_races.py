"""Deliveries that race what closes a turn, and each other, over several connections of several processes' kind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from shared.conformance.turn_stage import commit_id, ended, started
from shared.database.pool import Database
from shared.domain.ids import OwnerId, SessionId, WorkerId, new_run_id, new_session_id, new_turn_id
from shared.inbox.port import Delivered, Delivery
from shared.inbox.postgres import PostgresInbox
from shared.sessions.log import NewSession
from shared.sessions.postgres import PostgresSessionLog
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits, Claim, ClaimRequest, Ended, Ending

OWNER = OwnerId("ann")
ROUNDS = 1_000
LANES = 8


@dataclass(frozen=True, slots=True)
class Process:
    """What a process opens for itself."""

    queue: PostgresTurnQueue
    inbox: PostgresInbox
    log: PostgresSessionLog

    @classmethod
    async def start(cls, url: str) -> tuple[Process, Database]:
        database = Database(url, connections=LANES, wait_s=30)
        await database.open()
        return cls(
            PostgresTurnQueue(database), PostgresInbox(database), PostgresSessionLog(database)
        ), database


async def open_turn(process: Process, lane: int) -> Claim:
    """Make a session of a lane's own with one open turn."""
    session = (await process.log.create(NewSession(new_session_id(), OWNER))).session_id
    revision = f"lane {lane}"
    asked = Admission(new_turn_id(), new_run_id(), session, OWNER, {"text": "hi"}, agent_revision=revision)
    await process.queue.admit(asked, AdmissionLimits())
    [claim] = await process.queue.claim(
        ClaimRequest(WorkerId(f"w{lane}"), 1, revisions=(revision,), lease_s=600)
    )
    await process.queue.open(claim, commit_id(claim, "o"), [started(claim)])
    return claim


async def end(process: Process, claim: Claim) -> Ended:
    return await process.queue.end(claim, commit_id(claim, "e"), [ended()], Ending("completed"))


async def race(one: Process, two: Process, lane: int, rounds: int) -> int:
    """Deliver while the turn ends, over and over; return how often the end saw the item."""
    counted = 0
    for _ in range(rounds):
        claim = await open_turn(one, lane)
        answer, given = await asyncio.gather(
            end(one, claim), two.inbox.deliver(Delivery(claim.session_id, OWNER, "item", "mail", "x"))
        )
        # Either the closing commit counts it, or the delivery finds the session free and names the turn to ring for.
        assert (answer.pending == 1) == (given.turn_id is None)
        promoted = answer.promoted if answer.pending else given.turn_id
        assert promoted is not None
        [inbox] = await one.queue.claim(
            ClaimRequest(WorkerId(f"w{lane}"), 5, revisions=(f"lane {lane}",), lease_s=600)
        )
        assert (inbox.turn_id, inbox.origin) == (promoted, "inbox")
        await one.queue.open(inbox, commit_id(inbox, "o"), [started(inbox)], claims=["item"])
        assert (await end(one, inbox)).pending == 0
        counted += answer.pending
    return counted


@pytest.mark.behaviour("INB-30", "INB-31")
async def test_in_a_thousand_races_with_the_closing_commit_no_item_waits_unnoticed(database_url: str) -> None:
    one, first = await Process.start(database_url)
    two, second = await Process.start(database_url)
    try:
        counted = await asyncio.gather(*(race(one, two, lane, ROUNDS // LANES) for lane in range(LANES)))
    finally:
        await first.close()
        await second.close()
    assert 0 < sum(counted) < ROUNDS, "both orders happened"


@pytest.mark.behaviour("INB-02")
async def test_the_same_id_from_two_processes_at_once_and_after_it_was_done_is_one_item_and_one_turn(
    database_url: str,
) -> None:
    one, first = await Process.start(database_url)
    two, second = await Process.start(database_url)
    try:
        claim = await open_turn(one, 0)
        session: SessionId = claim.session_id
        await end(one, claim)
        delivery = Delivery(session, OWNER, "item", "mail", "x")
        answers: list[Delivered] = await asyncio.gather(
            *(process.inbox.deliver(delivery) for process in (one, two) for _ in range(10))
        )
        assert [answer.duplicate for answer in answers].count(False) == 1
        assert {(answer.seq, answer.pending) for answer in answers} == {(answers[0].seq, 1)}
        claims = await two.queue.claim(ClaimRequest(WorkerId("w"), 5, revisions=("lane 0",), lease_s=600))
        assert [inbox.origin for inbox in claims] == ["inbox"]
        await two.queue.open(claims[0], commit_id(claims[0], "o"), [started(claims[0])], claims=["item"])
        await end(two, claims[0])
        again = await one.inbox.deliver(delivery)
        assert (again.duplicate, again.pending, again.turn_id) == (True, 0, None)
        assert len(await one.log.read(session, kinds=["inbox.queued"])) == 1
    finally:
        await first.close()
        await second.close()
