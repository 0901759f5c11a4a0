"""Request bodies on every route: what is refused, how, and that nothing of it is stored."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import psycopg
import pytest

from shared.domain.bounds import BODY_MAX_BYTES, TURN_BODY_MAX_BYTES
from shared.domain.ids import OwnerId
from shared.owners.limits import OwnerLimits
from shared.owners.postgres import PostgresOwners
from tests.support.openapi import TABLES, count_rows, filled, operations, raw_answer, read_problem
from tests.support.producers import calling, create_session
from tests.support.waiting import await_until

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
    read_problem(response)


async def in_chunks(body: bytes) -> AsyncIterator[bytes]:
    """The same bytes, sent without a length and torn where it hurts."""
    for start in range(0, len(body), max(1, len(body) // 3)):
        yield body[start : start + max(1, len(body) // 3)]


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
            where = filled(path, session_id=session, turn_id=turn)
            for name, (body, status) in HOSTILE_BODIES.items():
                headers = {"Content-Type": "application/json", "Idempotency-Key": uuid.uuid4().hex}
                # A route without a body refuses any; which way it is wrong is then no matter.
                expected = 400 if method == "DELETE" else status
                for content in (body, in_chunks(body)):
                    response = await client.request(method, where, content=content, headers=headers)
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
            where = filled(path, session_id=session)
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
            where = filled(path, session_id=session)
            status, head = await raw_answer(client, method, where, length=bound + 1)
            assert (status, "connection: close" in head) == (413, True)
        assert count_rows(database_url) == before


@pytest.mark.behaviour("API-13")
async def test_oversized_bodies_without_a_length_are_refused_at_the_bound(database_url: str) -> None:
    async def oversized() -> AsyncIterator[bytes]:
        yield b'{"title":"'
        for _ in range(BODY_MAX_BYTES // 65_536 + 1):
            yield b"x" * 65_536
        yield b'"}'

    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        before = count_rows(database_url)
        # An owner's own bound keeps the turn's route, which takes media, as quick as the others.
        own = OwnerLimits(body_max_bytes=BODY_MAX_BYTES)
        await PostgresOwners(producer.parts.database).set_limits(OwnerId("bob"), own)
        async with producer.client(await producer.key_for("bob")) as bob:
            for method, path in await operations(client):
                if method in ("GET", "HEAD"):
                    continue
                where = filled(path, session_id=session)
                headers = {"Content-Type": "application/json"}
                assert_problem(await bob.request(method, where, content=oversized(), headers=headers), 413)
        assert count_rows(database_url) == before


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
        ({"resumes": "3"}, "/resumes"),
        ({"resumes": 3}, "/resumes"),
        ({"resumes": True}, "/resumes"),
        ({"resumes": uuid.uuid4().hex}, "/resumes"),
        ({"images": []}, "/images"),
        ({"message": {"text": "x", "images": [{"data": "aGk="}]}}, "/message/images"),
        ({"on_busy": "wait"}, "/on_busy"),
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


@pytest.mark.behaviour("API-13")
async def test_a_caller_that_hangs_up_inside_its_body_stores_nothing_and_is_no_defect(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="producer")
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        before = count_rows(database_url)
        host, port = producer.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST /v1/sessions/{session}/turns HTTP/1.1\r\nHost: {host}\r\n"
            f"Authorization: {client.headers['Authorization']}\r\n"
            'Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"message":'.encode()
        )
        await writer.drain()
        await await_until(lambda: producer.parts.traffic.requests == 1, what="a body that is read")
        writer.close()
        await await_until(lambda: producer.parts.traffic.requests == 0, what="a request that is over")
        assert [r.message for r in caplog.records if "hung up" in r.message] != []
        assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []
        assert count_rows(database_url) == before
