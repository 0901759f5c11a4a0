"""Every route: who may come in, what bodies are refused, and that nothing of a refused request is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import httpx2
import psycopg
import pytest

from shared.domain.errors import Unauthenticated
from shared.domain.ids import OwnerId
from tests.support.openapi import (
    TABLES,
    count_rows,
    filled,
    operations,
    raw_answer,
    read_document,
    read_problem,
)
from tests.support.producers import Producer, calling, claim_turn, create_session, end_turn, open_turn
from tests.support.small_app import app as small_app

#: Open to anyone who reaches the port.
OPEN_ROUTES = {"/healthz", "/readyz", "/ping", "/metrics"}
#: What a door answers for an id that is nobody's, or another owner's.
MISSING_CODES = {"session.missing", "turn.missing", "task.missing", "memory.missing", "memory.intent-missing"}
WITHDRAWAL = {"expected_revision": "1", "operation_id": "op"}
CORRECTION = {"text": "mine now", "expected_revision": "1", "operation_id": "op"}


def assert_problem(response: httpx2.Response, status: int) -> None:
    assert response.status_code == status, response.text[:500]
    read_problem(response)


#: What a request of these operations needs besides an id. A new route that needs more fails the test until it stands here.
NEEDS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/sessions/{session_id}/turns"): {"json": {"message": "x"}},
    ("POST", "/v1/sessions/{session_id}/inbox"): {"json": {"id": "i", "source": "s", "content": "x"}},
    ("POST", "/v1/sessions/{session_id}/tasks"): {"json": {"instructions": "x", "mode": "spawn"}},
    ("POST", "/v1/memory/intents"): {"json": {"seq": 1}},
    ("PUT", "/v1/memory/documents/{document_id}"): {"json": CORRECTION},
    ("DELETE", "/v1/memory/documents/{document_id}"): {"params": WITHDRAWAL},
}
ID_NAMES = ("session_id", "turn_id", "task_id", "document_id", "intent_id")


def places_of_ids(document: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield method, path, where and name of every id that an operation takes: in its path, its query or its body."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", []):
                if parameter["name"] in ID_NAMES:
                    yield method.upper(), path, parameter["in"], parameter["name"]
            for name in body_properties(document, operation):
                if name in ID_NAMES:
                    yield method.upper(), path, "body", name


def body_properties(document: dict[str, Any], operation: dict[str, Any]) -> Iterator[str]:
    for target in references(operation.get("requestBody")):
        yield from document["components"]["schemas"][target.split("/")[-1]].get("properties", {})


def request_with(method: str, path: str, where: str, name: str, value: str) -> dict[str, Any]:
    """Return a request of an operation that is right but for this id."""
    needs = NEEDS.get((method, path), {})
    request = {"method": method, "url": filled(path, **({name: value} if where == "path" else {}))} | needs
    if where != "path":
        part = "params" if where == "query" else "json"
        request[part] = request.get(part, {}) | {name: value}
    return request


def told(response: httpx2.Response, value: str) -> dict[str, Any]:
    """What an answer tells, without the id that was asked for and the request's own."""
    problem = read_problem(response)
    del problem["request_id"]
    anonymous: dict[str, Any] = json.loads(json.dumps(problem).replace(value, "ID"))
    return anonymous


@pytest.mark.behaviour("API-16", "API-12")
async def test_another_owners_ids_read_like_ids_of_nothing_wherever_an_operation_takes_one(
    database_url: str,
) -> None:
    async with calling(database_url, owner="ann") as (producer, ann):
        ids = await things_of(ann, producer)
        before = count_rows(database_url)
        async with producer.client(await producer.key_for("bob")) as bob:
            places = list(places_of_ids(await read_document(bob)))
            assert {name for *_, name in places} == set(ID_NAMES)
            assert len(places) >= 13
            for method, path, where, name in places:
                unknown = unknown_id(ids[name])
                answers = [
                    (value, await bob.request(**request_with(method, path, where, name, value)))
                    for value in (ids[name], unknown)
                ]
                others, nobodys = (told(response, value) for value, response in answers)
                assert others == nobodys, (method, path, where)
                if (method, name) == ("PUT", "document_id"):
                    # A document of the caller's own may be made there: this one is not at that revision.
                    assert (others["status"], others["fields"]["actual"]) == (409, None)
                else:
                    assert (others["status"], others["code"] in MISSING_CODES) == (404, True), (method, path)
            assert (await bob.get("/v1/memory/documents")).json()["documents"] == []
            assert (await bob.get("/v1/sessions")).json()["sessions"] == []
        assert count_rows(database_url) == before
        for path in ("/v1/sessions/{session_id}", "/v1/memory/intents/{intent_id}"):
            assert (await ann.get(path.format_map(ids))).status_code == 200
        assert (await ann.get(f"/v1/turns/{ids['turn_id']}")).json()["status"] == "ready"


