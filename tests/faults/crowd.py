"""One more process beside a world's own, whose units of work leave together when a test wants them to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from shared.conformance.turn_stage import commit_id, ended, started, step
from shared.database.pool import Database
from shared.domain.failpoints import Failpoints
from shared.domain.ids import SessionId
from shared.turns.grouping.postgres import TurnGroups
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import AdmissionLimits, CallEntry, Claim, Ended, Ending, Opened, Receipt
from tests.faults.world import ATTEMPTS_MAX, BOUND_S, World, admission, hold_head, outcome

#: Nobody leaves because time passed: only what is under way decides.
FOR_EVER_S = 3_600.0

Answer = asyncio.Task[Any]


@dataclass(slots=True)
class Crowd:
    """A process over a world's database: its queue, its groups, and a session that holds its groups back."""

    w: World
    database: Database
    queue: PostgresTurnQueue
    groups: TurnGroups
    plug: SessionId

    async def together(self, *calls: Awaitable[Any]) -> Sequence[Answer]:
        """Make these calls so that they leave in one group, as far as they may; return them under way."""
        async with self.w.transaction() as holder:
            await hold_head(holder, self.plug)
            first = asyncio.create_task(self.queue.admit(admission(self.plug), AdmissionLimits()))
            await self.w.waits(first, "turn_admit_v3")
            tasks = [asyncio.ensure_future(outcome(call)) for call in calls]
            async with asyncio.timeout(BOUND_S):
                while True:
                    if self.groups.waiting == len(tasks):
                        break
                    await asyncio.sleep(0)
        await first
        return tasks

    async def append(self, claim: Claim, name: str, *, calls: Sequence[CallEntry] = ()) -> int:
        """Append one record of a step under the commit id ``name``."""
        return await self.queue.append(claim, commit_id(claim, name), [step()], calls=calls)

    async def open(self, claim: Claim) -> Opened:
        """Open a claimed turn."""
        return await self.queue.open(claim, commit_id(claim, "open"), [started(claim)])

    async def end(self, claim: Claim) -> Ended:
        """End an open turn."""
        return await self.queue.end(claim, commit_id(claim, "end"), [ended()], Ending("completed"))

    async def admit(self, session: SessionId, **given: Any) -> Receipt:
        """Admit a turn."""
        return await self.queue.admit(admission(session, **given), AdmissionLimits())

    def groups_sent(self) -> int:
        """How many groups were committed."""
        counted = self.database.counters.snapshot().get("turn.group")
        return counted.commits if counted else 0


@asynccontextmanager
async def crowd(w: World, *, url: str = "", failpoints: Failpoints | None = None) -> AsyncIterator[Crowd]:
    """Open one more process whose units of work go in groups; ``url`` is its way to the world's database."""
    database = Database(url or w.url, connections=6)
    await database.open()
    try:
        groups = TurnGroups(database, wait_s=FOR_EVER_S, failpoints=failpoints)
        queue = PostgresTurnQueue(database, attempts_max=ATTEMPTS_MAX, groups=groups)
        yield Crowd(w, database, queue, groups, await w.session())
        await groups.close()
    finally:
        await database.close()


async def answers(*tasks: Answer) -> list[Any]:
    """Wait for what calls were answered, in their order."""
    async with asyncio.timeout(BOUND_S):
        return list(await asyncio.gather(*tasks))
