"""Kills a worker while it waits for its model, starts another one, and times how soon the model is asked again."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import uvloop

from benchmarks.catalogue import Wish
from benchmarks.harness.arms import Measured, in_turn
from benchmarks.harness.machine import machine_note
from benchmarks.harness.report import Report, Target
from benchmarks.harness.site import Site, open_site
from benchmarks.harness.system import GRACE_S, System
from benchmarks.harness.units import read_units
from benchmarks.recovery.silent_model import SilentModel, open_silent_model
from benchmarks.seeding.history import one_step_turn
from benchmarks.seeding.postgres import Seed, seed
from benchmarks.seeding.sides import Side
from producer.dev.places import Say
from producer.dev.processes import Program
from producer.dev.programs import PYTHON
from shared.database.embedded.ports import find_free_port
from shared.database.migrate import migrate
from shared.wakes.names import TURNS

SECONDS: Final = 60.0
#: Records of the three sessions. Each shows the model the same: what fits the agent's budget, 63 turns of 4 kB.
SIZES: Final[Mapping[str, int]] = {"1k": 1_000, "10k": 10_000, "100k": 100_000}
TEXT: Final = "What was said in this turn, and in its answer. ".ljust(2_000, "x")
#: An even number: each size runs as often before its neighbours as after them. More of them while there is time.
ROUNDS: Final = 2
APP: Final = "benchmarks.recovery.app:app"
#: Longer than a sample takes: the moment of the claim is told by the lease, which no renewal may have moved.
LEASE_S: Final = 600.0
#: The units of work between the claim and the model's call.
RESUMING: Final = ("turn.open", "session.read", "session.head", "turn.calls", "turn.append")

TARGETS: Final = (
    Target("ratio_recovery", floor=1.3, aim=1.1, at_most=True),
    Target("ratio_statements", floor=1.0, aim=1.0, at_most=True),
    Target("ratio_rows", floor=1.0, aim=1.0, at_most=True),
)


def run(wish: Wish, say: Say) -> Report:
    """Seed the three sessions, kill and start workers, and report; for the main thread."""
    seconds = wish.seconds_or(SECONDS)
    with open_site() as site:
        machine = machine_note(site.home)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            measured = runner.run(_measure(site, seconds, say))
        troubles = list(site.troubles)
    return Report(
        benchmark="recovery",
        seconds=seconds,
        machine=machine,
        repeats=measured.repeats(),
        ratios={
            "ratio_statements": measured.ratio("statements_100k", "statements_1k"),
            "ratio_rows": measured.ratio("rows_100k", "rows_1k"),
        },
        targets=TARGETS,
        defects=troubles,
    )


@dataclass(slots=True)
class Session:
    """One session with an open turn, in a database of its own; its workers are killed one after the other."""

    size: str
    url: str
    side: Side
    system: System
    model: SilentModel
    port: int = field(default_factory=find_free_port)

    async def recover(self) -> dict[str, float]:
        """Start a worker, wait until it asks the model, kill it, and return what that took.

        ``recovery_ms`` begins with the process, ``resume_ms`` with the claim.
        """
        name = f"worker-{self.size}"
        began = time.time()
        await asyncio.to_thread(self._start, name)
        try:
            asked = await self.model.next_request()
            units = await asyncio.to_thread(read_units, [self.port])
            claimed = await self.side.claimed_at(LEASE_S)
        finally:
            await asyncio.to_thread(self.system.site.processes.stop, [name])
        await self.side.execute("lose_again", [])
        return {
            f"recovery_ms_{self.size}": (asked - began) * 1e3,
            f"resume_ms_{self.size}": (asked - claimed) * 1e3,
            f"statements_{self.size}": sum(units.store["statements"][unit] for unit in RESUMING),
            f"rows_{self.size}": sum(units.store["rows"][unit] for unit in RESUMING),
        }

    def _start(self, name: str) -> None:
        env = self.system.environment(
            {
                "database_url": self.url,
                "metrics_port": self.port,
                "turn_lease_s": LEASE_S,
                "turn_renew_s": LEASE_S / 3,
            }
        )
        argv = (*PYTHON, "producer.cli", "worker", TURNS)
        program = Program(name, argv, env=env, stop_signal=signal.SIGKILL, restart=False, grace_s=GRACE_S)
        self.system.site.processes.start(program)


async def _measure(site: Site, seconds: float, say: Say) -> Measured:
    async with open_silent_model() as model, _sessions(site, model, say) as sessions:
        for one in sessions:
            await one.side.admit(*one.side.places(1)[0])
            await one.recover()  # opens the turn: the first attempt, which is not timed
        measured = Measured()
        end = time.perf_counter() + seconds
        while True:
            both = Measured()
            for n, one in enumerate(in_turn(sessions, ROUNDS), 1):
                figures = await one.recover()
                measured.add(figures)
                both.add(figures)
                first = ", ".join(f"{name} {value:,.1f}" for name, value in list(figures.items())[:2])
                say(f"  {n:>2}/{ROUNDS * len(sessions)}  {first}")
            # Of both rounds by themselves: the machine's pace may be another one in the next.
            measured.add(
                {
                    "ratio_recovery": both.ratio("recovery_ms_100k", "recovery_ms_1k"),
                    "ratio_recovery_10k": both.ratio("recovery_ms_10k", "recovery_ms_1k"),
                    "ratio_resume": both.ratio("resume_ms_100k", "resume_ms_1k"),
                }
            )
            if time.perf_counter() > end:
                return measured


@asynccontextmanager
async def _sessions(site: Site, model: SilentModel, say: Say) -> AsyncIterator[Sequence[Session]]:
    turn = one_step_turn(TEXT)
    sessions: list[Session] = []
    try:
        for size, records in SIZES.items():
            url = site.servers.create_database(size)
            migrate(url)
            wanted = Seed(turn=turn, sessions=1, turns_each=records // len(turn.drafts), session="session ")
            await seed(url, wanted)
            say(f"{records:,} records were made")
            side = await Side.open(url, size, wanted)
            sessions.append(Session(size, url, side, System(site, APP, model_url=model.url), model))
        yield sessions
    finally:
        for one in sessions:
            await one.side.close()
