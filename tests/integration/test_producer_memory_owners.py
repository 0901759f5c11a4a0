"""Intents and progress over HTTP, over real Postgres; and that nothing of one owner reaches another."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx2
import pytest

from shared.agents import Agent, App
from shared.domain.ids import OwnerId
from tests.support.memory_place import (
    ANN,
    BOB,
    CAT,
    DOCUMENTS,
    FACTS,
    PROFILE,
    RED,
    TEAL,
    ask,
    assert_refused,
    correction,
    memory_place,
    put,
)
from tests.support.producers import calling, create_session

# --- intents and progress ---


@pytest.mark.behaviour("API-09", "REM-02", "REM-03", "REM-05")
async def test_a_statement_is_admitted_once_and_followed_to_its_end(database_url: str) -> None:
    async with memory_place(database_url) as p:
        session = await p.world.session(OwnerId(ANN))
        await p.world.turn(session, TEAL, OwnerId(ANN))
        body = {"session_id": session, "seq": 1}
        admitted = await p.ann.post("/v1/memory/intents", json=body)
        assert (admitted.status_code, admitted.json()["status"]) == (202, "queued")
        where = admitted.headers["Location"]
        assert where == f"/v1/memory/intents/{admitted.json()['intent_id']}"
        again = await p.ann.post("/v1/memory/intents", json=body)
        assert (again.status_code, again.json()) == (202, admitted.json() | {"status": "duplicate"})
        [claim] = await p.world.claims("remember")
        assert p.wakes.rings == [("remember", (claim.job_id,))]
        assert (await p.ann.get(where)).json()["status"] == "running"
        await p.world.remembering().process(claim)
        await p.world.settle(claim)
        done = (await p.ann.get(where)).json()
        assert (done["status"], done["outcome"], done["why"]) == ("completed", "applied", None)
        assert (done["source"], done["document_id"]) == (body, "profile-1")
        assert (await p.ann.get(PROFILE)).json()["text"] == FACTS[TEAL][0].statement


@pytest.mark.behaviour("API-09", "REM-14", "REM-35")
async def test_what_is_no_statement_of_the_caller_is_refused_and_nothing_is_stored(database_url: str) -> None:
    async with memory_place(database_url) as p:
        session = await p.world.session(OwnerId(ANN))
        await p.world.turn(session, TEAL, OwnerId(ANN))
        pending = await p.world.session(OwnerId(ANN))
        await p.world.open_turn(pending, TEAL, OwnerId(ANN))
        refused = [
            (p.ann, session, 2, 422, "memory.processing", {"reason": "no-statement"}),
            (p.ann, session, 99, 422, "memory.processing", {"reason": "no-statement"}),
            (p.ann, session, 2**63 - 1, 422, "memory.processing", {"reason": "no-statement"}),
            (p.ann, pending, 1, 422, "memory.processing", {"reason": "turn-unended"}),
            (p.ann, "ses_nobody", 1, 404, "session.missing", {}),
            (p.bob, session, 1, 404, "session.missing", {}),
            (p.bob, session, 99, 404, "session.missing", {}),
        ]
        for client, place_, seq, status, code, fields in refused:
            body = {"session_id": place_, "seq": seq}
            assert_refused(await client.post("/v1/memory/intents", json=body), status, code, **fields)
        for bad in (0, -1, 2**63, 1.5, "1", True):
            wrong = {"session_id": session, "seq": bad}
            assert (await p.ann.post("/v1/memory/intents", json=wrong)).status_code == 422
        assert await p.world.rows("SELECT 1 AS one FROM memory_intents") == []
        assert p.wakes.rings == []


@pytest.mark.behaviour("API-09", "REM-45")
async def test_more_intents_than_an_owner_may_have_are_refused_with_a_time_to_come_back(
    database_url: str,
) -> None:
    async with memory_place(database_url, pending_intents_per_owner=1) as p:
        for owner, client in ((ANN, p.ann), (BOB, p.bob)):
            session = await p.world.session(OwnerId(owner))
            await p.world.turn(session, TEAL, OwnerId(owner), steps=1)
            await p.world.turn(session, CAT, OwnerId(owner), steps=1)
            first = await client.post("/v1/memory/intents", json={"session_id": session, "seq": 1})
            assert first.status_code == 202
            second = await client.post("/v1/memory/intents", json={"session_id": session, "seq": 5})
            assert_refused(second, 429, "memory.intents-full")
            assert int(second.headers["Retry-After"]) >= 1


@pytest.mark.behaviour("API-11", "ACT-49")
async def test_progress_shows_the_cursor_of_each_processor_in_the_session(database_url: str) -> None:
    async with memory_place(database_url) as p:
        session = await p.world.session(OwnerId(ANN))
        await p.world.turn(session, TEAL, OwnerId(ANN))
        params = {"session_id": session}
        owed = (await p.ann.get("/v1/memory/progress", params=params)).json()
        assert (owed["session_id"], owed["seq"]) == (session, 4)
        [processor] = owed["processors"]
        assert (processor["processor"], processor["version"]) == ("user-statements", "1")
        assert (processor["through_seq"], processor["pending"], processor["advanced_at"]) == (0, None, None)
        assert processor["status"] == "ready"
        await p.world.drain()
        [done] = (await p.ann.get("/v1/memory/progress", params=params)).json()["processors"]
        assert (done["through_seq"], done["pending"], done["status"]) == (4, None, "idle")
        assert done["advanced_at"] is not None
        for other in (session, "ses_nobody"):
            answer = await p.bob.get("/v1/memory/progress", params={"session_id": other})
            assert_refused(answer, 404, "session.missing")
        assert (await p.bob.get("/v1/memory/progress")).json()["processors"] == []


# --- whose it is ---


@pytest.mark.behaviour("API-10")
async def test_an_app_without_a_policy_has_no_memory_on_any_of_its_routes(database_url: str) -> None:
    bare = App([Agent(name="a", instructions="x")])
    async with calling(database_url, app=bare) as (_producer, client):
        paths = (await client.get("/openapi.json")).json()["paths"]
        routes = [(m, path) for path, methods in paths.items() for m in methods if "/v1/memory" in path]
        assert len(routes) == 8
        for method, path in routes:
            where = path.replace("{document_id}", "profile-1").replace("{intent_id}", "x")
            assert_refused(await client.request(method.upper(), where), 404, "memory.off")


@pytest.mark.behaviour("API-15")
async def test_a_draining_producer_takes_no_changes_of_memory_and_still_answers(database_url: str) -> None:
    async with memory_place(database_url) as p:
        made = await put(p.ann, PROFILE, correction("I like teal.", None))
        p.producer.parts.traffic.begin_drain()
        withdrawal = {"expected_revision": "1", "operation_id": "op-2"}
        for response in (
            await p.ann.put(PROFILE, json=correction("b", "1", "op-2")),
            await p.ann.delete(PROFILE, params=withdrawal),
            await p.ann.post("/v1/memory/intents", json={"session_id": "ses_1", "seq": 1}),
        ):
            assert_refused(response, 503, "turn.refused")
        assert (await p.ann.get(PROFILE)).json() == made
        assert len((await ask(p.ann, "teal"))["passages"]) == 1


async def every_request(client: httpx2.AsyncClient, session: str, intent: str, document: str) -> list[str]:
    """Ask every memory route about these ids; return the bodies of the answers."""
    where = f"{DOCUMENTS}/{document}"
    withdrawal = {"expected_revision": "1", "operation_id": "theft"}
    answers = [
        await client.post("/v1/memory/recall", json={"query": "teal colour Minka cat"}),
        await client.get(DOCUMENTS),
        await client.get(where),
        await client.get(where, params={"history": "true"}),
        await client.put(where, json=correction("stolen", "1", "theft")),
        await client.delete(where, params=withdrawal),
        await client.post("/v1/memory/intents", json={"session_id": session, "seq": 1}),
        await client.get(f"/v1/memory/intents/{intent}"),
        await client.get("/v1/memory/progress", params={"session_id": session}),
    ]
    return [one.text for one in answers]


def without_ids(bodies: list[str], *ids: str) -> list[dict[str, Any]]:
    """Answers with the given ids and what is each request's own taken out."""
    texts = bodies
    for value in ids:
        texts = [text.replace(value, "ID") for text in texts]
    return [{k: v for k, v in json.loads(text).items() if k != "request_id"} for text in texts]


