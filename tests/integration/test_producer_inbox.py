"""Delivering over HTTP: receipts, repeats, refusals with their places, and who may deliver (API-08)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from producer.inbox.delivering import deliver_item
from producer.inbox.wire import DeliveryRequest
from shared.agents import Agent, App
from shared.domain.errors import StoreUnavailable
from shared.domain.failpoints import FailpointError, Failpoints
from shared.domain.ids import OwnerId, SessionId
from shared.inbox.message import CONTENT_MAX_BYTES
from shared.inbox.port import Delivered, Delivery, Inbox
from shared.wakes.inproc import InprocWakes
from tests.support.openapi import count_rows
from tests.support.producers import (
    calling,
    claim_turn,
    create_session,
    end_turn,
    open_turn,
    running_producer,
)

ITEM: dict[str, Any] = {"id": "build-17", "source": "ci", "content": "Build 17 failed."}


@pytest.mark.behaviour("API-08", "INB-01", "INB-02", "INB-35")
async def test_a_delivery_is_durable_rings_for_its_turn_and_answers_its_repeat_as_the_first(
    database_url: str,
) -> None:
    wakes = InprocWakes()
    async with calling(database_url, wakes=wakes) as (_producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/inbox"
        first = await client.post(path, json=ITEM | {"meta": {"build": 17}})
        assert first.status_code == 202
        told = first.json()
        assert (told["session_id"], told["id"], told["seq"]) == (session, "build-17", 1)
        assert (told["pending"], told["duplicate"]) == (1, False)
        assert wakes.rings == [("turns", (told["turn_id"],))]
        turn = (await client.get(told["links"]["turn"])).json()
        assert (turn["origin"], turn["status"], turn["agent"], turn["agent_revision"]) == (
            "inbox",
            "ready",
            "small",
            "1",
        )
        again = await client.post(path, json=ITEM)
        assert again.status_code == 200
        assert again.json() == told | {"duplicate": True}
        head = (await client.get(f"/v1/sessions/{session}")).json()
        assert (head["inbox_waiting"], head["seq"]) == (1, 1)
        other = await client.post(path, json=ITEM | {"content": "other"})
        assert (other.status_code, other.json()["code"]) == (422, "turn.key-conflict")


@pytest.mark.behaviour("API-08", "INB-30")
async def test_an_item_beside_a_turn_that_runs_names_no_turn_and_follows_its_end(database_url: str) -> None:
    wakes = InprocWakes()
    async with calling(database_url, wakes=wakes) as (producer, client):
        session = await create_session(client)
        await client.post(f"/v1/sessions/{session}/turns", json={"message": "x", "agent": "other"})
        claim = await claim_turn(producer.parts)
        await open_turn(producer.parts, claim)
        wakes.rings.clear()
        told = (await client.post(f"/v1/sessions/{session}/inbox", json=ITEM)).json()
        assert (told["turn_id"], told["links"], told["pending"], wakes.rings) == (None, None, 1, [])
        promoted = await end_turn(producer.parts, claim, "done")
        turn = (await client.get(f"/v1/turns/{promoted}")).json()
        # Nobody named who answers: the agent of the session's last turn does.
        assert (turn["origin"], turn["status"], turn["agent"], turn["agent_revision"]) == (
            "inbox",
            "ready",
            "other",
            "2",
        )
        cancelled = (await client.post(f"/v1/turns/{promoted}/cancel")).json()
        assert (cancelled["cancelled"], cancelled["reason"]) == (False, "inbox")


@pytest.mark.behaviour("API-08", "INB-30")
async def test_a_turn_that_is_lost_with_its_worker_goes_as_the_agent_says_that_the_item_names(
    database_url: str,
) -> None:
    once = Agent(name="once", instructions="Pay.", on_worker_loss="interrupt")
    app = App([Agent(name="small", instructions="Answer."), once])
    async with calling(database_url, app=app) as (producer, client):
        session = await create_session(client)
        await client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})
        claim = await claim_turn(producer.parts)
        await open_turn(producer.parts, claim)
        await client.post(f"/v1/sessions/{session}/inbox", json=ITEM | {"agent": "once"})
        await end_turn(producer.parts, claim, "done")
        inbox = await claim_turn(producer.parts)
        assert (claim.on_worker_loss, inbox.origin) == ("continue", "inbox")
        assert (inbox.agent, inbox.on_worker_loss) == ("once", "interrupt")


@pytest.mark.behaviour("API-08", "API-12", "INB-03")
async def test_an_inbox_that_is_full_says_when_to_come_again_and_stores_nothing(database_url: str) -> None:
    async with calling(database_url, inbox_max_pending=2) as (_producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/inbox"
        statuses = [(await client.post(path, json=ITEM | {"id": f"{n}"})).status_code for n in range(2)]
        before = count_rows(database_url)
        full = await client.post(path, json=ITEM | {"id": "one-more"})
        assert (statuses, full.status_code, full.json()["code"]) == ([202, 202], 429, "inbox.full")
        assert int(full.headers["Retry-After"]) >= 1
        assert full.json()["fields"]["session"] == session
        assert count_rows(database_url) == before
        assert (await client.post(path, json=ITEM | {"id": "0"})).status_code == 200


WRONG: tuple[tuple[str, dict[str, Any], int, str], ...] = (
    ("no id", {"id": None}, 422, "/id"),
    ("an empty id", {"id": ""}, 422, "/id"),
    ("a long id", {"id": "x" * 257}, 422, "/id"),
    ("a task's id", {"id": "task:1"}, 422, "/id"),
    ("a source with a line", {"source": "a\nb"}, 422, "/source"),
    ("no content", {"content": ""}, 422, "/content"),
    ("content with a NUL", {"content": "a\x00"}, 422, "/content"),
    ("a large content", {"content": "ä" * (CONTENT_MAX_BYTES // 2 + 1)}, 413, "/content"),
    ("content that is no text", {"content": {"text": "x"}}, 422, "/content"),
    ("an agent of nobody", {"agent": "nobody"}, 422, "/agent"),
    ("meta that is none", {"meta": [1]}, 422, "/meta"),
    ("a field that is known nowhere", {"priority": "normal"}, 422, "/priority"),
)


@pytest.mark.behaviour("API-08", "API-12")
async def test_what_breaks_a_bound_is_refused_with_its_place_and_stores_nothing(database_url: str) -> None:
    async with calling(database_url) as (_producer, client):
        session = await create_session(client)
        before = count_rows(database_url)
        for what, change, status, pointer in WRONG:
            answer = await client.post(f"/v1/sessions/{session}/inbox", json=ITEM | change)
            assert answer.status_code == status, what
            assert pointer in [e.get("pointer") for e in answer.json()["errors"]], what
        assert count_rows(database_url) == before


@pytest.mark.behaviour("API-08", "API-17")
async def test_another_owner_finds_no_inbox_and_a_rate_bounds_deliveries(database_url: str) -> None:
    async with calling(database_url, writes_per_s=0.001, writes_burst=3) as (producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/inbox"
        async with producer.client(await producer.key_for("bob")) as bob:
            foreign, nothing = [
                (await bob.post(p, json=ITEM)).json() for p in (path, "/v1/sessions/ses_1/inbox")
            ]
        assert (
            (foreign["status"], foreign["code"])
            == (404, "session.missing")
            == (
                nothing["status"],
                nothing["code"],
            )
        )
        answers = [await client.post(path, json=ITEM | {"id": f"{n}"}) for n in range(3)]
        assert [a.status_code for a in answers] == [202, 202, 429]
        assert answers[-1].json()["code"] == "rate.limited"
        assert (await client.get(f"/v1/sessions/{session}")).json()["inbox_waiting"] == 2


@pytest.mark.behaviour("API-08", "API-15")
async def test_a_producer_that_goes_away_takes_no_delivery(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        producer.parts.traffic.begin_drain()
        refused = await client.post(f"/v1/sessions/{session}/inbox", json=ITEM)
        assert (refused.status_code, int(refused.headers["Retry-After"])) == (503, 1)
        assert count_rows(database_url)["records"] == 0


@pytest.mark.behaviour("API-08")
async def test_a_delivery_whose_answer_was_lost_is_found_by_its_id(database_url: str) -> None:
    async def fail() -> None:
        raise FailpointError("delivery.committed")

    failpoints = Failpoints({"delivery.committed": fail})
    async with (
        running_producer(database_url, failpoints=failpoints) as one,
        running_producer(database_url) as two,
    ):
        key = await one.key_for("ann")
        async with one.client(key) as broken, two.client(key) as whole:
            session = await create_session(whole)
            path = f"/v1/sessions/{session}/inbox"
            assert (await broken.post(path, json=ITEM)).status_code == 500
            found = await whole.post(path, json=ITEM)
            assert (found.status_code, found.json()["duplicate"], found.json()["pending"]) == (200, True, 1)


class LosesFirstAnswer:
    """An inbox whose first delivery commits and then does not answer."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.deliveries: list[Delivery] = []

    async def deliver(self, delivery: Delivery, *, max_pending: int = 20) -> Delivered:
        delivered = await self._inbox.deliver(delivery, max_pending=max_pending)
        self.deliveries.append(delivery)
        if len(self.deliveries) == 1:
            raise StoreUnavailable("the answer was lost")
        return delivered


@pytest.mark.behaviour("API-08")
async def test_a_commit_whose_answer_was_lost_is_found_by_the_producers_second_try(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        session = SessionId(await create_session(client))
        inbox = LosesFirstAnswer(producer.parts.inbox)
        parts = replace(producer.parts, inbox=cast(Inbox, inbox))
        request = DeliveryRequest.model_validate(ITEM)
        delivered = await deliver_item(parts, OwnerId("ann"), session, request)
        assert (delivered.seq, delivered.pending, len(inbox.deliveries)) == (1, 1, 2)
        assert (await client.get(f"/v1/sessions/{session}")).json()["seq"] == 1
