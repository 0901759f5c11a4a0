"""Sweeps where a thousand turns have ended and where a hundred thousand have, with the same sixteen owed, and compares."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import uvloop

from benchmarks.catalogue import Wish
from benchmarks.harness.arms import Arm, Measured, in_turn, measure_in_turn
from benchmarks.harness.machine import machine_note
from benchmarks.harness.quantiles import median
from benchmarks.harness.report import Report, Target
from benchmarks.harness.site import Site, open_site
from benchmarks.seeding.sides import Side, two_sides
from producer.dev.places import Say
from shared.domain.errors import StoreDefect
from shared.domain.ids import WorkerId
from shared.inbox.postgres import PostgresInbox
from shared.jobs.postgres import PostgresJobQueue
from shared.settings import load_settings
from shared.tasks.postgres import PostgresTaskStore
from shared.turns.queue import ClaimRequest
from workers.sweeps import CountingBell, Sweep, inbox_sweep, job_sweep, task_sweeps, turn_sweeps

SECONDS: Final = 30.0
SMALL: Final = 1_000
LARGE: Final = 100_000
#: Sixteen owed: turns whose worker is gone and that nobody may go on with, and turns that nobody was woken for.
LOST: Final = 8
UNRUNG: Final = 8
#: Sweeps whose pages and rows are counted.
COUNTED: Final = 10
WORKER: Final = WorkerId("bench")
REVISION: Final = "lost"
#: Nobody serves it: these turns are owed from the first sweep to the last.
UNSERVED: Final = "unserved"

TARGETS: Final = (
    Target("ratio_sweep", floor=1.2, aim=1.05, at_most=True),
    Target("ratio_pages", floor=1.2, aim=1.05, at_most=True),
)


def run(wish: Wish, say: Say) -> Report:
    """Seed both databases, measure, and report; for the main thread."""
    seconds = wish.seconds_or(SECONDS)
    with open_site() as site:
        machine = machine_note(site.home)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            measured, counts, repaired = runner.run(_measure(site, seconds, say))
    return Report(
        benchmark="sweep",
        seconds=seconds,
        machine=machine,
        repeats=measured.repeats(),
        ratios={
            "ratio_pages": counts["pages_large"] / max(1.0, counts["pages_small"]),
        },
        counts=counts | {"finished_turns_small": SMALL, "finished_turns_large": LARGE, "owed": LOST + UNRUNG},
        tables={"repaired a sweep": repaired},
        targets=TARGETS,
    )


class _NoBell:
    def ring(self, queue: str, ids: Sequence[str] = ()) -> None:
        """Ring for nobody: what is measured ends where the broker begins."""


@dataclass(slots=True)
class Upkeep:
    """One side's sweeps, all but retention's, which rests an hour between its passes; ``taken`` is in seconds."""

    side: Side
    taken: list[float] = field(default_factory=list)
    repaired: Counter[str] = field(default_factory=Counter)
    passes: int = 0

    async def set_scene(self) -> None:
        """Admit the turns that nobody is woken for."""
        places = self.side.places(UNRUNG)
        ids = [(await self.side.admit(*place, revision=UNSERVED)).turn_id for place in places]
        await self.side.execute("age", ids)

    async def lose_turns(self) -> None:
        """Have a worker open turns that are interrupted with it, and fall silent."""
        for place in self.side.places(LOST + UNRUNG)[:LOST]:
            await self.side.admit(*place, revision=REVISION, on_worker_loss="interrupt")
        wanted = ClaimRequest(WORKER, LOST, revisions=[REVISION], takeovers=False)
        claims = await self.side.queue.claim(wanted)
        for claim in claims:
            await self.side.open_turn(claim)
        await self.side.execute("lose", [claim.turn_id for claim in claims])

    async def sweep(self) -> None:
        """One pass of every sweep. Raises ``StoreDefect`` when it repairs anything but what is owed."""
        bell = CountingBell(_NoBell())
        began = time.perf_counter()
        for one in self._sweeps(bell):
            self.repaired[one.name] += await one.act()
        self.taken.append(time.perf_counter() - began)
        self.passes += 1
        found = (self.repaired["turns.reap"] / self.passes, self.repaired["turns.ring"] / self.passes)
        if found != (LOST, 1):
            raise StoreDefect("a sweep did not find what was owed", found=str(found))

    def _sweeps(self, bell: CountingBell) -> list[Sweep]:
        database, settings = self.side.database, load_settings({})
        tasks = PostgresTaskStore(database, attempts_max=settings.attempts_max)
        return [
            *turn_sweeps(self.side.queue, bell, on_change=lambda _session: None),
            *task_sweeps(tasks, bell, on_change=lambda _session: None),
            inbox_sweep(PostgresInbox(database), bell),
            job_sweep(PostgresJobQueue(database), bell),
        ]


async def _measure(
    site: Site, seconds: float, say: Say
) -> tuple[Measured, dict[str, float], dict[str, float]]:
    async with two_sides(site, small=SMALL, large=LARGE, say=say) as sides:
        upkeeps = [Upkeep(side) for side in sides]
        for one in upkeeps:
            await one.set_scene()
        # Both sides in one block, sweep by sweep: what a neighbour of the machine takes, it takes from both.
        measured = await measure_in_turn([Arm("both sides", partial(_block, upkeeps))], seconds, say)
        counts: dict[str, float] = {}
        for one in upkeeps:
            counts |= await _counted(one)
    large = upkeeps[-1]
    return measured, counts, {name: n / large.passes for name, n in large.repaired.items()}


async def _block(upkeeps: Sequence[Upkeep], seconds: float) -> Mapping[str, float]:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for one in in_turn(upkeeps, 2):
            await one.lose_turns()
            await one.sweep()
    figures: dict[str, float] = {}
    for one in upkeeps:
        figures[f"sweep_p50_ms_{one.side.name}"] = median(one.taken) * 1e3
        one.taken = []
    # Of each block by itself: the machine's pace may be another one in the next.
    small, large = (figures[f"sweep_p50_ms_{one.side.name}"] for one in upkeeps)
    return figures | {"ratio_sweep": large / small}


async def _counted(upkeep: Upkeep) -> dict[str, float]:
    """Return pages and rows of a sweep, as means of ``COUNTED``."""
    pages = rows = 0
    for _ in range(COUNTED):
        await upkeep.lose_turns()
        spent = await upkeep.side.spent(upkeep.sweep)
        pages, rows = pages + spent.pages, rows + spent.rows
    return {f"pages_{upkeep.side.name}": pages / COUNTED, f"rows_{upkeep.side.name}": rows / COUNTED}