@pytest.mark.behaviour("API-16", "NSP-43", "RCL-T08")
async def test_nothing_of_an_owner_shows_in_anothers_answers_in_logs_or_in_metrics(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with memory_place(database_url) as p:
        session = await p.tell(TEAL, CAT)
        await p.tell(RED, owner=BOB)
        [intent] = await p.world.rows("SELECT id FROM memory_intents WHERE owner = %s LIMIT 1", ANN)
        await put(p.ann, f"{DOCUMENTS}/notes", correction("I hid it under the oak.", None))
        stolen = await every_request(p.bob, session, intent["id"], "notes")
        nothing = await every_request(p.bob, "ses_nobody", "f" * 64, "none")
        # Another owner's ids read as ids that nobody has, word for word.
        assert without_ids(stolen, session, intent["id"], "notes") == without_ids(
            nothing, "ses_nobody", "f" * 64, "none"
        )
        own = await every_request(p.ann, session, intent["id"], "notes")
        assert "teal" in own[0] and "oak" in own[1]
        assert "stolen" in own[4]
        metrics = (await p.ann.get("/metrics")).text
        namespaces = [p.world.namespace(OwnerId(owner)) for owner in (ANN, BOB)]
    secrets = [ANN, BOB, *namespaces, *(json.dumps(one)[1:-1] for one in namespaces), '"profile",1']
    said = ["teal", "Minka", "under the oak"]
    logged = [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
    assert any("document corrected" in line for line in logged)
    for text in (*stolen, *nothing, *own, metrics, *logged):
        assert [secret for secret in secrets if secret in text] == []
    # The query itself holds some of the words; what was remembered is in none of the other owner's answers.
    for text in (*stolen, *nothing, metrics, *logged):
        assert [word for word in said if word in text] == []


@pytest.mark.behaviour("API-16")
async def test_two_owners_may_use_the_same_ids_and_never_meet(database_url: str) -> None:
    async with memory_place(database_url) as p:
        mine = await put(p.ann, PROFILE, correction("I like teal.", None, "same"))
        yours = await put(p.bob, PROFILE, correction("I like red.", None, "same"))
        assert (mine["revision"], yours["revision"]) == ("1", "1")
        assert [one["text"] for one in (await ask(p.ann, "like"))["passages"]] == ["I like teal."]
        assert [one["text"] for one in (await ask(p.bob, "like"))["passages"]] == ["I like red."]
        withdrawal = {"expected_revision": "1", "operation_id": "gone"}
        assert (await p.bob.delete(PROFILE, params=withdrawal)).status_code == 200
        assert (await p.ann.get(PROFILE)).json() == mine
        session = await create_session(p.ann)
        assert_refused(
            await p.bob.get("/v1/memory/progress", params={"session_id": session}), 404, "session.missing"
        )
