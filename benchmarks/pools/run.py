"""Measures one-step turns and the drain of a filled queue with one worker process and with two, and tells the ratios."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

import uvloop

from benchmarks.catalogue import Wish
from benchmarks.harness.arms import Arm, Measured, measure_in_turn
from benchmarks.harness.load import closed_loop
from benchmarks.harness.machine import machine_note
from benchmarks.harness.owners import Place, make_places, open_database
from benchmarks.harness.report import Report
from benchmarks.harness.site import Site, open_site
from benchmarks.harness.stores import PostgresCounts
from benchmarks.harness.system import System
from benchmarks.turn.app import IN_PROCESS
from benchmarks.turn.clients import open_crowd
from benchmarks.turn.drain import Drain
from benchmarks.turn.run import APP, DRAINED_SESSIONS, MANY, OWNERS, SESSIONS
from producer.dev.places import Say

SECONDS: Final = 40.0
SECOND: Final = "second-worker"


@dataclass(slots=True)
class Pools:
    """What the blocks of one run came to."""

    measured: Measured
    failed: int = 0


def run(wish: Wish, say: Say) -> Report:
    """Start everything, measure, stop everything and report; for the main thread."""
    seconds = wish.seconds_or(SECONDS)
    with open_site() as site:
        machine = machine_note(site.home)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            pools = runner.run(_measure(site, seconds, say))
        ratio = pools.measured.ratio
        return Report(
            benchmark="pools",
            seconds=seconds,
            machine=machine,
            repeats=pools.measured.repeats(),
            ratios={
                "ratio_2_workers": ratio("turns_per_s_2_workers", "turns_per_s_1_worker"),
                "ratio_p50_2_workers": ratio("p50_ms_2_workers", "p50_ms_1_worker"),
                "ratio_drain_2_workers": ratio("drain_turns_per_s_2_workers", "drain_turns_per_s_1_worker"),
            },
            counts={"failed_turns": pools.failed},
            defects=[*site.troubles, *([f"{pools.failed} turns failed"] if pools.failed else [])],
        )


async def _measure(site: Site, seconds: float, say: Say) -> Pools:
    async with open_database(site) as database:
        places = await make_places(database, owners=OWNERS, sessions=SESSIONS)
        drained = await make_places(database, owners=OWNERS, sessions=DRAINED_SESSIONS, name="drained")
    pools = Pools(Measured())
    with ExitStack() as stack:
        counts = stack.enter_context(PostgresCounts(site.database_url))
        system = System(site, APP)
        await asyncio.to_thread(system.start_producer)
        await asyncio.to_thread(partial(system.start_worker, revisions=IN_PROCESS))
        say("producer and worker are up")
        drain = Drain(system, counts, drained, is_compared=True)
        arms = (
            Arm("turns, 1 worker", partial(_block, pools, system, places, 1)),
            Arm("turns, 2 workers", partial(_block, pools, system, places, 2)),
            drain.arm(1),
            drain.arm(1, workers=2),
        )
        pools.measured = await measure_in_turn(arms, seconds, say)
        pools.failed += drain.failed
    return pools


async def _block(
    pools: Pools, system: System, places: Sequence[Place], workers: int, seconds: float
) -> Mapping[str, float]:
    if workers == 2:
        await asyncio.to_thread(partial(system.start_worker, SECOND, revisions=IN_PROCESS))
    try:
        async with open_crowd(system.ports["producer"], places, clients=MANY, agent=IN_PROCESS) as crowd:
            load = await closed_loop([client.take_turn for client in crowd.clients], seconds)
    finally:
        if workers == 2:
            await asyncio.to_thread(system.stop, SECOND)
    pools.failed += crowd.failed
    of = "1_worker" if workers == 1 else "2_workers"
    return {
        f"turns_per_s_{of}": load.per_s,
        f"p50_ms_{of}": load.quantile_ms(0.5),
        f"p99_ms_{of}": load.quantile_ms(0.99),
    }
