"""Measures one-step turns beside empty Celery jobs and plain commits, and judges the ratios."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import uvloop

from benchmarks.catalogue import Wish
from benchmarks.empty_jobs.baseline import EmptyJobs
from benchmarks.harness.arms import Arm, Measured, measure_in_turn
from benchmarks.harness.broker import RedisCounts
from benchmarks.harness.load import closed_loop
from benchmarks.harness.machine import machine_note
from benchmarks.harness.owners import Place, make_places, open_database
from benchmarks.harness.report import Report, Target, each
from benchmarks.harness.site import POSTGRES, VALKEY, Site, open_site
from benchmarks.harness.stores import Activity, PostgresCounts
from benchmarks.harness.system import System
from benchmarks.harness.watch import Spent, Watch
from benchmarks.turn.app import IN_PROCESS, OVER_HTTP
from benchmarks.turn.clients import open_crowd
from benchmarks.turn.commits import PlainCommits
from benchmarks.turn.drain import Drain
from producer.dev.places import Say

SECONDS: Final = 64.0
OWNERS: Final = 8
SESSIONS: Final = 1_000
DRAINED_SESSIONS: Final = 1_000
MANY: Final = 32
#: Who works for a turn, beside those who ask for it.
PARTS: Final = frozenset({"producer", "worker", POSTGRES, VALKEY})
APP: Final = "benchmarks.turn.app:app"

TARGETS: Final = (
    Target("ratio_to_empty_job", floor=0.5, aim=0.9),
    Target("ratio_drain_to_empty_job", floor=1.0, aim=3.0),
    Target("ratio_p50", floor=4.0, aim=2.0, at_most=True),
    Target("commits_per_turn", floor=2.5, aim=1.0, at_most=True),
)


def run(wish: Wish, say: Say) -> Report:
    """Start everything, measure, stop everything and report; for the main thread."""
    seconds = wish.seconds_or(SECONDS)
    with open_site() as site:
        machine = machine_note(site.home)
        say(f"servers are up in {site.home}")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            turns = runner.run(_measure(site, seconds, say))
        # Rows are counted when every session of the product has ended.
        site.processes.stop()
        with PostgresCounts(site.database_url) as counts:
            activity = counts.settled_activity().since(turns.activity_before)
        return turns.report(seconds, machine, activity, site.troubles)


@dataclass(slots=True)
class Turns:
    """What the blocks of one run came to. ``spent`` is of the blocks with 32 clients and the model in process alone."""

    activity_before: Activity
    measured: Measured = field(default_factory=Measured)
    spent: Spent = field(default_factory=Spent)
    spent_turns: int = 0
    turns: int = 0
    failed: int = 0

    def forget_costs(self) -> None:
        """Leave out what blocks have cost so far."""
        self.spent, self.spent_turns = Spent(), 0

    def report(
        self, seconds: float, machine: Mapping[str, object], activity: Activity, troubles: Sequence[str]
    ) -> Report:
        """Return the report. ``activity`` is what the database did over the whole run."""
        measured, spent, turns = self.measured, self.spent, max(1, self.spent_turns)
        commits = spent.transactions / turns
        return Report(
            benchmark="turn",
            seconds=seconds,
            machine=machine,
            repeats=measured.repeats(),
            ratios={
                "ratio_to_empty_job": measured.ratio("turns_per_s", "empty_jobs_per_s"),
                "ratio_http_to_empty_job": measured.ratio("http_turns_per_s", "empty_jobs_per_s"),
                "ratio_drain_to_empty_job": measured.ratio("drain_turns_per_s", "empty_jobs_per_s"),
                "ratio_cpu": measured.ratio("cpu_ms_per_turn", "cpu_ms_per_empty_job"),
                "ratio_p50": measured.ratio("p50_ms_1_client", "empty_job_start_p50_ms"),
                "ratio_to_plain_commits": measured.ratio("turns_per_s", "plain_commits_per_s") * commits,
            },
            counts={
                "commits_per_turn": commits,
                "statements_per_turn": spent.total("statements") / turns,
                "round_trips_per_turn": spent.total("round_trips") / turns,
                "wal_bytes_per_turn": spent.wal_bytes / turns,
                "broker_messages_per_turn": spent.messages / turns,
                "redis_commands_per_turn": sum(spent.commands.values()) / turns,
                "rows_written_per_turn": activity.rows_written / max(1, self.turns),
                "counted_turns": self.spent_turns,
                "failed_turns": self.failed,
            },
            tables={
                "statements a turn": each(spent.store.get("statements", {}), turns),
                "redis commands a turn": each(spent.commands, turns),
                "cpu ms a turn": each(spent.cpu_ms, turns, least=0),
                "memory MiB": spent.rss_mib,
            },
            targets=TARGETS,
            defects=[*troubles, *([f"{self.failed} turns failed"] if self.failed else [])],
        )


async def _measure(site: Site, seconds: float, say: Say) -> Turns:
    async with open_database(site) as database:
        places = await make_places(database, owners=OWNERS, sessions=SESSIONS)
        drained = await make_places(database, owners=OWNERS, sessions=DRAINED_SESSIONS, name="drained")
    async with AsyncExitStack() as stack:
        counts = stack.enter_context(PostgresCounts(site.database_url))
        turns = Turns(await asyncio.to_thread(counts.settled_activity))
        system = System(site, APP)
        await asyncio.to_thread(_start, system)
        say("producer, worker and model are up")
        jobs = await asyncio.to_thread(EmptyJobs.start, site)
        stack.callback(jobs.close)
        commits = await PlainCommits.open(site)
        stack.push_async_callback(commits.close)
        redis = stack.enter_context(RedisCounts(site.redis_url))
        watch = Watch(counts, redis, site.pids, lambda: system.ports.values())
        drain = Drain(system, counts, drained)
        block = partial(_block, turns, watch, system, places)
        arms = (
            Arm("turns, 32 clients", partial(block, "turns_per_s", IN_PROCESS, MANY), 3),
            *jobs.arms(rate_share=2.5, start_share=1),
            Arm("turns, 1 client", partial(block, "turns_per_s_1_client", IN_PROCESS, 1), 1.5),
            drain.arm(3),
            Arm("turns over HTTP, 32", partial(block, "http_turns_per_s", OVER_HTTP, MANY), 2),
            commits.arm(1),
            Arm("turns over HTTP, 1", partial(block, "http_turns_per_s_1_client", OVER_HTTP, 1), 1),
        )
        turns.measured = await measure_in_turn(arms, seconds, say, on_warm=turns.forget_costs)
        turns.turns += drain.ended
        turns.failed += drain.failed
    return turns


def _start(system: System) -> None:
    system.start_model()
    system.start_producer()
    # Two of the three revisions: the third one's turns wait for the workers of the drain.
    system.start_worker(revisions=f"{IN_PROCESS},{OVER_HTTP}")


async def _block(
    turns: Turns,
    watch: Watch,
    system: System,
    places: Sequence[Place],
    figure: str,
    agent: str,
    clients: int,
    seconds: float,
) -> Mapping[str, float]:
    """Run one block of so many clients; its latencies are named after its rate."""
    async with open_crowd(system.ports["producer"], places, clients=clients, agent=agent) as crowd:
        before = await watch.look()
        load = await closed_loop([client.take_turn for client in crowd.clients], seconds)
        spent = await watch.since(before)
    turns.turns += crowd.done + crowd.failed
    turns.failed += crowd.failed
    used: dict[str, float] = {}
    if figure == "turns_per_s":
        turns.spent.add(spent)
        turns.spent_turns += crowd.done
        cpu_ms = sum(ms for name, ms in spent.cpu_ms.items() if name in PARTS)
        used = {"cpu_ms_per_turn": cpu_ms / max(1, crowd.done)}
    kind = f"{'http_' if agent == OVER_HTTP else ''}{{}}_ms_{clients}_client{'s' if clients > 1 else ''}"
    return {
        figure: load.per_s,
        kind.format("p50"): load.quantile_ms(0.5),
        kind.format("p99"): load.quantile_ms(0.99),
        **used,
    }
