"""Resuming over HTTP: what may be resumed, by which key, and what a refusal says and stores."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from shared.turns.admission import TurnToAdmit
from tests.integration.test_producer_admission import count_rows
from tests.support.producers import Producer, calling, claim_turn, create_session, end_turn, open_turn
from tests.support.small_app import app as small_app


async def post(client: httpx2.AsyncClient, session: str, text: str = "x", **fields: Any) -> httpx2.Response:
    return await client.post(f"/v1/sessions/{session}/turns", json={"message": text} | fields)


async def run(producer: Producer, *, ends: bool = True) -> None:
    """Run the turn that is ready."""
    claim = await claim_turn(producer.parts)
    await open_turn(producer.parts, claim)
    if ends:
        await end_turn(producer.parts, claim, "done")


async def cut(producer: Producer, client: httpx2.AsyncClient, session: str, **fields: Any) -> str:
    """Admit a turn, open it, cancel it; return its id."""
    turn = str((await post(client, session, **fields)).json()["turn_id"])
    await run(producer, ends=False)
    assert (await client.post(f"/v1/turns/{turn}/cancel")).json()["cancelled"] is True
    return turn


def require_refused(response: httpx2.Response, session: str, turn: str, reason: str) -> None:
    assert response.status_code == 422, response.text
    problem = response.json()
    assert problem["code"] == "turn.not-resumable"
    assert problem["fields"] == {"session": session, "turn": turn, "reason": reason}


@pytest.mark.behaviour(
    "API-02", "RSM-01", "RSM-07", "RSM-16", "RSM-38", "RSM-40", "RSM-41", "RSM-42", "SES-130"
)
async def test_a_cancelled_turn_is_resumed_by_its_id_under_a_key_of_its_number(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        first = await cut(producer, client, session)
        answer = await post(client, session, "go on", resumes=first)
        assert (answer.status_code, answer.json()["status"]) == (202, "ready")
        again = await post(client, session, "go on", resumes=first)
        assert (again.status_code, again.json()["turn_id"]) == (200, answer.json()["turn_id"])
        for other in ({"message": "other", "resumes": first}, {"message": "go on", "key": "resume:1"}):
            conflict = await client.post(f"/v1/sessions/{session}/turns", json=other)
            assert (conflict.status_code, conflict.json()["code"]) == (422, "turn.key-conflict")
        await run(producer)
        turn = (await client.get(answer.json()["links"]["turn"])).json()
        assert (turn["number"], turn["key"], turn["resumes"]) == (2, "resume:1", first)
        assert (await client.get(f"/v1/turns/{first}")).json()["resumes"] is None
        require_refused(await post(client, session, resumes=first, key="k"), session, first, "superseded")
        second = turn["turn_id"]
        require_refused(await post(client, session, resumes=second), session, second, "finished")


@pytest.mark.behaviour("API-02", "API-12", "RSM-07", "RSM-08", "RSM-43")
async def test_an_id_that_is_no_opened_turn_of_the_session_is_missing_and_nothing_is_stored(
    database_url: str,
) -> None:
    async with calling(database_url) as (producer, client):
        session, other = await create_session(client), await create_session(client)
        elsewhere = await cut(producer, client, other)
        unopened = str((await post(client, session)).json()["turn_id"])
        await client.post(f"/v1/turns/{unopened}/cancel")
        before = [count_rows(database_url, table) for table in ("turns", "records", "session_keys")]
        for turn in (elsewhere, unopened, str(uuid.uuid4())):
            require_refused(await post(client, session, resumes=turn, key="k"), session, turn, "missing")
        async with producer.client(await producer.key_for("bob")) as bob:
            theirs = await create_session(bob)
            require_refused(await post(bob, theirs, resumes=elsewhere), theirs, elsewhere, "missing")
            absent = await post(bob, session, resumes=elsewhere)
            assert (absent.status_code, absent.json()["code"]) == (404, "session.missing")
        assert [count_rows(database_url, table) for table in ("turns", "records", "session_keys")] == before
        assert (await post(client, session, key="k")).status_code == 202, "its key was not taken"


@pytest.mark.behaviour("API-02", "RSM-12")
async def test_a_resume_beside_unfinished_turns_is_busy_waits_or_makes_way_as_it_was_asked(
    database_url: str,
) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        first = str((await post(client, session)).json()["turn_id"])
        await run(producer, ends=False)
        for on_busy in ("enqueue", "reject"):
            busy = await post(client, session, resumes=first, on_busy=on_busy)
            assert (busy.status_code, busy.json()["code"]) == (409, "session.busy")
        goes_on = await post(client, session, resumes=first, on_busy="interrupt")
        assert (goes_on.status_code, goes_on.json()["status"]) == (202, "ready")
        ended = (await client.get(f"/v1/turns/{first}")).json()
        assert (ended["outcome"], ended["code"]) == ("cancelled", "turn.superseded")
        waits = await post(client, session, resumes=first, key="second try")
        assert (waits.status_code, waits.json()["status"]) == (202, "queued")
        await run(producer)
        claim = await claim_turn(producer.parts, waits.json()["turn_id"])
        with pytest.raises(Exception, match="superseded"):
            await open_turn(producer.parts, claim)
        refused = (await client.get(waits.json()["links"]["turn"])).json()
        assert (refused["status"], refused["code"], refused["number"]) == (
            "refused",
            "turn.not-resumable",
            None,
        )
        stream = await client.get(waits.json()["links"]["events"])
        assert "event: end" in stream.text and "turn.not-resumable" in stream.text


@pytest.mark.behaviour("RSM-17", "RSM-13")
async def test_a_host_is_asked_about_a_resume_and_shown_which_and_not_about_one_that_names_no_turn(
    database_url: str,
) -> None:
    asked: list[TurnToAdmit] = []

    class Noting:
        async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
            asked.append(turn)
            await proceed()

    async with calling(database_url, app=replace(small_app, admission=Noting())) as (producer, client):
        session = await create_session(client)
        first = await cut(producer, client, session)
        asked.clear()
        await post(client, session, resumes=str(uuid.uuid4()))
        assert asked == []
        await post(client, session, resumes=first)
        assert [turn.resumes for turn in asked] == [1]


@pytest.mark.behaviour("RSM-40")
async def test_twenty_equal_resumes_at_once_get_one_receipt(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        first = await cut(producer, client, session)
        answers = await asyncio.gather(*(post(client, session, "go on", resumes=first) for _ in range(20)))
        assert sorted({answer.status_code for answer in answers}) == [200, 202]
        assert len({answer.json()["turn_id"] for answer in answers}) == 1
        assert count_rows(database_url, "turns") == 2
