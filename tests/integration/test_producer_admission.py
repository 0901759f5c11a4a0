"""Admitting turns over HTTP: receipts, keys, two producers, and what is away meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import psycopg
import pytest

from producer.admission import admit_turn
from producer.wire import TurnRequest
from shared.database.embedded import EmbeddedServers
from shared.domain.errors import StoreUnavailable
from shared.domain.failpoints import FailpointError, Failpoints
from shared.domain.ids import OwnerId, SessionId
from shared.turns.admission import TurnAdmission
from shared.turns.queue import Admission, AdmissionLimits, Receipt, TurnQueue
from shared.wakes.inproc import InprocWakes
from shared.wakes.opening import open_wakes
from tests.support.brokers import free_port
from tests.support.producers import (
    await_status,
    calling,
    claim_turn,
    create_session,
    end_turn,
    open_turn,
    running_producer,
)
from tests.support.waiting import await_until


def count_rows(database_url: str, table: str) -> int:
    with psycopg.connect(database_url) as connection:
        row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert row is not None
        return int(row[0])


@pytest.mark.behaviour("API-02", "API-20")
async def test_an_admission_is_one_transaction_answered_with_its_receipt_and_rung(database_url: str) -> None:
    wakes = InprocWakes()
    async with calling(database_url, wakes=wakes) as (producer, client):
        session = await create_session(client)
        before = producer.parts.database.counters.snapshot()
        response = await client.post(
            f"/v1/sessions/{session}/turns",
            json={"message": {"text": "hello"}, "command": {"name": "x"}, "meta": {"a": 1}},
        )
        assert response.status_code == 202
        receipt = response.json()
        assert (receipt["session_id"], receipt["position"], receipt["after"]) == (session, 1, 0)
        assert (receipt["status"], receipt["duplicate"]) == ("ready", False)
        assert response.headers["Location"] == receipt["links"]["turn"]
        assert (await client.get(receipt["links"]["turn"])).json()["turn_id"] == receipt["turn_id"]
        after = producer.parts.database.counters.snapshot()
        spent = {u: (c.calls, c.round_trips, c.commits) for u, c in after.items() if u not in before}
        assert spent == {"turn.admit": (1, 1, 1), "turn.get": (1, 1, 0)}
    assert wakes.rings == [("turns", (receipt["turn_id"],))]


@pytest.mark.behaviour("API-02")
async def test_a_turn_behind_another_is_queued_and_rings_nobody(database_url: str) -> None:
    wakes = InprocWakes()
    async with calling(database_url, wakes=wakes) as (_producer, client):
        session = await create_session(client)
        for position, status in ((1, "ready"), (2, "queued")):
            receipt = (await client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})).json()
            assert (receipt["position"], receipt["status"]) == (position, status)
    assert len(wakes.rings) == 1


@pytest.mark.behaviour("API-02")
async def test_what_is_asked_of_a_turn_reaches_the_worker_that_claims_it(database_url: str) -> None:
    deadline = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    body: dict[str, Any] = {
        "message": "hello",
        "agent": "other",
        "command": {"name": "x"},
        "meta": {"a": [1]},
        "priority": "interactive",
        "deadline": deadline.isoformat(),
        "max_duration_s": 5,
    }
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        receipt = (await client.post(f"/v1/sessions/{session}/turns", json=body)).json()
        claim = await claim_turn(producer.parts, receipt["turn_id"])
        turn = (await client.get(receipt["links"]["turn"])).json()
    assert (claim.message, claim.command, claim.meta) == ({"text": "hello"}, {"name": "x"}, {"a": [1]})
    assert (claim.agent, claim.agent_revision, claim.max_duration_s) == ("other", "2", 5.0)
    assert (turn["priority"], datetime.fromisoformat(turn["deadline"])) == ("interactive", deadline)


@pytest.mark.behaviour("API-02")
async def test_reject_answers_busy_beside_an_unfinished_turn(database_url: str) -> None:
    async with calling(database_url) as (_producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/turns"
        first = (await client.post(path, json={"message": "x"})).json()
        refused = await client.post(path, json={"message": "y", "on_busy": "reject"})
        assert (refused.status_code, refused.json()["code"]) == (409, "session.busy")
        assert refused.json()["fields"] == {"turn": first["turn_id"]}
    assert count_rows(database_url, "turns") == 1


@pytest.mark.behaviour("API-03")
async def test_the_same_key_answers_the_first_receipt_and_other_content_is_a_conflict(
    database_url: str,
) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/turns"
        first = await client.post(path, json={"message": "x", "key": "k"})
        again = await client.post(path, json={"message": "x"}, headers={"Idempotency-Key": "k"})
        assert (first.status_code, again.status_code) == (202, 200)
        assert again.json() == first.json() | {"duplicate": True}
        claim = await claim_turn(producer.parts)
        await open_turn(producer.parts, claim)
        await end_turn(producer.parts, claim, "done")
        late = await client.post(path, json={"message": "x", "key": "k"})
        assert (late.status_code, late.json()["status"]) == (200, "ended")
        assert [receipt.json()["finished"] for receipt in (first, again, late)] == [False, False, True]
        other = await client.post(path, json={"message": "y", "key": "k"})
        assert (other.status_code, other.json()["code"]) == (422, "turn.key-conflict")
        both = await client.post(
            path, json={"message": "x", "key": "k"}, headers={"Idempotency-Key": "other"}
        )
        assert (both.status_code, both.json()["errors"][0]["parameter"]) == (422, "Idempotency-Key")
    assert count_rows(database_url, "turns") == 1


@pytest.mark.behaviour("API-03")
async def test_twenty_equal_requests_to_two_producers_get_the_one_receipt(database_url: str) -> None:
    async with running_producer(database_url) as one, running_producer(database_url) as two:
        key = await one.key_for("ann")
        async with one.client(key) as left, two.client(key) as right:
            session = await create_session(left)
            answers = await asyncio.gather(
                *(
                    client.post(
                        f"/v1/sessions/{session}/turns",
                        json={"message": "x"},
                        headers={"Idempotency-Key": "same"},
                    )
                    for _ in range(10)
                    for client in (left, right)
                )
            )
    assert Counter(a.status_code for a in answers) == {202: 1, 200: 19}
    assert len({(a.json()["turn_id"], a.json()["run_id"], a.json()["position"]) for a in answers}) == 1
    assert count_rows(database_url, "turns") == 1


@pytest.mark.behaviour("API-01")
async def test_two_producers_make_one_session_of_one_key(database_url: str) -> None:
    async with running_producer(database_url) as one, running_producer(database_url) as two:
        key = await one.key_for("ann")
        async with one.client(key) as left, two.client(key) as right:
            answers = await asyncio.gather(
                *(
                    client.post("/v1/sessions", json={"title": "t"}, headers={"Idempotency-Key": "k"})
                    for _ in range(5)
                    for client in (left, right)
                )
            )
            other = await left.post("/v1/sessions", json={"title": "u"}, headers={"Idempotency-Key": "k"})
    assert Counter(a.status_code for a in answers) == {201: 1, 200: 9}
    assert len({a.json()["session_id"] for a in answers}) == 1
    assert (other.status_code, other.json()["code"]) == (409, "session.exists")
    assert count_rows(database_url, "sessions") == 1


@pytest.mark.behaviour("API-02", "API-14")
async def test_a_broker_that_is_away_delays_nothing_and_is_reported(database_url: str) -> None:
    broker_url = f"redis://127.0.0.1:{free_port()}/0"
    wakes = open_wakes(broker_url, bound_s=0.25)
    async with calling(database_url, wakes=wakes, broker_url=broker_url) as (_producer, client):
        session = await create_session(client)
        response = await client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})
        assert response.status_code == 202
        await await_until(lambda: not wakes.stats().broker_ok, what="a failed publish")
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["ready"], ready.json()["broker_ok"]) == (200, True, False)
    assert count_rows(database_url, "turns") == 1


@pytest.mark.behaviour("API-12", "API-14")
async def test_without_the_database_nothing_is_receipted_and_afterwards_all_works(
    own_servers: EmbeddedServers,
) -> None:
    url = own_servers.database_url
    async with calling(url, connection_wait_s=1.0) as (_producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/turns"
        await asyncio.to_thread(own_servers.stop_postgres)
        refused = await client.post(path, json={"message": "x"}, headers={"Idempotency-Key": "k"})
        assert refused.status_code == 503
        assert refused.json()["code"] in ("store.unavailable", "store.busy")
        assert int(refused.headers["Retry-After"]) >= 1
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        assert "turnkeeper_store_up 0.0" in (await client.get("/metrics")).text
        assert (await client.get("/healthz")).status_code == 200
        await asyncio.to_thread(own_servers.start_postgres)
        await await_status(client, "/readyz", 200)
        admitted = await client.post(path, json={"message": "x"}, headers={"Idempotency-Key": "k"})
        assert admitted.status_code == 202
    assert count_rows(url, "turns") == 1


@pytest.mark.behaviour("API-02", "API-03")
async def test_a_producer_that_fails_between_commit_and_answer_leaves_a_turn_that_its_key_finds(
    database_url: str,
) -> None:
    async def fail() -> None:
        raise FailpointError("admission.committed")

    failpoints = Failpoints({"admission.committed": fail})
    async with (
        running_producer(database_url, failpoints=failpoints) as one,
        running_producer(database_url) as two,
    ):
        key = await one.key_for("ann")
        async with one.client(key) as broken, two.client(key) as whole:
            session = await create_session(whole)
            path, keyed = f"/v1/sessions/{session}/turns", {"Idempotency-Key": "k"}
            lost = await broken.post(path, json={"message": "x"}, headers=keyed)
            assert (lost.status_code, lost.json()["code"]) == (500, "internal")
            assert "Traceback" not in lost.text
            found = await whole.post(path, json={"message": "x"}, headers=keyed)
            assert (found.status_code, found.json()["duplicate"]) == (200, True)
    assert count_rows(database_url, "turns") == 1


@pytest.mark.behaviour("API-02")
async def test_an_admission_whose_connection_is_cut_is_tried_again_and_stored_once(database_url: str) -> None:
    async with calling(database_url) as (_producer, client):
        session = await create_session(client)
        with (
            psycopg.connect(database_url, autocommit=True) as admin,
            psycopg.connect(database_url) as holder,
        ):
            holder.execute("SELECT 1 FROM sessions WHERE id = %s FOR UPDATE", [session])
            posting = asyncio.create_task(client.post(f"/v1/sessions/{session}/turns", json={"message": "x"}))
            waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            rows = await await_until(lambda: admin.execute(waiting).fetchall(), what="a waiting admission")
            # The connection is cut while the statement waits: the producer cannot know what became of it.
            admin.execute("SELECT pg_terminate_backend(%s)", [rows[0][0]])
            holder.rollback()
        response = await posting
        assert (response.status_code, response.json()["duplicate"]) == (202, False)
    assert count_rows(database_url, "turns") == 1


class LosesFirstAnswer:
    """A turn queue whose first admission commits and then does not answer."""

    def __init__(self, queue: TurnQueue) -> None:
        self._queue = queue
        self.admissions: list[Admission] = []

    async def admit(
        self, admission: Admission, limits: AdmissionLimits, *, admit: TurnAdmission | None = None
    ) -> Receipt:
        receipt = await self._queue.admit(admission, limits)
        self.admissions.append(admission)
        if len(self.admissions) == 1:
            raise StoreUnavailable("the answer was lost")
        return receipt


@pytest.mark.behaviour("API-02")
async def test_a_commit_whose_answer_was_lost_is_found_by_the_second_try(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        session = SessionId(await create_session(client))
        queue = LosesFirstAnswer(producer.parts.queue)
        parts = replace(producer.parts, queue=cast(TurnQueue, queue))
        request = TurnRequest.model_validate({"message": "x"})
        receipt = await admit_turn(parts, OwnerId("ann"), session, request, None)
    assert [a.turn_id for a in queue.admissions] == [receipt.turn_id] * 2
    assert (receipt.duplicate, receipt.status) == (False, "ready")
    assert count_rows(database_url, "turns") == 1


@pytest.mark.behaviour("API-12")
async def test_a_session_with_too_many_queued_turns_says_when_to_come_again(database_url: str) -> None:
    async with calling(database_url, queued_turns_per_session=2) as (_producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/turns"
        statuses = [(await client.post(path, json={"message": "x"})).status_code for _ in range(3)]
        full = await client.post(path, json={"message": "x"})
        assert statuses == [202, 202, 429]
        assert full.json()["code"] == "turn.queue-full"
        assert int(full.headers["Retry-After"]) >= 1


@pytest.mark.behaviour("API-07")
async def test_a_cancel_is_durable_says_what_it_did_and_rings_for_what_waited(database_url: str) -> None:
    wakes = InprocWakes()
    async with calling(database_url, wakes=wakes) as (producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/turns"
        first, second, third = [(await client.post(path, json={"message": "x"})).json() for _ in range(3)]
        claim = await claim_turn(producer.parts, first["turn_id"])
        await open_turn(producer.parts, claim)
        wakes.rings.clear()
        running = (await client.post(first["links"]["cancel"], json={})).json()
        assert running == {
            "cancelled": True,
            "reason": "cancelled",
            "status": "ended",
            "outcome": "cancelled",
            "code": None,
        }
        assert wakes.rings == [("turns", ())]
        assert (await client.get(second["links"]["turn"])).json()["status"] == "ready"
        queued = (await client.post(third["links"]["cancel"])).json()
        assert (queued["cancelled"], queued["status"], queued["outcome"]) == (True, "cancelled", None)
        again = (await client.post(first["links"]["cancel"])).json()
        assert (again["cancelled"], again["reason"], again["outcome"]) == (True, "cancelled", "cancelled")
        claim = await claim_turn(producer.parts, second["turn_id"])
        await open_turn(producer.parts, claim)
        await end_turn(producer.parts, claim, "done")
        late = (await client.post(second["links"]["cancel"])).json()
        assert (late["cancelled"], late["outcome"]) == (False, "completed")


@pytest.mark.behaviour("API-07")
async def test_a_wait_ends_with_the_turn_or_with_its_time(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        turn = (await client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})).json()
        wait = f"{turn['links']['turn']}/wait"
        for timeout in ("0", "0.05"):
            early = (await client.get(wait, params={"timeout": timeout})).json()
            assert (early["finished"], early["status"]) == (False, "ready")
        waiting = asyncio.create_task(client.get(wait, params={"timeout": "60"}))
        claim = await claim_turn(producer.parts)
        await open_turn(producer.parts, claim)
        await end_turn(producer.parts, claim, "done")
        async with asyncio.timeout(10):
            done = (await waiting).json()
        assert (done["finished"], done["status"], done["outcome"]) == (True, "ended", "completed")
        assert (await client.get(wait, params={"timeout": "61"})).status_code == 422