async def things_of(client: httpx2.AsyncClient, producer: Producer) -> dict[str, str]:
    """Make one thing of every kind that has an id."""
    session = await create_session(client)
    await client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})
    claim = await claim_turn(producer.parts)
    await open_turn(producer.parts, claim)
    await end_turn(producer.parts, claim, "done")
    intent = await client.post("/v1/memory/intents", json={"session_id": session, "seq": 1})
    assert intent.status_code == 202, intent.text
    turn = (await client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})).json()["turn_id"]
    created = await client.put("/v1/memory/documents/notes", json=CORRECTION | {"expected_revision": None})
    assert created.status_code == 200
    task = await client.post(f"/v1/sessions/{session}/tasks", json={"instructions": "x", "mode": "spawn"})
    ids = {"session_id": session, "turn_id": turn, "document_id": "notes", "task_id": task.json()["task_id"]}
    return ids | {"intent_id": intent.json()["intent_id"]}


def unknown_id(known: str) -> str:
    """Return an id of the same shape that is nobody's."""
    return known[:-1] + ("0" if known[-1] != "0" else "1")


@pytest.mark.behaviour("API-12", "API-16")
@pytest.mark.parametrize("value", ["%00", "%20", "%ff", "x" * 300, "%F0%9F%92%A9"])
async def test_what_can_be_no_id_is_not_found_either(database_url: str, value: str) -> None:
    async with calling(database_url) as (_producer, client):
        for method, path, where, name in places_of_ids(await read_document(client)):
            if where == "path" and name != "document_id":
                response = await client.request(**request_with(method, path, where, name, value))
                assert_problem(response, 404)
        assert count_rows(database_url) == dict.fromkeys(TABLES, 0)


