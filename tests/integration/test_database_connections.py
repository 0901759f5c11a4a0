"""What a pool of connections asks of its database before it is used, and how long it waits for one that is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

import shared.database
from producer.dev.torture.links import Link
from shared.database.embedded import EmbeddedServers
from shared.database.pool import Database
from shared.database.statements import load_statements
from shared.domain.errors import SchemaOutOfRange, Unavailable

SQL = load_statements(Path(shared.database.__file__).with_name("queries.sql"))


@pytest.mark.behaviour("OPS-05")
async def test_a_database_that_was_never_migrated_is_refused_with_what_to_do(
    servers: EmbeddedServers,
) -> None:
    database = Database(servers.create_database("never_migrated"), connections=1)
    with pytest.raises(SchemaOutOfRange, match="turnkeeper migrate"):
        await database.open()


async def test_a_server_that_is_gone_without_a_word_is_not_waited_for_as_long_as_the_system_would(
    database_url: str,
) -> None:
    """The system's own bound, a quarter of an hour, would keep every renewal of a process waiting."""
    database = Database(database_url, connections=1)
    await database.open()
    try:
        async with database.connection("test") as connection:
            asked = connection.info.get_parameters()
    finally:
        await database.close()
    idle_s, interval_s, count = (int(asked[f"keepalives_{part}"]) for part in ("idle", "interval", "count"))
    assert idle_s + interval_s * count <= 15
    assert int(asked["tcp_user_timeout"]) <= 15_000


@pytest.mark.behaviour("DST-25")
async def test_a_database_that_was_away_for_long_is_met_again_at_the_first_asking(database_url: str) -> None:
    """A pool whose pauses grow with the outage would let a process, and its leases, wait for as long again."""
    link = Link(database_url)
    await link.open()
    database = Database(link.url, connections=2, wait_s=2.0)
    await database.open()
    try:
        link.is_shut = True
        link.cut()
        # Seen from its beginning, pauses that double would come at 1, 3, 7 and 15 seconds.
        for _ in range(6):
            with pytest.raises(Unavailable):
                await database.read("test", SQL["read_version"], {})
        link.is_shut = False
        assert await database.read("test", SQL["read_version"], {})
    finally:
        await database.close()
        await link.close()
