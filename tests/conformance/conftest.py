"""The backends that every kit runs on, and one migrated database a test module for those on Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from shared.conformance import LeasesSubject, SessionLogRecoverySubject, TurnQueueSubject
from shared.conformance.turn_stage import TAKEOVER_LEASE_S
from shared.database.embedded import EmbeddedServers
from shared.database.migrate import migrate
from tests.conformance.subjects import (
    GroupedTurnQueueSubject,
    InprocLeasesSubject,
    InprocSessionLogSubject,
    InprocTurnQueueSubject,
    PostgresLeasesSubject,
    PostgresSessionLogSubject,
    PostgresTurnQueueSubject,
)

MACHINE_POSTGRES = "postgresql://postgres@127.0.0.1:5432/postgres"


@contextmanager
def _scratch_database(server_url: str) -> Iterator[str]:
    """A migrated database of this server, dropped afterwards; the server is up for longer than a takeover judges by."""
    name = sql.Identifier(f"kit_{uuid4().hex}")
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(name))
    try:
        url = f"{server_url.rsplit('/', 1)[0]}/{name.as_string()[1:-1]}"
        migrate(url)
        with psycopg.connect(url) as connection:
            up_for = f"{TAKEOVER_LEASE_S + 1} seconds"
            connection.execute("SELECT pg_sleep_until(pg_postmaster_start_time() + %s::interval)", [up_for])
            # Checks move stored times back by hours: as if the database had been up for all of them.
            connection.execute(
                "CREATE OR REPLACE FUNCTION database_started_v1() RETURNS timestamptz LANGUAGE sql STABLE"
                " RETURN pg_postmaster_start_time() - interval '10 years'"
            )
        yield url
    finally:
        with psycopg.connect(server_url, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture(scope="module")
def embedded_url(servers: EmbeddedServers) -> Iterator[str]:
    """A database of the embedded server; checks use names of their own, so they share it."""
    with _scratch_database(servers.database_url) as url:
        yield url


@pytest.fixture(scope="module")
def machine_url() -> Iterator[str]:
    """A database of the machine's own server, when that answers."""
    try:
        psycopg.connect(MACHINE_POSTGRES, connect_timeout=2).close()
    except psycopg.OperationalError:
        pytest.skip("the machine's own PostgreSQL does not answer")
    with _scratch_database(MACHINE_POSTGRES) as url:
        yield url


@pytest.fixture(
    params=["inproc", "postgres", pytest.param("machine-postgres", marks=pytest.mark.second_matrix)]
)
def backend_url(request: pytest.FixtureRequest) -> str | None:
    """The database to run on; None is the twin in memory."""
    fixtures = {"postgres": "embedded_url", "machine-postgres": "machine_url"}
    fixture = fixtures.get(request.param)
    url: str | None = request.getfixturevalue(fixture) if fixture is not None else None
    return url


@pytest.fixture
async def session_log_subject(backend_url: str | None) -> AsyncIterator[SessionLogRecoverySubject]:
    """A session log to run a check on."""
    if backend_url is None:
        yield InprocSessionLogSubject()
        return
    async with PostgresSessionLogSubject(backend_url) as subject:
        yield subject


@pytest.fixture(
    params=[
        "inproc",
        "postgres",
        "grouped-postgres",
        pytest.param("machine-postgres", marks=pytest.mark.second_matrix),
    ]
)
async def turn_queue_subject(request: pytest.FixtureRequest) -> AsyncIterator[TurnQueueSubject]:
    """A turn queue to run a check on; the grouped one sends every unit of work as a group, alone or not."""
    if request.param == "inproc":
        yield InprocTurnQueueSubject()
        return
    url = request.getfixturevalue("machine_url" if request.param == "machine-postgres" else "embedded_url")
    kind = GroupedTurnQueueSubject if request.param == "grouped-postgres" else PostgresTurnQueueSubject
    async with kind(url) as subject:
        yield subject


@pytest.fixture
async def leases_subject(backend_url: str | None) -> AsyncIterator[LeasesSubject]:
    """Named leases to run a check on."""
    if backend_url is None:
        yield InprocLeasesSubject()
        return
    async with PostgresLeasesSubject(backend_url) as subject:
        yield subject
