"""Admits and claims turns where a thousand turns have ended and where a million have, one after the other, and compares."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import uvloop

from benchmarks.catalogue import Wish
from benchmarks.harness.arms import Arm, Measured, in_turn, measure_in_turn
from benchmarks.harness.machine import machine_note
from benchmarks.harness.quantiles import quantile
from benchmarks.harness.report import Report, Target
from benchmarks.harness.site import Site, open_site
from benchmarks.seeding.sides import Side, two_sides
from producer.dev.places import Say
from shared.domain.errors import StoreDefect
from shared.domain.ids import OwnerId, SessionId, WorkerId
from shared.turns.queue import Claim, ClaimRequest

SECONDS: Final = 30.0
SMALL: Final = 1_000
LARGE: Final = 1_000_000
#: Sessions that live, on both sides: the youngest.
LIVE: Final = 100
#: Admissions and claims whose pages and rows are counted.
COUNTED: Final = 50
WORKER: Final = WorkerId("bench")
LEASE_S: Final = 600.0

TARGETS: Final = (
    Target("ratio_admit", floor=1.2, aim=1.05, at_most=True),
    Target("ratio_claim", floor=1.2, aim=1.05, at_most=True),
)


def run(wish: Wish, say: Say) -> Report:
    """Seed both databases, measure, and report; for the main thread."""
    seconds = wish.seconds_or(SECONDS)
    with open_site() as site:
        machine = machine_note(site.home)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            measured, counts = runner.run(_measure(site, seconds, say))
    return Report(
        benchmark="growth",
        seconds=seconds,
        machine=machine,
        repeats=measured.repeats(),
        counts=counts | {"finished_turns_small": SMALL, "finished_turns_large": LARGE},
        targets=TARGETS,
    )


@dataclass(slots=True)
class Turns:
    """One side's turns, each admitted, claimed, opened and ended before the next; the first two are timed, in seconds."""

    side: Side
    places: Iterator[tuple[SessionId, OwnerId]] = field(init=False)
    admits: list[float] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.places = itertools.cycle(self.side.places(LIVE))

    async def take_turn(self) -> None:
        """Run one turn from its admission to its end."""
        began = time.perf_counter()
        await self.side.admit(*next(self.places))
        admitted = time.perf_counter()
        [claim] = await self.claim(1)
        self.admits.append(admitted - began)
        self.claims.append(time.perf_counter() - admitted)
        await self.finish([claim])

    async def claim(self, places: int) -> Sequence[Claim]:
        """Claim so many turns in one statement."""
        found = await self.side.queue.claim(ClaimRequest(WORKER, places, lease_s=LEASE_S))
        if len(found) != places:
            raise StoreDefect("a turn that was admitted was not claimed", wanted=places, found=len(found))
        return found

    async def finish(self, claims: Sequence[Claim]) -> None:
        """Open and end turns that were claimed."""
        for claim in claims:
            await self.side.open_turn(claim)
            await self.side.end_turn(claim)

    def figures(self) -> dict[str, float]:
        """Return what the turns since the last time took, and forget it."""
        name = self.side.name
        figures = {
            f"{what}_{kind}_ms_{name}": quantile(taken, share) * 1e3
            for what, taken in (("admit", self.admits), ("claim", self.claims))
            for kind, share in (("p50", 0.5), ("p99", 0.99))
        }
        self.admits, self.claims = [], []
        return figures


async def _measure(site: Site, seconds: float, say: Say) -> tuple[Measured, dict[str, float]]:
    async with two_sides(site, small=SMALL, large=LARGE, say=say) as sides:
        turns = [Turns(side) for side in sides]
        # Both sides in one block, turn by turn: what a neighbour of the machine takes, it takes from both.
        measured = await measure_in_turn([Arm("both sides", partial(_block, turns))], seconds, say)
        counts: dict[str, float] = {}
        for one in turns:
            counts |= await _counted(one)
    return measured, counts


async def _block(turns: Sequence[Turns], seconds: float) -> Mapping[str, float]:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for one in in_turn(turns, 2):
            await one.take_turn()
    figures: dict[str, float] = {}
    for one in turns:
        figures |= one.figures()
    # Of each block by itself: the machine's pace may be another one in the next.
    for name, figure in (("admit", "p50"), ("claim", "p50"), ("admit", "p99"), ("claim", "p99")):
        taken = [figures[f"{name}_{figure}_ms_{one.side.name}"] for one in turns]
        figures[f"ratio_{name}{'' if figure == 'p50' else f'_{figure}'}"] = taken[1] / taken[0]
    return figures


async def _counted(turns: Turns) -> dict[str, float]:
    """Return pages and rows of an admission and of a claim of a turn that waits alone, as means of ``COUNTED``."""
    totals: Counter[str] = Counter()
    claims: list[Claim] = []

    async def claim_it() -> None:
        claims.extend(await turns.claim(1))

    for _ in range(COUNTED):
        place = next(turns.places)
        for what, act in (("admit", partial(turns.side.admit, *place)), ("claim", claim_it)):
            spent = await turns.side.spent(act)
            totals[f"{what}_pages_{turns.side.name}"] += spent.pages
            totals[f"{what}_rows_{turns.side.name}"] += spent.rows
        await turns.finish(claims)
        claims.clear()
    return {name: total / COUNTED for name, total in totals.items()}
