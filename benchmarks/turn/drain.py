"""The worker side alone: turns wait, admitted by nobody's leave but the store's, then a worker comes that serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.harness.arms import Arm
from benchmarks.harness.owners import Place, open_database
from benchmarks.harness.stores import PostgresCounts
from benchmarks.harness.system import System, wait_until_idle
from benchmarks.turn.app import DRAINED
from benchmarks.turn.clients import MESSAGE
from shared.database.pool import Database
from shared.domain.ids import new_run_id, new_turn_id
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits

#: Queued for each second of a block, and their bounds: enough that starting up is a small part.
TURNS_PER_S: Final = 600
TURNS_MIN: Final = 40
TURNS_MAX: Final = 5_000
BOUND_S: Final = 60.0
#: What the first turns take belongs to the start of a process; the rate is that of the rest.
SETTLING_SHARE: Final = 0.1
WORKER: Final = "drain"
LIMITS: Final = AdmissionLimits(queued_per_session=10_000, queued_per_owner=1_000_000)


@dataclass(slots=True)
class Drain:
    """Fills the queue and lets fresh workers empty it. ``ended`` and ``failed`` count turns over all blocks.

    ``is_compared`` says that arms of one worker and of several stand beside each other: each figure then names how many.
    """

    system: System
    counts: PostgresCounts
    places: Sequence[Place]
    is_compared: bool = False
    ended: int = 0
    failed: int = 0

    def arm(self, share: float, *, workers: int = 1) -> Arm:
        """Return the arm; each block's workers are new, so nothing is warmed up. With one its figure has the plain name."""
        figure = "drain_turns_per_s" if not self.is_compared else f"drain_turns_per_s_{_of(workers)}"
        measure = partial(self._measure, figure, workers)
        return Arm(f"drain, {_of(workers).replace('_', ' ')}", measure, share, warm_up=False)

    async def _measure(self, figure: str, workers: int, seconds: float) -> Mapping[str, float]:
        turns = min(TURNS_MAX, max(TURNS_MIN, round(seconds * TURNS_PER_S)))
        async with open_database(self.system.site) as database:
            await self._fill(database, turns)
        names = [f"{WORKER}-{n}" for n in range(1, workers + 1)]
        try:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    start = partial(self.system.start_worker, name, revisions=DRAINED)
                    group.create_task(asyncio.to_thread(start))
            await wait_until_idle(self.counts, BOUND_S, agents=[DRAINED])
        finally:
            await asyncio.to_thread(self.system.stop, *names)
        ends = self.counts.ends(DRAINED, skipped=self.ended)
        self.ended += len(ends)
        self.failed += sum(outcome != "completed" for _, outcome in ends)
        return {figure: rate_of([at for at, _ in ends])}

    async def _fill(self, database: Database, turns: int) -> None:
        queue = PostgresTurnQueue(database)
        wanted = (self.places[n % len(self.places)] for n in range(turns))
        await asyncio.gather(*(queue.admit(admission(place), LIMITS) for place in wanted))


def _of(workers: int) -> str:
    return "1_worker" if workers == 1 else f"{workers}_workers"


def admission(place: Place) -> Admission:
    """Return the admission of one more turn in a session."""
    return Admission(
        turn_id=new_turn_id(),
        run_id=new_run_id(),
        session_id=place.session,
        owner=place.owner,
        message={"text": MESSAGE},
        agent=DRAINED,
        agent_revision=DRAINED,
        max_duration_s=600.0,
    )


def rate_of(ended_at: Sequence[float]) -> float:
    """Return how many turns ended a second, from times in order; the first tenth is left out."""
    later = ended_at[round(len(ended_at) * SETTLING_SHARE) :]
    taken_s = later[-1] - later[0] if later else 0.0
    return (len(later) - 1) / taken_s if taken_s > 0 else 0.0
