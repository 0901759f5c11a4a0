"""The document store on a real database: atomic writes, exact costs, plans, and whose connection it reads on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import memory_pipeline.store
from memory_pipeline.store.conformance_stage import Stage, put, withdraw
from memory_pipeline.store.documents import Command, NamespaceAddress
from memory_pipeline.store.postgres import PostgresMemoryStore
from memory_pipeline.store.words import STOP_WORDS
from shared.database.embedded import EmbeddedServers
from shared.database.pool import Database
from shared.database.statements import load_statements
from shared.domain.errors import (
    MemoryCorrupt,
    MemoryOperationConflict,
    SchemaOutOfRange,
    StoreUnavailable,
)
from shared.domain.ids import OwnerId
from tests.support.waiting import await_until

OWNER = OwnerId("o")
NAMESPACE = NamespaceAddress('[1,"profile",1,{"owner":"o"}]')
SEARCH = load_statements(Path(memory_pipeline.store.__file__).with_name("queries.sql"))["search"]
TABLES = ("memory_documents", "memory_versions", "memory_receipts", "index_sources", "jobs")


@asynccontextmanager
async def opened(url: str, **options: str) -> AsyncIterator[Stage]:
    database = Database(make_conninfo(url, **options), connections=4)
    await database.open()
    try:
        yield Stage(PostgresMemoryStore(database), NAMESPACE, OWNER)
    finally:
        await database.close()


@pytest.fixture
async def at(database_url: str) -> AsyncIterator[Stage]:
    async with opened(database_url) as stage:
        yield stage


@pytest.fixture
def admin(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def rows(admin: psycopg.Connection[Any], statement: str, *values: Any) -> list[tuple[Any, ...]]:
    return admin.execute(statement.encode(), values).fetchall()


def counts(admin: psycopg.Connection[Any]) -> dict[str, int]:
    return {table: rows(admin, f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}


def waiting_writer(admin: psycopg.Connection[Any], *not_these: int | None) -> int | None:
    """The backend that waits for a lock inside the write."""
    found = rows(
        admin,
        """SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
             AND query LIKE '%%memory_write_v1%%' AND pid <> ALL (%s)""",
        list(not_these),
    )
    return int(found[0][0]) if found else None


def profile(admin: psycopg.Connection[Any], name: str = "p", *, active: bool = True) -> None:
    admin.execute(
        "INSERT INTO index_profiles (profile, description, active) VALUES (%s, '', %s)", [name, active]
    )


@pytest.mark.behaviour("MEM-T02")
@pytest.mark.parametrize("kind", ["create", "replace", "withdraw"])
async def test_a_backend_killed_inside_a_write_leaves_all_or_nothing(
    kind: str, at: Stage, admin: psycopg.Connection[Any], database_url: str
) -> None:
    if kind != "create":
        await at.put("before")
    profile(admin)
    before = counts(admin)
    commands: dict[str, Command] = {
        "create": put(at.key(), "blue"),
        "replace": put(at.key(), "blue", "1"),
        "withdraw": withdraw(at.key(), "1"),
    }
    command = commands[kind]
    with psycopg.connect(database_url) as blocker:
        # The last thing a write stores is the index's debt: there it waits, all else written and not committed.
        blocker.execute(
            "INSERT INTO index_sources (profile, namespace, id, owner, job_id) VALUES ('p', %s, 'd', 'o', 'other')",
            [NAMESPACE],
        )
        writing = asyncio.create_task(at.store.write(command, owner=OWNER))
        first = await await_until(lambda: waiting_writer(admin), what="a waiting write")
        rows(admin, "SELECT pg_terminate_backend(%s)", first)
        # The store sends a command again whose connection died: it is the same operation.
        again = await await_until(lambda: waiting_writer(admin, first), what="the second try")
        rows(admin, "SELECT pg_terminate_backend(%s)", again)
        with pytest.raises(StoreUnavailable):
            await writing
        assert counts(admin) == before
        blocker.rollback()
    made = await at.store.write(command, owner=OWNER)
    assert made == await at.now()
    assert counts(admin) == {
        "memory_documents": 1,
        "memory_versions": made.generation,
        "memory_receipts": made.generation,
        "index_sources": 1,
        "jobs": 1,
    }


@pytest.mark.behaviour("MEM-34")
@pytest.mark.parametrize("first_commits", [True, False])
async def test_one_operation_id_on_two_documents_waits_for_the_first_to_end(
    first_commits: bool, at: Stage, admin: psycopg.Connection[Any], database_url: str
) -> None:
    with psycopg.connect(database_url) as first:
        first.execute(
            """SELECT memory_write_v1(%s, 'first', 'o', 'op', '\\x00', 'put', NULL, 'l', '{private}', '{}', 'b', NULL,
                                      1000000)""",
            [NAMESPACE],
        )
        second = asyncio.create_task(at.store.write(put(at.key(), operation_id="op"), owner=OWNER))
        await await_until(lambda: waiting_writer(admin), what="a waiting write")
        first.commit() if first_commits else first.rollback()
    if first_commits:
        with pytest.raises(MemoryOperationConflict):
            await second
        assert await at.store.read(at.key()) is None
    else:
        assert await second == await at.now()
    assert counts(admin)["memory_receipts"] == 1


@pytest.mark.behaviour("MEM-56")
async def test_each_operation_is_one_statement_in_one_round_trip(database_url: str) -> None:
    database = Database(database_url, connections=2)
    await database.open()
    at = Stage(PostgresMemoryStore(database), NAMESPACE, OWNER)
    try:
        await at.put("blue")
        await at.store.read_many([at.key(f"d{n}") for n in range(100)])
        await at.store.search(NAMESPACE, "private", "blue")
        await at.store.history(at.key())
        await at.store.list(NAMESPACE)
        spent = database.counters.snapshot()
    finally:
        await database.close()
    assert {unit: (c.statements, c.round_trips, c.commits) for unit, c in spent.items()} == {
        "memory.write": (1, 1, 1),
        "memory.read": (1, 1, 0),
        "memory.search": (1, 1, 0),
        "memory.history": (1, 1, 0),
        "memory.list": (1, 1, 0),
    }


async def test_a_write_owes_each_active_profile_one_index_job(
    at: Stage, admin: psycopg.Connection[Any]
) -> None:
    profile(admin, "p1")
    profile(admin, "p2")
    profile(admin, "off", active=False)
    command = put(at.key(), "blue")
    await at.store.write(command, owner=OWNER)
    admin.execute("UPDATE jobs SET status = 'idle'")
    await at.store.write(command, owner=OWNER)
    assert rows(admin, "SELECT DISTINCT status FROM jobs") == [("idle",)], "a replay owes nothing"
    await at.withdraw("1")
    owed = "SELECT s.profile, j.pool, j.owner, j.status FROM index_sources s JOIN jobs j ON j.id = s.job_id ORDER BY 1"
    assert rows(admin, owed) == [("p1", "index", "o", "ready"), ("p2", "index", "o", "ready")]


@pytest.mark.behaviour("MEM-38")
@pytest.mark.parametrize(
    "change", ["generation = 2", "locator = 'x'", "scopes = '{team}'", "status = 'withdrawn', reason = 'r'"]
)
async def test_a_row_that_contradicts_its_document_is_corrupt(
    change: str, at: Stage, admin: psycopg.Connection[Any]
) -> None:
    await at.put("blue")
    if change.startswith("status"):
        change += ", body = '', scopes = '{}'"
    admin.execute(f"UPDATE memory_documents SET {change}".encode())
    with pytest.raises(MemoryCorrupt):
        await at.store.read(at.key())
    with pytest.raises(MemoryCorrupt):
        await at.store.list(NAMESPACE)


async def test_a_withdrawn_row_keeps_locator_and_reason_and_no_content(
    at: Stage, admin: psycopg.Connection[Any]
) -> None:
    await at.put("blue")
    await at.withdraw("1", reason="asked for")
    kept = "SELECT status, locator, reason, body, search::text, scopes FROM memory_documents"
    assert rows(admin, kept) == [("withdrawn", "memory/d", "asked for", "", "", [])]


@pytest.mark.behaviour("MEM-01", "MEM-50")
async def test_reading_needs_no_right_to_write_and_a_writer_without_it_writes_nothing(
    at: Stage, admin: psycopg.Connection[Any], database_url: str
) -> None:
    stored = await at.put("blue")
    async with opened(database_url, options="-c default_transaction_read_only=on") as reader:
        assert await reader.store.read(at.key()) == stored
        assert len(await reader.store.search(NAMESPACE, "private", "blue")) == 1
        assert (
            list(await reader.store.list(NAMESPACE)) == list(await reader.store.history(at.key())) == [stored]
        )
        before = counts(admin)
        with pytest.raises(StoreUnavailable):
            await reader.put("green", "1")
        assert counts(admin) == before


@pytest.mark.behaviour("MEM-T14")
async def test_a_start_on_a_database_without_the_schema_fails_typed_and_creates_nothing(
    servers: EmbeddedServers,
) -> None:
    url = servers.create_database("memory_empty")
    with pytest.raises(SchemaOutOfRange):
        async with opened(url):
            pass
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
    assert found == (0,)


@pytest.mark.behaviour("MEM-40", "MEM-44", "MEM-T08")
async def test_a_reader_is_in_nobodys_older_snapshot(at: Stage, database_url: str) -> None:
    await at.put("blue")
    with psycopg.connect(database_url) as caller:
        caller.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert caller.execute("SELECT status FROM memory_documents").fetchall() == [("active",)]
        await at.withdraw("1")
        assert caller.execute("SELECT status FROM memory_documents").fetchall() == [("active",)]
        assert (await at.now()).withdrawn
        assert list(await at.store.search(NAMESPACE, "private", "blue")) == []
    async with opened(database_url, options="-c default_transaction_isolation=repeatable\\ read") as other:
        assert (await other.now()).withdrawn


def fill(admin: psycopg.Connection[Any], *, namespaces: int, documents: int) -> None:
    """Store documents of few common words and one rare word each."""
    admin.execute(
        """INSERT INTO memory_documents (namespace, id, owner, generation, status, locator, scopes, body, modified_at)
             SELECT 'n' || n, 'd' || d, 'o' || n, 1, 'active', 'l', '{private}', 'common words and rare' || d, now()
               FROM generate_series(1, %s) n, generate_series(1, %s) d""",
        [namespaces, documents],
    )
    admin.execute("VACUUM ANALYZE memory_documents")


def plan_of(admin: psycopg.Connection[Any], namespace: str) -> list[dict[str, Any]]:
    """The nodes of the search's plan that touch documents."""
    params = {
        "namespace": namespace,
        "scope": "private",
        "query": "rare7",
        "stop_words": sorted(STOP_WORDS),
        "max_words": 64,
        "limit": 8,
    }
    [(text,)] = admin.execute(f"EXPLAIN (FORMAT JSON) {SEARCH.text}".encode(), params).fetchall()
    todo, found = [text[0]["Plan"]], []
    while todo:
        node = todo.pop()
        todo += node.get("Plans", [])
        found.append(node)
    return [
        n for n in found if "memory_documents" in json.dumps([n.get("Relation Name"), n.get("Index Name")])
    ]


def test_a_search_among_many_documents_uses_the_word_index(admin: psycopg.Connection[Any]) -> None:
    fill(admin, namespaces=1, documents=5_000)
    nodes = plan_of(admin, "n1")
    assert "memory_documents_search" in {node.get("Index Name") for node in nodes}
    assert "Seq Scan" not in {node["Node Type"] for node in nodes}


def test_a_search_among_many_namespaces_looks_at_its_own_only(admin: psycopg.Connection[Any]) -> None:
    fill(admin, namespaces=5_000, documents=5)
    nodes = plan_of(admin, "n7")
    assert {node.get("Index Name") for node in nodes} - {None} == {"memory_documents_pkey"}
    assert "Seq Scan" not in {node["Node Type"] for node in nodes}
