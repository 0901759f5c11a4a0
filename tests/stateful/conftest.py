"""What the state machines drive, and how long they search."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from shared.conformance.turn_stage import TAKEOVER_LEASE_S
from shared.database.pool import Database, Row
from shared.turns.grouping.postgres import TurnGroups
from tests.stateful.sides import InprocWorks, PostgresWorks, Side

#: An hour without a try counts from the database's start at the earliest.
STARTED_LONG_AGO = (
    "CREATE OR REPLACE FUNCTION database_started_v1() RETURNS timestamptz LANGUAGE sql STABLE"
    " RETURN now() - interval '3 h'"
)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The loop that runs every call of one test."""
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@pytest.fixture
def twin() -> Side:
    """The twin."""
    return Side(InprocWorks())


@pytest.fixture
def postgres(database_url: str, loop: asyncio.AbstractEventLoop) -> Iterator[Side]:
    """Postgres over real connections; its server is up for longer than a takeover judges by."""
    with works_over(database_url, loop, grouped=False) as works:
        yield Side(works)


@pytest.fixture
def grouped(database_url: str, loop: asyncio.AbstractEventLoop) -> Iterator[Side]:
    """The same, where every unit of work that may share a statement goes by the group's."""
    with works_over(database_url, loop, grouped=True) as works:
        yield Side(works)


@contextmanager
def works_over(
    database_url: str, loop: asyncio.AbstractEventLoop, *, grouped: bool
) -> Iterator[PostgresWorks]:
    with psycopg.connect(database_url) as connection:
        up_for = f"{TAKEOVER_LEASE_S + 1} seconds"
        connection.execute(STARTED_LONG_AGO)
        connection.execute("SELECT pg_sleep_until(pg_postmaster_start_time() + %s::interval)", [up_for])
    database = Database(database_url, connections=2)
    loop.run_until_complete(database.open())
    admin: AsyncConnection[Row] = loop.run_until_complete(
        AsyncConnection.connect(database_url, autocommit=True, row_factory=dict_row)
    )
    yield PostgresWorks(loop, database, admin, groups=TurnGroups(database, least=1) if grouped else None)
    loop.run_until_complete(admin.close())
    loop.run_until_complete(database.close())
