"""Whom the load is of: owners with API keys, and sessions of theirs, made through the product's ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.harness.site import Site
from shared.database.pool import Database
from shared.domain.ids import OwnerId, SessionId, new_session_id
from shared.owners.keys import new_key
from shared.owners.postgres import PostgresApiKeys
from shared.sessions.log import NewSession
from shared.sessions.postgres import PostgresSessionLog

CONNECTIONS: Final = 8


@dataclass(frozen=True, slots=True)
class Place:
    """A session, its owner, and a key of the owner's."""

    session: SessionId
    owner: OwnerId
    key: str


@asynccontextmanager
async def open_database(site: Site) -> AsyncIterator[Database]:
    """Lend the product's database to what prepares a block; closed before anything is measured."""
    database = Database(site.database_url, connections=CONNECTIONS, wait_s=30.0, name="turnkeeper-bench")
    await database.open()
    try:
        yield database
    finally:
        await database.close()


async def make_places(database: Database, *, owners: int, sessions: int, name: str = "owner") -> list[Place]:
    """Make ``sessions`` sessions in turn over ``owners`` owners, each with a key, and return them."""
    keys = [new_key() for _ in range(owners)]
    ids = [OwnerId(f"{name}-{n}") for n in range(owners)]
    for key, owner in zip(keys, ids, strict=True):
        await PostgresApiKeys(database).add(key, owner, "bench")
    places = [Place(new_session_id(), ids[n % owners], keys[n % owners].text) for n in range(sessions)]
    log = PostgresSessionLog(database)
    await asyncio.gather(*(log.create(NewSession(place.session, place.owner)) for place in places))
    return places
