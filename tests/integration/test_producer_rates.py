"""How fast an owner may write, over HTTP; and how an operator says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import psycopg
import pytest

from shared.database.pool import Database
from shared.domain.ids import OwnerId
from shared.owners.inproc import InprocOwners
from shared.owners.limits import OwnerLimits, Owners
from shared.owners.postgres import PostgresOwners
from tests.support.openapi import count_rows, filled, operations, raw_answer
from tests.support.producer_process import run_cli
from tests.support.producers import calling, create_session

#: Nothing comes back while a test runs.
NEVER = 0.001
POLICY = '"writes";q=3;w=3000'


@pytest.mark.behaviour("API-17", "DST-16", "API-12")
async def test_writes_past_the_burst_are_429_with_when_to_come_again_and_nothing_is_stored(
    database_url: str,
) -> None:
    async with calling(database_url, writes_per_s=NEVER, writes_burst=3) as (producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/turns"
        admitted = await client.post(path, json={"message": "x"})
        assert (admitted.status_code, admitted.headers["RateLimit-Policy"]) == (202, POLICY)
        assert admitted.headers["RateLimit"].startswith('"writes";r=1;t=')
        # An answer that is an error tells it as well.
        wrong = await client.post(path, json={"nothing": "x"})
        assert (wrong.status_code, wrong.headers["RateLimit"].split(";")[1]) == (422, "r=0")
        before = count_rows(database_url)
        for _ in range(3):
            refused = await client.post(path, json={"message": "y"}, headers={"Idempotency-Key": "k"})
            assert (refused.status_code, refused.json()["code"]) == (429, "rate.limited")
            assert 900 < int(refused.headers["Retry-After"]) <= 1_000
            assert refused.headers["RateLimit-Policy"] == POLICY
            assert refused.json()["fields"] == {"bound": POLICY}
        assert count_rows(database_url) == before
        # Reading is no write, and another owner has a rate of its own.
        read = await client.get(f"/v1/sessions/{session}")
        assert (read.status_code, "RateLimit" in read.headers) == (200, False)
        async with producer.client(await producer.key_for("bob")) as bob:
            await create_session(bob)


@pytest.mark.behaviour("API-17")
async def test_every_route_that_writes_counts_and_reads_no_body_once_the_rate_is_spent(
    database_url: str,
) -> None:
    async with calling(database_url, writes_per_s=NEVER, writes_burst=1) as (_producer, client):
        session = await create_session(client)
        writes = [(m, p) for m, p in await operations(client) if m not in ("GET", "HEAD")]
        assert len(writes) >= 8
        for method, path in writes:
            where = filled(path, session_id=session)
            # The body is announced and never sent: an answer shows that none was waited for.
            status, head = await raw_answer(client, method, where, length=100)
            assert (status, "retry-after" in head, "ratelimit-policy" in head) == (429, True, True), path


@pytest.mark.behaviour("API-17")
async def test_an_owners_own_row_wins_over_the_settings(database_url: str) -> None:
    async with calling(database_url, writes_per_s=NEVER, writes_burst=1) as (producer, client):
        await PostgresOwners(producer.parts.database).set_limits(OwnerId("ann"), OwnerLimits(writes_burst=3))
        statuses = [(await client.post("/v1/sessions", json={})).status_code for _ in range(4)]
        assert statuses == [201, 201, 201, 429]


@pytest.mark.behaviour("API-17", "API-13")
async def test_an_owners_own_bound_of_a_body_holds_below_the_routes(database_url: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"title":"'
        yield b"x" * 4_096
        yield b'"}'

    async with calling(database_url) as (producer, client):
        own = OwnerLimits(body_max_bytes=2_048)
        await PostgresOwners(producer.parts.database).set_limits(OwnerId("ann"), own)
        session = await create_session(client)
        before = count_rows(database_url)
        headers = {"Content-Type": "application/json"}
        for path in ("/v1/sessions", f"/v1/sessions/{session}/turns"):
            for content in (b'{"message":"' + b"x" * 2_048 + b'"}', chunks()):
                refused = await client.post(path, content=content, headers=headers)
                assert (refused.status_code, refused.json()["code"]) == (413, "input.too-large")
                assert refused.json()["fields"]["bound"] == "<= 2048 bytes"
        assert count_rows(database_url) == before


async def stage(kind: str, database_url: str) -> AsyncIterator[Owners]:
    if kind == "inproc":
        yield InprocOwners()
        return
    database = Database(database_url, connections=1)
    await database.open()
    try:
        yield PostgresOwners(database)
    finally:
        await database.close()


@pytest.mark.behaviour("API-17")
@pytest.mark.parametrize("kind", ["postgres", "inproc"])
async def test_limits_are_set_one_by_one_listed_and_taken_back(kind: str, database_url: str) -> None:
    async for owners in stage(kind, database_url):
        ann, bob = OwnerId("ann"), OwnerId("bob")
        assert await owners.limits(ann) == OwnerLimits()
        assert not await owners.reset_limits(ann)
        await owners.set_limits(ann, OwnerLimits(running_max=5, writes_per_s=0.5))
        both = await owners.set_limits(ann, OwnerLimits(queued_max=7, running_max=6))
        assert both == OwnerLimits(running_max=6, queued_max=7, writes_per_s=0.5) == await owners.limits(ann)
        await owners.set_limits(bob, OwnerLimits(body_max_bytes=4_096, writes_burst=1))
        assert [owner for owner, _ in await owners.list()] == [ann, bob]
        assert [owner for owner, _ in await owners.list(after=ann)] == [bob]
        assert await owners.reset_limits(bob)
        assert await owners.list() == [(ann, both)]
        assert await owners.limits(bob) == OwnerLimits()


@pytest.mark.behaviour("API-17", "DST-14", "DST-16")
def test_an_operator_sets_and_sees_the_limits_of_one_owner(database_url: str, tmp_path: Path) -> None:
    def owners(*arguments: str) -> tuple[int, str]:
        done = run_cli("owners", *arguments, cwd=tmp_path, DATABASE_URL=database_url)
        return done.returncode, done.stdout or done.stderr

    caps = ("--running-max", "3", "--queued-max", "1", "--body-max-bytes", "1048576")
    assert owners("set", "ann", *caps)[0] == 0
    status, shown = owners("set", "ann", "--writes-per-s", "0.5", "--writes-burst", "9")
    assert status == 0
    assert shown.splitlines() == [
        "running-max     3",
        "queued-max      1",
        "writes-per-s    0.5",
        "writes-burst    9",
        "body-max-bytes  1048576",
    ]
    assert json.loads(owners("show", "ann", "--json")[1])["queued_max"] == 1
    assert "running-max     256 (for everyone)" in owners("show", "nobody")[1]
    assert owners("list")[1].startswith("ann\trunning_max=3\tqueued_max=1\t")
    assert asyncio.run(queue_two(database_url)) == [202, 429]
    assert owners("reset", "ann") == (0, "reset ann\n")
    for wrong in (
        ("set", "ann"),
        ("set", "ann", "--running-max", "0"),
        ("set", "", "--running-max", "1"),
        ("reset", "x"),
    ):
        assert owners(*wrong)[0] == 2, wrong
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT id, running_max FROM owners").fetchall() == [("ann", None)]


async def queue_two(database_url: str) -> list[int]:
    async with calling(database_url) as (_producer, client):
        return [await admit_status(client) for _ in range(2)]


async def admit_status(client: httpx2.AsyncClient) -> int:
    session = await create_session(client)
    return (await client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})).status_code
