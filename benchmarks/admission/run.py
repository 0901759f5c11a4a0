"""Measures admissions at 1, 8 and 32 clients beside the plain route, and judges throughput and the slowest of a hundred."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import uvloop

from benchmarks.admission.route import SQL
from benchmarks.catalogue import Wish
from benchmarks.harness.arms import Arm, Measured, measure_in_turn
from benchmarks.harness.broker import RedisCounts
from benchmarks.harness.client import JSON, Connection
from benchmarks.harness.load import closed_loop
from benchmarks.harness.machine import machine_note
from benchmarks.harness.owners import make_places, open_database
from benchmarks.harness.report import Report, Target, each
from benchmarks.harness.site import Site, open_site
from benchmarks.harness.stores import PostgresCounts
from benchmarks.harness.system import System
from benchmarks.harness.watch import Spent, Watch
from benchmarks.turn.app import IN_PROCESS
from benchmarks.turn.clients import turn_request
from benchmarks.turn.run import APP
from producer.dev.places import Say
from producer.dev.processes import Program
from producer.dev.programs import PYTHON, wait_ready
from shared.database.embedded.ports import find_free_port
from shared.settings import Settings

SECONDS: Final = 48.0
#: So many that a block meets hardly any session twice: as admitted turns meet idle sessions.
SESSIONS: Final = 4_000
OWNERS: Final = 16
CLIENTS: Final = (32, 8, 1)
ACCEPTED: Final = 202
ROUTE: Final = "route"

TARGETS: Final = (
    Target("ratio_to_route", floor=0.7, aim=1.0),
    Target("ratio_p99", floor=2.0, aim=1.2, at_most=True),
)


@dataclass(slots=True)
class Admissions:
    """What the blocks of one run came to. ``spent`` and ``route_spent`` are of the blocks of 32 clients alone."""

    measured: Measured = field(default_factory=Measured)
    spent: Spent = field(default_factory=Spent)
    route_spent: Spent = field(default_factory=Spent)
    admitted: int = 0
    stored: int = 0
    failed: int = 0

    def forget_costs(self) -> None:
        """Leave out what blocks have cost so far."""
        self.spent, self.admitted = Spent(), 0
        self.route_spent, self.stored = Spent(), 0


@dataclass(slots=True)
class Poster:
    """One client, one connection; it posts to sessions of its own, one after the other."""

    connection: Connection
    requests: Iterator[bytes]
    done: int = 0
    failed: int = 0

    async def post(self) -> None:
        """Post once."""
        answer = await self.connection.ask(next(self.requests))
        if answer.status == ACCEPTED:
            self.done += 1
        else:
            self.failed += 1


def run(wish: Wish, say: Say) -> Report:
    """Start everything, measure, stop everything and report; for the main thread."""
    seconds = wish.seconds_or(SECONDS)
    with open_site() as site:
        machine = machine_note(site.home)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            admissions = runner.run(_measure(site, seconds, say))
        return _report(admissions, seconds, machine, site.troubles)


async def _measure(site: Site, seconds: float, say: Say) -> Admissions:
    async with open_database(site) as database:
        places = await make_places(database, owners=OWNERS, sessions=SESSIONS)
    admissions = Admissions()
    with ExitStack() as stack:
        counts = stack.enter_context(PostgresCounts(site.database_url))
        redis = stack.enter_context(RedisCounts(site.redis_url))
        system = System(site, APP)
        await asyncio.to_thread(system.start_producer)
        route_port = await asyncio.to_thread(_start_route, system)
        say("producer and route are up")
        watch = Watch(counts, redis, site.pids, lambda: system.ports.values())
        requests = [turn_request(place, IN_PROCESS, accept=JSON) for place in places]

        def arms_of(clients: int) -> list[Arm]:
            admit = partial(_admit, admissions, watch, system.ports["producer"], requests, clients)
            store = partial(_store, admissions, watch, route_port, requests, clients)
            return [Arm(f"admissions, {clients}", admit), Arm(f"route, {clients}", store)]

        arms = list(itertools.chain.from_iterable(map(arms_of, CLIENTS)))
        admissions.measured = await measure_in_turn(arms, seconds, say, on_warm=admissions.forget_costs)
    return admissions


def _start_route(system: System) -> int:
    port = find_free_port()
    python = tuple(word for word in PYTHON if word != "-P")  # the checkout is the working directory
    connections = str(Settings().producer_connections)
    argv = (*python, "benchmarks.admission.route", str(port), connections)
    env = system.environment({})
    child = system.site.processes.start(Program(ROUTE, argv, env=env, restart=False))
    wait_ready(child, port, "/readyz")
    return port


async def _admit(
    admissions: Admissions, watch: Watch, port: int, requests: Sequence[bytes], clients: int, seconds: float
) -> Mapping[str, float]:
    before = await watch.look()
    figures, done, failed = await _post(port, requests, clients, seconds, "admissions_per_s", "")
    spent = await watch.since(before)
    admissions.failed += failed
    if clients == max(CLIENTS):
        admissions.spent.add(spent)
        admissions.admitted += done
    await asyncio.to_thread(watch.postgres.run, SQL["forget_turns"])
    return figures


async def _store(
    admissions: Admissions, watch: Watch, port: int, requests: Sequence[bytes], clients: int, seconds: float
) -> Mapping[str, float]:
    before = await watch.look()
    figures, done, failed = await _post(port, requests, clients, seconds, "route_per_s", "route_")
    spent = await watch.since(before)
    admissions.failed += failed
    if clients == max(CLIENTS):
        admissions.route_spent.add(spent)
        admissions.stored += done
    await asyncio.to_thread(watch.postgres.run, SQL["forget_plain"])
    return figures


async def _post(
    port: int, requests: Sequence[bytes], clients: int, seconds: float, figure: str, prefix: str
) -> tuple[dict[str, float], int, int]:
    """Post by so many clients; return the block's figures, what was accepted and what was not."""
    posters = [
        Poster(await Connection.open(port), itertools.cycle(requests[n::clients])) for n in range(clients)
    ]
    try:
        load = await closed_loop([poster.post for poster in posters], seconds)
    finally:
        for poster in posters:
            poster.connection.close()
    of = f"{clients}_client{'s' if clients > 1 else ''}"
    return (
        {
            f"{figure}_{of}": load.per_s,
            f"{prefix}p50_ms_{of}": load.quantile_ms(0.5),
            f"{prefix}p99_ms_{of}": load.quantile_ms(0.99),
        },
        sum(poster.done for poster in posters),
        sum(poster.failed for poster in posters),
    )


