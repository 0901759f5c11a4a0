"""Processes that migrate one new database at once wait for each other (SES-31)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from shared.database.embedded import EmbeddedServers
from shared.database.migrate import check, migrate
from shared.database.schema import VERSION


@pytest.mark.behaviour("SES-31")
def test_processes_that_migrate_a_new_database_at_once_all_find_it_whole(servers: EmbeddedServers) -> None:
    name = f"new_{uuid4().hex}"
    url = f"{servers.database_url.rsplit('/', 1)[0]}/{name}"
    with psycopg.connect(servers.database_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            with ThreadPoolExecutor(3) as processes:
                assert list(processes.map(migrate, [url] * 3)) == [VERSION] * 3
            assert check(url) == VERSION
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
