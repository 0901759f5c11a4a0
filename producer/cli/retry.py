"""``turnkeeper retry``: put items that were given up back into their pool (DST-13)."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from producer.dev.running import find_database_url
from shared.database.pool import Database
from shared.domain.errors import InvalidInput
from shared.jobs.postgres import PostgresJobQueue
from shared.jobs.queue import BACKGROUND_POOLS, Pool
from shared.settings import load_settings
from shared.wakes.names import TURNS

BATCH = 100


def command(
    pool: Annotated[str, typer.Argument(help=f"The pool: {', '.join(BACKGROUND_POOLS)}.")],
    job_id: Annotated[str | None, typer.Argument(help="One item, as `turnkeeper status` names it.")] = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="Every parked item of the pool.")] = False,
) -> None:
    """Put a parked item back, with its tries forgotten; it is claimed as soon as a worker has room."""
    if pool == TURNS:
        raise InvalidInput(
            "a turn has ended for its session and is not put back: send its message again, under another key",
            field="pool",
            bound=", ".join(BACKGROUND_POOLS),
        )
    found = next((one for one in BACKGROUND_POOLS if one == pool), None)
    if found is None:
        raise InvalidInput(f"no pool {pool!r}", field="pool", bound=", ".join(BACKGROUND_POOLS))
    if (job_id is None) != all_of_them:
        raise InvalidInput("name one item, or say --all", field="job_id", bound="one of both")
    done = asyncio.run(_retry(find_database_url(load_settings()), found, job_id))
    print(f"{done} put back")


async def _retry(url: str, pool: Pool, job_id: str | None) -> int:
    database = Database(url, connections=1, name="turnkeeper-retry")
    await database.open(wait_s=5.0)
    try:
        jobs = PostgresJobQueue(database)
        if job_id is not None:
            return int(await jobs.retry(pool, job_id))
        done = 0
        while parked := await jobs.parked(pool, limit=BATCH):
            done += sum([await jobs.retry(pool, job.job_id) for job in parked])
        return done
    finally:
        await database.close()