def _report(
    admissions: Admissions, seconds: float, machine: Mapping[str, object], troubles: Sequence[str]
) -> Report:
    measured, spent, count = admissions.measured, admissions.spent, max(1, admissions.admitted)
    ratio = measured.ratio
    return Report(
        benchmark="admission",
        seconds=seconds,
        machine=machine,
        repeats=measured.repeats(),
        ratios={
            "ratio_to_route": ratio("admissions_per_s_32_clients", "route_per_s_32_clients"),
            "ratio_p99": ratio("p99_ms_32_clients", "route_p99_ms_32_clients"),
            "ratio_p50": ratio("p50_ms_32_clients", "route_p50_ms_32_clients"),
            "ratio_to_route_8_clients": ratio("admissions_per_s_8_clients", "route_per_s_8_clients"),
            "ratio_to_route_1_client": ratio("admissions_per_s_1_client", "route_per_s_1_client"),
        },
        counts={
            "commits_per_admission": spent.transactions / count,
            "statements_per_admission": spent.total("statements") / count,
            "round_trips_per_admission": spent.total("round_trips") / count,
            "wal_bytes_per_admission": spent.wal_bytes / count,
            "broker_messages_per_admission": spent.messages / count,
            "counted_admissions": admissions.admitted,
            "failed_admissions": admissions.failed,
        },
        tables={
            "statements an admission": each(spent.store.get("statements", {}), count),
            "cpu ms an admission": each(spent.cpu_ms, count, least=0),
            "cpu ms an answer of the route": each(
                admissions.route_spent.cpu_ms, max(1, admissions.stored), least=0
            ),
            "memory MiB": spent.rss_mib,
        },
        targets=TARGETS,
        defects=[
            *troubles,
            *([f"{admissions.failed} admissions failed"] if admissions.failed else []),
        ],
    )
