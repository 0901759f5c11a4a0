"""Two databases on one server that differ in what has happened in them: a small one, which is the baseline, and a large one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from benchmarks.harness.site import Site
from benchmarks.seeding.history import brief_turn
from benchmarks.seeding.postgres import Seed, seed
from producer.dev.places import Say
from shared.database.migrate import migrate
from shared.database.pool import Database
from shared.database.statements import load_statements
from shared.domain.ids import OwnerId, SessionId, new_run_id, new_turn_id
from shared.sessions.vocabulary import TurnEnded, TurnReply, TurnStarted, UserMessage, draft_of
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits, Claim, Ending, OnWorkerLoss

_SQL: Final = load_statements(Path(__file__).with_name("queries.sql"))

TURNS_EACH: Final = 10
#: About what a short message and its answer have.
TEXT: Final = "Nothing much, and everything that was asked for. " * 2
LIMITS: Final = AdmissionLimits()
ANSWER: Final = "Noted."


@dataclass(frozen=True, slots=True)
class Spent:
    """What some work took of the database: pages that were touched, rows that were read, in all."""

    pages: int
    rows: int


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two databases, ``name`` its name on the server. Its one connection does all the work, so that what is counted is that work's alone."""

    name: str
    database: Database
    queue: PostgresTurnQueue
    seeded: Seed
    counting: AsyncConnection[dict[str, Any]]

    @classmethod
    async def open(cls, url: str, name: str, seeded: Seed) -> Self:
        """Connect to a database that was seeded."""
        database = Database(url, connections=1, wait_s=30.0, name=f"bench-{name}")
        await database.open()
        beside = f"{url.rpartition('/')[0]}/postgres"
        counting = await AsyncConnection.connect(beside, autocommit=True, row_factory=dict_row)
        return cls(name, database, PostgresTurnQueue(database), seeded, counting)

    async def close(self) -> None:
        """Close both connections."""
        await self.counting.close()
        await self.database.close()

    def places(self, count: int) -> list[tuple[SessionId, OwnerId]]:
        """Return the ``count`` youngest sessions with their owners: those that live, among all that are there."""
        last = self.seeded.sessions
        return [
            (self.seeded.session_id(n), self.seeded.owner_id(n)) for n in range(last - count + 1, last + 1)
        ]

    async def admit(
        self,
        session: SessionId,
        owner: OwnerId,
        *,
        revision: str = "1",
        on_worker_loss: OnWorkerLoss = "continue",
    ) -> Admission:
        """Admit one more turn in a session that has none."""
        wanted = Admission(
            turn_id=new_turn_id(),
            run_id=new_run_id(),
            session_id=session,
            owner=owner,
            message={"text": TEXT},
            agent_revision=revision,
            on_worker_loss=on_worker_loss,
        )
        await self.queue.admit(wanted, LIMITS)
        return wanted

    async def open_turn(self, claim: Claim) -> None:
        """Open a claimed turn as a worker does."""
        await self.queue.open(claim, f"{claim.fence.token}:open", [draft_of(_started(claim))])

    async def end_turn(self, claim: Claim) -> None:
        """End an open turn with a reply."""
        last = [TurnReply(outcome="completed", text=ANSWER), TurnEnded(reason="completed")]
        await self.queue.end(
            claim, f"{claim.fence.token}:end", [draft_of(one) for one in last], Ending("completed")
        )

    async def execute(self, name: str, ids: Sequence[object]) -> None:
        """Run one of the statements that set a scene, for these turns."""
        async with self.database.connection("scene") as connection:
            await connection.execute(_SQL[name].text, {"ids": list(ids)})

    async def claimed_at(self, lease_s: float) -> float:
        """Return when the one turn that is held was claimed (``time.time``); no renewal may have come since."""
        async with self.database.connection("look") as connection:
            read = await connection.execute(_SQL["claimed_at"].text, {"lease_s": lease_s})
            return float((await read.fetchall())[0]["at"])

    async def spent(self, work: Callable[[], Awaitable[object]]) -> Spent:
        """Do some work and return what it took of the database; exact while nothing else is done in it."""
        rows = await self._rows()
        pages = await self._pages()
        await work()
        pages = await self._pages() - pages
        return Spent(pages, await self._rows() - rows)

    async def _pages(self) -> int:
        await self._flush()
        read = await self.counting.execute(_SQL["pages"].text, {"database": self.name})
        return int((await read.fetchall())[0]["pages"])

    async def _rows(self) -> int:
        await self._flush()
        async with self.database.connection("count") as connection:
            read = await connection.execute(_SQL["rows"].text)
            return int((await read.fetchall())[0]["rows"])

    async def _flush(self) -> None:
        async with self.database.connection("count") as connection:
            await connection.execute(_SQL["flush"].text)


@asynccontextmanager
async def two_sides(site: Site, *, small: int, large: int, say: Say) -> AsyncIterator[tuple[Side, Side]]:
    """Make, seed and open a database with ``small`` finished turns and one with ``large``, ten turns a session."""
    sides: list[Side] = []
    try:
        for name, turns in (("small", small), ("large", large)):
            began = time.perf_counter()
            url = site.servers.create_database(name)
            migrate(url)
            wanted = Seed(turn=brief_turn(TEXT), sessions=turns // TURNS_EACH, turns_each=TURNS_EACH)
            await seed(url, wanted)
            sides.append(await Side.open(url, name, wanted))
            say(f"{turns:,} finished turns were made in {time.perf_counter() - began:.1f} s")
        yield sides[0], sides[1]
    finally:
        for side in sides:
            await side.close()


def _started(claim: Claim) -> TurnStarted:
    return TurnStarted(
        turn_id=str(claim.turn_id),
        run_id=claim.run_id,
        entry=f"{claim.run_id}:0",
        origin="user",
        user_message=UserMessage(text=TEXT),
    )
