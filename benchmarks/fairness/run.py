"""Queues ten thousand turns of one owner and ten of another, starts a worker, and looks when the ten are done."""

from __future__ import annotations

import asyncio
import bisect
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final

import uvloop

from benchmarks.catalogue import Wish
from benchmarks.fairness.app import FEW, GUEST, MANY
from benchmarks.harness.arms import Measured
from benchmarks.harness.load import closed_loop
from benchmarks.harness.machine import machine_note
from benchmarks.harness.owners import CONNECTIONS, Place, make_places, open_database
from benchmarks.harness.quantiles import quantile
from benchmarks.harness.report import Report, Target
from benchmarks.harness.site import Site, open_site
from benchmarks.harness.stores import PostgresCounts
from benchmarks.harness.system import System, wait_until_idle
from benchmarks.turn.clients import Crowd, TurnClient, open_crowd
from producer.dev.places import Say
from shared.database.pool import Database
from shared.domain.ids import new_run_id, new_turn_id
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits

SECONDS: Final = 30.0
TURNS: Final = {MANY: 10_000, FEW: 10}
SESSIONS: Final = {MANY: 1_000, FEW: 10, GUEST: 10}
#: Of a round without anybody else's turns, before and after those with them.
ALONE_S: Final = 3.0
BOUND_S: Final = 600.0
APP: Final = "benchmarks.fairness.app:app"
WORKER: Final = "worker"
LIMITS: Final = AdmissionLimits(queued_per_session=1_000, queued_per_owner=100_000)

#: As a share of the whole drain: sixteen owners would each get a sixteenth of every claim, two a half.
TARGETS: Final = (
    Target("few_done_share_of_turns", floor=0.1, aim=0.05, at_most=True),
    Target("few_done_share_of_time", floor=0.1, aim=0.05, at_most=True),
)


def run(wish: Wish, say: Say) -> Report:
    """Queue, drain, and report; for the main thread."""
    seconds = wish.seconds_or(SECONDS)
    with open_site() as site:
        machine = machine_note(site.home)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            drains = runner.run(_measure(site, seconds, say))
        troubles = list(site.troubles)
    measured, failed = drains.measured, drains.failed
    return Report(
        benchmark="fairness",
        seconds=seconds,
        machine=machine,
        repeats=measured.repeats(),
        ratios={
            "ratio_guest_wait": measured.ratio("guest_p50_ms_beside", "guest_p50_ms_alone"),
            "ratio_guest_wait_p99": measured.ratio("guest_p99_ms_beside", "guest_p99_ms_alone"),
        },
        counts={"turns_of_many": TURNS[MANY], "turns_of_few": TURNS[FEW], "failed_turns": failed},
        targets=TARGETS,
        defects=[*troubles, *([f"{failed} turns failed"] if failed else [])],
    )


@dataclass(slots=True)
class Drains:
    """The rounds of one run, one worker a round; ``ended`` counts turns by agent over the rounds before."""

    system: System
    counts: PostgresCounts
    places: Mapping[str, Sequence[Place]]
    measured: Measured = field(default_factory=Measured)
    ended: dict[str, int] = field(default_factory=dict)
    failed: int = 0

    async def alone(self) -> None:
        """A guest's turns, one after the other, with a worker that has nothing else to do."""
        await asyncio.to_thread(self.system.start_worker, WORKER)
        try:
            async with self._guest() as crowd:
                [guest] = crowd.clients
                await guest.take_turn()
                load = await closed_loop([guest.take_turn], ALONE_S)
            self.failed += crowd.failed
        finally:
            await asyncio.to_thread(self.system.stop, WORKER)
        self._add_waits("alone", load.taken_s)

    async def beside(self) -> None:
        """All turns are queued, then a worker comes; a guest comes too, as long as they are worked off."""
        async with open_database(self.system.site) as database:
            await self._fill(database)
        await asyncio.to_thread(self.system.start_worker, WORKER)
        try:
            async with self._guest() as crowd:
                drained = asyncio.create_task(wait_until_idle(self.counts, BOUND_S, agents=[MANY, FEW]))
                taken = await _until(drained, crowd.clients[0])
            self.failed += crowd.failed
        finally:
            await asyncio.to_thread(self.system.stop, WORKER)
        self._add_waits("beside", taken)
        many, few = self._ends(MANY), self._ends(FEW)
        began = min(many[0], few[0])
        self.measured.add(
            {
                "few_done_share_of_turns": (bisect.bisect(many, few[-1]) + len(few)) / (len(many) + len(few)),
                "few_done_share_of_time": (few[-1] - began) / (max(many[-1], few[-1]) - began),
                "drain_turns_per_s": len(many) / (many[-1] - many[0]),
            }
        )

    def _guest(self) -> AbstractAsyncContextManager[Crowd]:
        return open_crowd(self.system.ports["producer"], self.places[GUEST], clients=1, agent=GUEST)

    def _add_waits(self, where: str, taken_s: Sequence[float]) -> None:
        self.measured.add(
            {
                f"guest_p50_ms_{where}": quantile(taken_s, 0.5) * 1e3,
                f"guest_p99_ms_{where}": quantile(taken_s, 0.99) * 1e3,
            }
        )

    def _ends(self, agent: str) -> list[float]:
        """Return when this round's turns of an agent ended, in order, in seconds."""
        ends = self.counts.ends(agent, skipped=self.ended.get(agent, 0))
        self.ended[agent] = self.ended.get(agent, 0) + len(ends)
        self.failed += sum(outcome != "completed" for _, outcome in ends)
        return [at for at, _ in ends]

    async def _fill(self, database: Database) -> None:
        """Queue every turn: the many first, so that the few come last in every order but a fair one."""
        queue = PostgresTurnQueue(database)
        for agent, turns in TURNS.items():
            places = self.places[agent]
            wanted = (_admission(places[n % len(places)], agent) for n in range(turns))

            async def admit_some(wanted: Iterator[Admission] = wanted) -> None:
                for one in wanted:
                    await queue.admit(one, LIMITS)

            await asyncio.gather(*(admit_some() for _ in range(CONNECTIONS)))


async def _until(drained: asyncio.Task[None], guest: TurnClient) -> list[float]:
    """Take turns until the drain is over; return how long each took, in seconds."""
    taken: list[float] = []
    try:
        while not drained.done():
            began = time.perf_counter()
            await guest.take_turn()
            taken.append(time.perf_counter() - began)
        await drained
    finally:
        drained.cancel()
    return taken


def _admission(place: Place, agent: str) -> Admission:
    return Admission(
        turn_id=new_turn_id(),
        run_id=new_run_id(),
        session_id=place.session,
        owner=place.owner,
        message={"text": "What do you make of this?"},
        agent=agent,
        max_duration_s=600.0,
    )


async def _measure(site: Site, seconds: float, say: Say) -> Drains:
    async with open_database(site) as database:
        places = {
            agent: await make_places(database, owners=1, sessions=sessions, name=agent)
            for agent, sessions in SESSIONS.items()
        }
    # The bounds that share a worker out are the product's own.
    system = System(site, APP, settings={"running_turns_per_owner": ""})
    await asyncio.to_thread(system.start_producer)
    with PostgresCounts(site.database_url) as counts:
        drains = Drains(system, counts, places)
        end = time.perf_counter() + seconds
        await drains.alone()
        while True:
            await drains.beside()
            await drains.alone()
            rates = drains.measured.blocks["drain_turns_per_s"]
            say(f"  a drain of {sum(TURNS.values()):,} turns: {rates[-1]:,.0f} a second")
            if time.perf_counter() > end:
                return drains
