"""``turnkeeper status``: pools, workers and what is owed, in one screen or as JSON (OPS-04)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final

import typer

from producer.dev.running import find_database_url
from shared.database.pool import Database
from shared.database.totals import TOTAL_NAMES, TotalName, read_totals
from shared.inbox.backlog import InboxBacklog
from shared.inbox.postgres_backlog import read_backlog
from shared.jobs.postgres import PostgresJobQueue
from shared.jobs.queue import BACKGROUND_POOLS, JobBacklog, ParkedJob, Pool
from shared.settings import load_settings
from shared.turns.postgres_lost import LostTurn, read_lost_turns
from shared.turns.postgres_pools import PostgresPools
from shared.turns.processes import Backlog
from shared.wakes.names import QUEUES, TURNS

PARKED_SHOWN: Final = 20
TOTALS_SHOWN: Final[tuple[TotalName, ...]] = (
    "claims",
    "lost_claims",
    "renewals_refused",
    "wakes_published",
    "wakes_repaired",
)
WORKER_FIELDS = (
    "id",
    "host",
    "pid",
    "queues",
    "revisions",
    "capacity",
    "held",
    "version",
    "draining",
    "lag_s",
    "overloaded",
    "silent_s",
)


def command(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a screen.")] = False,
) -> None:
    """Show pools, workers with what they hold, what is owed and for how long, and revisions that nobody serves."""
    settings = load_settings()
    found = report(asyncio.run(_read(find_database_url(settings))))
    if as_json:
        print(json.dumps(found))
        return
    print("\n".join(screen(found, silent_after_s=4 * settings.worker_seen_s)))


@dataclass(frozen=True, slots=True)
class Standing:
    """What the database says of the system at one moment."""

    turns: Backlog
    inbox: InboxBacklog
    workers: Sequence[Mapping[str, Any]]
    jobs: Mapping[Pool, JobBacklog] = field(default_factory=dict)
    parked: Sequence[ParkedJob] = ()
    lost: Sequence[LostTurn] = ()
    totals: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


async def _read(url: str) -> Standing:
    database = Database(url, connections=1, name="turnkeeper-status")
    await database.open(wait_s=5.0)
    try:
        pools, jobs = PostgresPools(database, database), PostgresJobQueue(database)
        workers = await pools.workers()
        served = sorted({revision for worker in workers for revision in worker["revisions"]})
        backlogs = {pool: await jobs.backlog(pool) for pool in BACKGROUND_POOLS}
        parked = [job for pool in BACKGROUND_POOLS for job in await jobs.parked(pool, limit=PARKED_SHOWN)]
        backlog = await pools.backlog(TURNS, served or [""])
        lost = await read_lost_turns(database, limit=PARKED_SHOWN)
        inbox = await read_backlog(database)
        return Standing(backlog, inbox, workers, backlogs, parked, lost, await read_totals(database))
    finally:
        await database.close()


def report(standing: Standing) -> dict[str, Any]:
    """Return what ``--json`` prints. Parked items, and turns that were lost with their workers, are named without owner."""
    workers = standing.workers
    pools: dict[str, dict[str, Any]] = {}
    for pool in QUEUES:
        mine = [w for w in workers if pool in w["queues"]]
        pools[pool] = {
            "workers": len(mine),
            "capacity": sum(w["capacity"] for w in mine),
            "held": sum(w["held"] for w in mine),
            "totals": {name: standing.totals.get(pool, {}).get(name, 0) for name in TOTAL_NAMES},
        }
    pools[TURNS] |= asdict(standing.turns)
    for pool_name, owed in standing.jobs.items():
        pools[pool_name] |= asdict(owed)
    return {
        "pools": pools,
        "inbox": asdict(standing.inbox),
        "parked": [
            *(_parked(TURNS, str(turn.turn_id), turn.attempts, "turn.lease") for turn in standing.lost),
            *(_parked(j.pool, j.job_id, j.attempts, j.last_failure) for j in standing.parked),
        ],
        "workers": [{name: worker[name] for name in WORKER_FIELDS} for worker in workers],
    }


def _parked(pool: str, item: str, attempts: int, failure: str | None) -> dict[str, Any]:
    return {"pool": pool, "id": item, "attempts": attempts, "last_failure": failure}


def screen(found: Mapping[str, Any], *, silent_after_s: float) -> Iterator[str]:
    """Yield the lines of the screen."""
    turns = found["pools"][TURNS]
    yield f"{'pool':<10}{'workers':>8}{'held':>8}{'places':>8}"
    for name, pool in found["pools"].items():
        yield f"{name:<10}{pool['workers']:>8}{pool['held']:>8}{pool['capacity']:>8}"
    yield ""
    yield f"{'in all':<10}{'claims':>9}{'lost':>9}{'refused':>9}{'wakes':>9}{'repaired':>9}"
    for name, pool in found["pools"].items():
        counts = (pool["totals"][total] for total in TOTALS_SHOWN)
        yield f"{name:<10}" + "".join(f"{count:>9}" for count in counts)
    yield ""
    yield f"turns: {turns['ready']} ready, {turns['queued']} queued behind, {turns['running']} running"
    yield f"oldest owed: {turns['oldest_due_s']:.1f} s"
    yield f"inbox: {found['inbox']['waiting']} waiting, oldest {found['inbox']['oldest_s']:.1f} s"
    for name in BACKGROUND_POOLS:
        if (owed := found["pools"][name]).get("ready") is not None:
            yield (
                f"{name}: {owed['ready']} ready, {owed['running']} running, {owed['parked']} parked,"
                f" oldest owed {owed['oldest_due_s']:.1f} s"
            )
    for job in found["parked"]:
        yield f"parked: {job['pool']} {job['id']} after {job['attempts']} tries: {job['last_failure']}"
    for revision, count in turns["unserved"].items():
        yield f"no worker serves revision {revision!r}: {count} ready"
    yield ""
    yield from _worker_lines(found["workers"], silent_after_s)


def _worker_lines(workers: Sequence[Mapping[str, Any]], silent_after_s: float) -> Iterator[str]:
    if not workers:
        yield "no workers"
    for worker in workers:
        note = "draining" if worker["draining"] else ""
        if worker["overloaded"]:
            note = f"overloaded, its loop lags {worker['lag_s']:.2f} s: it claims nothing"
        if worker["silent_s"] > silent_after_s:
            note = f"silent for {worker['silent_s']:.0f} s"
        held = f"{worker['held']}/{worker['capacity']}"
        yield f"{','.join(worker['queues']):<10}{held:>10}  pid {worker['pid']:<8} {worker['host']}  {note}".rstrip()
