"""Every route: who may come in, what bodies are refused, and that nothing of a refused request is stored."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from typing import Any

import httpx2
import psycopg
import pytest

from shared.domain.bounds import BODY_MAX_BYTES, TURN_BODY_MAX_BYTES
from shared.domain.errors import Unauthenticated
from shared.domain.ids import OwnerId
from tests.support.openapi import TABLES, count_rows, filled, operations, raw_answer
from tests.support.producers import calling, create_session
from tests.support.small_app import app as small_app

#: Open to anyone who reaches the port.
OPEN_ROUTES = {"/healthz", "/readyz", "/ping", "/metrics"}
#: What a door answers for an id that is nobody's, or another owner's.
MISSING_CODES = {"session.missing", "turn.missing", "memory.missing", "memory.intent-missing"}
WITHDRAWAL = {"expected_revision": "1", "operation_id": "op"}
CORRECTION = {"text": "mine now", "expected_revision": "1", "operation_id": "op"}

HOSTILE_BODIES: dict[str, tuple[bytes, int]] = {
    "not JSON": (b"{", 400),
    "two documents": (b"{}{}", 400),
    "not UTF-8": (b'{"message":"\xff"}', 400),
    "UTF-16": ('{"message":"x"}'.encode("utf-16"), 400),
    "encoded surrogate": (b'{"message":"\xed\xa0\x80"}', 400),
    "raw NUL": (b'{"message":"a\x00b"}', 400),
    "NaN": (b'{"message":"x","meta":{"a":NaN}}', 400),
    "key twice": (b'{"message":"x","message":"y"}', 400),
    "deep": (b'{"message":"x","meta":{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}}", 400),
    "deep and endless": (b"[" * 900_000, 400),
    "NUL": (b'{"message":"a\\u0000b"}', 422),
    "lone surrogate": (b'{"message":"\\ud800"}', 422),
    "lone surrogate in a key": (b'{"message":"x","meta":{"\\udfff":1}}', 422),
    "huge integer": (b'{"message":"x","meta":{"a":' + b"9" * 5_000 + b"}}", 422),
    "huge float": (b'{"message":"x","meta":{"a":1e999}}', 422),
    "very many values": (b'{"message":"x","meta":{"a":[' + b"0," * 300_000 + b"0]}}", 422),
    "unknown field": (b'{"message":"x","title":"x","surprise":1}', 422),
    "no object": (b'["message"]', 422),
}


def assert_problem(response: httpx2.Response, status: int) -> None:
    assert response.status_code == status, response.text[:500]
    assert response.headers["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert problem["code"]
    assert problem["title"]
    assert problem["request_id"] == response.headers["X-Request-ID"]
    assert "Traceback" not in response.text


@pytest.mark.behaviour("API-13", "API-12")
async def test_hostile_bodies_are_refused_on_every_route_that_writes_and_nothing_is_stored(
    database_url: str,
) -> None:
    async with calling(database_url) as (_producer, client):
        session = await create_session(client)
        turn = (await client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})).json()["turn_id"]
        before = count_rows(database_url)
        writes = [(m, p) for m, p in await operations(client) if m not in ("GET", "HEAD")]
        assert len(writes) >= 8
        for method, path in writes:
            where = filled(path, session=session, turn=turn)
            for name, (body, status) in HOSTILE_BODIES.items():
                headers = {"Content-Type": "application/json", "Idempotency-Key": uuid.uuid4().hex}
                response = await client.request(method, where, content=body, headers=headers)
                # A route without a body refuses any; which way it is wrong is then no matter.
                expected = 400 if method == "DELETE" else status
                assert response.status_code == expected, (method, path, name, response.text)
                assert_problem(response, expected)
        assert count_rows(database_url) == before
        assert (await client.get(f"/v1/turns/{turn}")).json()["status"] == "ready"


@pytest.mark.behaviour("API-13")
async def test_other_content_types_are_refused_on_every_route_that_takes_a_body(database_url: str) -> None:
    async with calling(database_url) as (_producer, client):
        session = await create_session(client)
        before = count_rows(database_url)
        for method, path in await operations(client):
            if method not in ("POST", "PUT"):
                continue
            where = filled(path, session=session)
            for headers in (
                {"Content-Type": "text/plain"},
                {"Content-Type": "application/x-www-form-urlencoded"},
                {"Content-Type": "application/json; charset=latin-1"},
                {"Content-Type": "application/json", "Content-Encoding": "gzip"},
                {},
            ):
                assert_problem(
                    await client.request(method, where, content=b'{"message":"x"}', headers=headers), 415
                )
        assert count_rows(database_url) == before


@pytest.mark.behaviour("API-13")
async def test_oversized_bodies_are_refused_by_their_declared_length(database_url: str) -> None:
    async with calling(database_url) as (_producer, client):
        session = await create_session(client)
        before = count_rows(database_url)
        for method, path in await operations(client):
            if method in ("GET", "HEAD"):
                continue
            bound = TURN_BODY_MAX_BYTES if path.endswith("/turns") else BODY_MAX_BYTES
            where = filled(path, session=session)
            status, head = await raw_answer(client, method, where, length=bound + 1)
            assert (status, "connection: close" in head) == (413, True)
        assert count_rows(database_url) == before


@pytest.mark.behaviour("API-13")
async def test_oversized_bodies_without_a_length_are_refused_at_the_bound(database_url: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"title":"'
        for _ in range(BODY_MAX_BYTES // 65_536 + 1):
            yield b"x" * 65_536
        yield b'"}'

    async with calling(database_url) as (_producer, client):
        response = await client.post(
            "/v1/sessions", content=chunks(), headers={"Content-Type": "application/json"}
        )
        assert_problem(response, 413)
        assert count_rows(database_url)["sessions"] == 0


@pytest.mark.behaviour("API-12", "API-13")
async def test_a_caller_that_sends_all_of_a_refused_body_still_reads_why(database_url: str) -> None:
    async with calling(database_url) as (_producer, client):
        session = await create_session(client)
        response = await client.post(
            f"/v1/sessions/{session}/turns",
            content=b"x" * (TURN_BODY_MAX_BYTES + 1),
            headers={"Content-Type": "application/json"},
        )
        assert_problem(response, 413)


@pytest.mark.behaviour("API-12", "API-02")
@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"resumes": str(uuid.uuid4())}, "/resumes"),
        ({"images": []}, "/images"),
        ({"message": {"text": "x", "images": [{"data": "aGk="}]}}, "/message/images"),
        ({"on_busy": "interrupt"}, "/on_busy"),
        ({"agent": "nobody"}, "/agent"),
        ({"key": ""}, "/key"),
        ({"key": "  "}, "/key"),
        ({"message": ""}, "/message/text"),
        ({"max_duration_s": 86_400}, "/max_duration_s"),
        ({"priority": "urgent"}, "/priority"),
    ],
)
async def test_what_a_turn_cannot_take_is_refused_by_the_place_of_its_field(
    database_url: str, fields: dict[str, Any], pointer: str
) -> None:
    async with calling(database_url) as (_producer, client):
        session = await create_session(client)
        response = await client.post(f"/v1/sessions/{session}/turns", json={"message": "x"} | fields)
        assert_problem(response, 422)
        assert [e["pointer"] for e in response.json()["errors"]] == [pointer]
        assert response.json()["fields"]["field"] == pointer
        assert count_rows(database_url)["turns"] == 0


@pytest.mark.behaviour("API-13")
@pytest.mark.parametrize("key", ["", "x" * 257])
async def test_empty_and_oversized_keys_make_nothing(database_url: str, key: str) -> None:
    async with calling(database_url) as (_producer, client):
        session = await create_session(client)
        for path, body in (("/v1/sessions", {}), (f"/v1/sessions/{session}/turns", {"message": "x"})):
            assert_problem(await client.post(path, json=body, headers={"Idempotency-Key": key}), 422)
        assert count_rows(database_url) == dict.fromkeys(TABLES, 0) | {"sessions": 1}


@pytest.mark.behaviour("API-13")
async def test_the_literal_text_of_an_escape_is_stored_as_it_is(database_url: str) -> None:
    text = "a\\u0000b \\ud800"
    async with calling(database_url) as (_producer, client):
        session = await create_session(client, title=text)
        assert (await client.get(f"/v1/sessions/{session}")).json()["title"] == text
        await client.post(f"/v1/sessions/{session}/turns", json={"message": text})
        with psycopg.connect(database_url) as connection:
            row = connection.execute("SELECT message::jsonb ->> 'text' FROM turns").fetchone()
        assert row == (text,)


@pytest.mark.behaviour("API-16")
async def test_another_owners_ids_are_not_found_on_any_route(database_url: str) -> None:
    async with calling(database_url, owner="ann") as (producer, ann):
        session = await create_session(ann)
        turn = (await ann.post(f"/v1/sessions/{session}/turns", json={"message": "x"})).json()["turn_id"]
        created = await ann.put("/v1/memory/documents/notes", json=CORRECTION | {"expected_revision": None})
        assert created.status_code == 200
        before = count_rows(database_url)
        async with producer.client(await producer.key_for("bob")) as bob:
            named = [(m, p) for m, p in await operations(bob) if "{" in p]
            assert len(named) >= 11
            for method, path in named:
                other = filled(path, session=session, turn=turn, memory="notes")
                unknown = filled(path, session=f"ses_{uuid.uuid4().hex}", memory="nothing")
                for where in (other, unknown, filled(path, session="%00", turn="%00", memory="%00")):
                    body = {"PUT": CORRECTION, "POST": {"message": "x"}}.get(method)
                    body = None if path.endswith("/cancel") else body
                    params = WITHDRAWAL if method == "DELETE" and "memory" in path else {}
                    response = await bob.request(method, where, json=body, params=params)
                    if method == "PUT" and "%00" not in where:
                        # A document of the caller's own may be made there: this one is not at that revision.
                        assert_problem(response, 409)
                        assert response.json()["fields"]["actual"] is None
                        continue
                    assert_problem(response, 404)
                    assert response.json()["code"] in MISSING_CODES
            assert (await bob.get("/v1/memory/documents")).json()["documents"] == []
            assert (await bob.get("/v1/sessions")).json()["sessions"] == []
        assert count_rows(database_url) == before
        assert (await ann.get(f"/v1/turns/{turn}")).json()["status"] == "ready"


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
            assert "application/problem+json" in operation["responses"]["default"]["content"], path
            assert bool(operation.get("security")) == (path not in OPEN_ROUTES), path
    assert len(ids) == len(set(ids))
