"""Real servers for tests: one embedded pair a test session, a fresh migrated database a test, and own pairs for faults."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from shared.database.embedded import EmbeddedServers
from shared.database.migrate import migrate

_NAMES = itertools.count(1)
TEMPLATE = "template_turnkeeper"

#: What makes a test server quick without changing what is tested; durability across power loss is not.
TUNE = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "64MB", "max_connections": "120"}


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServers]:
    """The pair that most tests share. Never stopped, flushed or restarted by a test."""
    with EmbeddedServers(tmp_path_factory.mktemp("servers"), tune=TUNE) as pair:
        migrate(pair.create_database(TEMPLATE))
        yield pair


@pytest.fixture
def database_url(servers: EmbeddedServers) -> Iterator[str]:
    """A fresh migrated database, cloned from a template and dropped afterwards."""
    name = f"test_{os.getpid()}_{next(_NAMES)}"
    base = servers.database_url
    with psycopg.connect(base, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(TEMPLATE))
        )
    yield base.rsplit("/", 1)[0] + f"/{name}"
    with psycopg.connect(base, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def redis_url(servers: EmbeddedServers) -> str:
    """The shared Valkey. Tests name their keys and queues after themselves, and flush nothing."""
    return servers.redis_url


@dataclass(frozen=True, slots=True)
class SharedServers:
    """A database of a test's own on the shared pair, and the shared Valkey."""

    database_url: str
    redis_url: str


@pytest.fixture
def shared_servers(database_url: str, redis_url: str) -> SharedServers:
    """Servers for a system that neither flushes, stops nor restarts them; wakes of an earlier test are hints like any."""
    return SharedServers(database_url, f"{redis_url.rpartition('/')[0]}/7")


@pytest.fixture
def own_servers(tmp_path: Path) -> Iterator[EmbeddedServers]:
    """A pair of this test's own, migrated: it may be flushed, stopped and restarted."""
    with EmbeddedServers(tmp_path / "own", tune=TUNE | {"fsync": "on"}) as pair:
        migrate(pair.database_url)
        yield pair