@pytest.mark.behaviour("API-16")
async def test_every_route_but_the_open_ones_needs_a_key(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        routes = await operations(client)
        async with producer.client() as nobody, producer.client("tk_wrong") as wrong:
            for method, path in routes:
                where = filled(path)
                for caller, code in ((nobody, "auth.missing"), (wrong, "auth.invalid")):
                    response = await caller.request(method, where)
                    if path in OPEN_ROUTES:
                        assert response.status_code in (200, 503)
                    else:
                        assert_problem(response, 401)
                        assert response.json()["code"] == code
                        assert response.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.behaviour("API-16")
async def test_a_caller_without_a_key_is_turned_away_before_its_body_is_read(database_url: str) -> None:
    async with calling(database_url) as (producer, _client):
        async with producer.client() as nobody:
            nobody.headers["Authorization"] = "Bearer nonsense"
            status, _ = await raw_answer(nobody, "POST", "/v1/sessions", length=100)
        assert status == 401


@pytest.mark.behaviour("API-16")
async def test_a_revoked_key_ends_and_other_keys_of_the_owner_go_on(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        async with producer.client(await producer.key_for("ann")) as second:
            assert (await second.get(f"/v1/sessions/{session}")).status_code == 200
        with psycopg.connect(database_url) as connection:
            rows = connection.execute("SELECT digest FROM api_keys").fetchall()
        key = client.headers["Authorization"].removeprefix("Bearer ")
        assert len(rows) == 2
        assert all(key.encode() not in bytes(digest) for (digest,) in rows)


class CallsByName:
    """A host's own authenticator."""

    async def authenticate(self, headers: Mapping[str, str], client_host: str | None) -> OwnerId:
        if "x-user" not in headers:
            raise Unauthenticated("say who you are: X-User")
        return OwnerId(headers["x-user"])


@pytest.mark.behaviour("API-16")
async def test_a_hosts_own_authenticator_takes_the_place_of_keys(database_url: str) -> None:
    app = replace(small_app, authenticator=CallsByName())
    async with calling(database_url, app=app) as (producer, by_key):
        assert_problem(await by_key.get("/v1/sessions"), 401)
        async with producer.client() as client:
            assert_problem(await client.get("/v1/sessions"), 401)
            made = await client.post("/v1/sessions", json={}, headers={"X-User": "ann"})
            path = f"/v1/sessions/{made.json()['session_id']}"
            assert (await client.get(path, headers={"X-User": "ann"})).status_code == 200
            assert_problem(await client.get(path, headers={"X-User": "bob"}), 404)


@pytest.mark.behaviour("API-16")
async def test_this_machine_needs_no_key_where_the_settings_name_an_owner(database_url: str) -> None:
    async with calling(database_url, loopback_owner="dev") as (producer, client):
        session = await create_session(client)
        async with producer.client() as local:
            assert (await local.get(f"/v1/sessions/{session}")).status_code == 404
            mine = await create_session(local)
            assert (await local.get(f"/v1/sessions/{mine}")).status_code == 200
            proxied = await local.get(f"/v1/sessions/{mine}", headers={"X-Forwarded-For": "203.0.113.9"})
            assert_problem(proxied, 401)
            crossed = await local.post("/v1/sessions", headers={"Origin": "https://evil.example"})
            assert_problem(crossed, 401)


@pytest.mark.behaviour("API-01")
async def test_sessions_are_listed_last_active_first_in_pages_without_gap_or_double(
    database_url: str,
) -> None:
    async with calling(database_url) as (producer, client):
        made = [await create_session(client, title=f"s{n}") for n in range(7)]
        async with producer.client(await producer.key_for("bob")) as bob:
            await create_session(bob)
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = (await client.get("/v1/sessions", params={"limit": "3"} | cursor)).json()
            seen += [s["session_id"] for s in page["sessions"]]
            if page["next"] is None:
                break
            cursor = {"cursor": page["next"]}
        assert seen == made[::-1]
        for params in ({"cursor": "nonsense"}, {"limit": "201"}, {"limit": "x"}, {"page": "2"}):
            assert_problem(await client.get("/v1/sessions", params=params), 422)


@pytest.mark.behaviour("API-01")
async def test_a_removed_session_is_gone_with_its_turns(database_url: str) -> None:
    async with calling(database_url) as (_producer, client):
        session = await create_session(client, meta={"a": {"b": [1, None]}})
        assert (await client.get(f"/v1/sessions/{session}")).json()["meta"] == {"a": {"b": [1, None]}}
        turn = (await client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})).json()["turn_id"]
        removed = await client.delete(f"/v1/sessions/{session}")
        assert (removed.status_code, removed.content) == (204, b"")
        for path in (f"/v1/sessions/{session}", f"/v1/turns/{turn}"):
            assert_problem(await client.get(path), 404)
        assert_problem(await client.delete(f"/v1/sessions/{session}"), 404)
        assert count_rows(database_url) == dict.fromkeys(TABLES, 0)


@pytest.mark.behaviour("API-12")
async def test_unknown_paths_and_methods_are_problems_too(database_url: str) -> None:
    async with calling(database_url) as (_producer, client):
        assert_problem(await client.get("/v1/nothing"), 404)
        refused = await client.put("/v1/sessions")
        assert_problem(refused, 405)
        assert refused.headers["Allow"]


def references(node: Any) -> Iterator[str]:
    match node:
        case {"$ref": str(target)}:
            yield target
        case dict():
            for inner in node.values():
                yield from references(inner)
        case list():
            for inner in node:
                yield from references(inner)


async def test_the_openapi_document_is_whole_and_names_the_problem_of_every_operation(
    database_url: str,
) -> None:
    async with calling(database_url) as (_producer, client):
        document = (await client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    for target in set(references(document)):
        node = document
        for part in target.removeprefix("#/").split("/"):
            node = node[part]
    ids = []
    for path, methods in document["paths"].items():
        for operation in methods.values():
            ids.append(operation["operationId"])
            answers = operation["responses"]
            for status in (status for status in answers if int(status) >= 400 and path != "/readyz"):
                assert list(answers[status]["content"]) == ["application/problem+json"], (path, status)
            assert {"500"} | ({"401", "503"} if path not in OPEN_ROUTES else set()) <= set(answers), path
            assert ("404" in answers) or ("{" not in path), path
            assert bool(operation.get("security")) == (path not in OPEN_ROUTES), path
    assert len(ids) == len(set(ids))
