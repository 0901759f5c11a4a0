"""Seeds a database with finished turns; sessions that were seeded pass ``turnkeeper verify``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.seeding.history import SeededTurn
from shared.database.pool import Database
from shared.database.statements import load_statements
from shared.domain.canonical import canonical_json, digest_of
from shared.domain.ids import OwnerId, SessionId

_SQL: Final = load_statements(Path(__file__).with_name("queries.sql"))

#: Connections that seed at once: the server sorts out the pages, the statements are the same.
LANES: Final = 2
#: Turns of one statement: enough that its start costs nothing, few enough that its memory stays small.
BATCH_TURNS: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """Sessions named ``session`` and a number from 1 on, each with its turns, of owners named ``owner`` and a number.

    ``agent`` and ``revision`` are of the turns' rows; ``turn`` is what each one's log holds.
    """

    turn: SeededTurn
    sessions: int
    turns_each: int
    session: str = "old "
    owner: str = "other "
    owners: int = 50
    agent: str = ""
    revision: str = "1"
    message: str = "hello"

    def session_id(self, number: int = 1) -> SessionId:
        """Return the id of the session with this number."""
        return SessionId(f"{self.session}{number}")

    def owner_id(self, number: int = 1) -> OwnerId:
        """Return the owner of the session with this number."""
        return OwnerId(f"{self.owner}{number % self.owners + 1}")

    @property
    def turns(self) -> int:
        """How many turns there are in all."""
        return self.sessions * self.turns_each


async def seed(url: str, wanted: Seed) -> None:
    """Make the rows of ``wanted``, then leave the database as one that has been looked after: vacuumed, analysed, flushed."""
    database = Database(url, connections=LANES, name="seeding")
    await database.open()
    try:
        lanes = _lanes(wanted)
        async with database.connection("seed") as connection:
            await connection.execute(_SQL["owners"].text, _params(wanted))
        await asyncio.gather(*(_fill(database, wanted, lane) for lane in lanes))
        async with database.connection("seed") as connection:
            await connection.execute(_SQL["settle"].text)
            await connection.execute(_SQL["checkpoint"].text)
    finally:
        await database.close()


def _lanes(wanted: Seed) -> list[list[tuple[int, int]]]:
    """Return the ranges of sessions that each connection makes, first and last number of each."""
    ranges = list(_batches(wanted))
    return [ranges[lane::LANES] for lane in range(LANES)]


def _batches(wanted: Seed) -> Iterator[tuple[int, int]]:
    each = max(1, min(BATCH_TURNS // wanted.turns_each, -(-wanted.sessions // LANES)))
    for first in range(1, wanted.sessions + 1, each):
        yield first, min(first + each - 1, wanted.sessions)


async def _fill(database: Database, wanted: Seed, ranges: list[tuple[int, int]]) -> None:
    async with database.connection("seed") as connection:
        await connection.execute(_SQL["make_chain"].text)
        for first, last in ranges:
            params = _params(wanted) | {"first": first, "last": last}
            for name in ("turns", "records", "keys", "sessions"):
                await connection.execute(_SQL[name].text, params)


def _params(wanted: Seed) -> dict[str, Any]:
    message = canonical_json({"text": wanted.message})
    return {
        "session": wanted.session,
        "owner": wanted.owner,
        "owners": wanted.owners,
        "turns_each": wanted.turns_each,
        "records_each": len(wanted.turn.drafts),
        "records_open": wanted.turn.opening,
        "kinds": [one.kind for one in wanted.turn.drafts],
        "texts": [one.text for one in wanted.turn.drafts],
        "print": digest_of(message),
        "message": message,
        "agent": wanted.agent,
        "revision": wanted.revision,
    }
