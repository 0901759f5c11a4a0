"""``turnkeeper retry``: put items that were given up back into their pool (DST-13)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar
from uuid import UUID

import typer

from producer.dev.running import find_database_url
from shared.database.pool import Database
from shared.domain.errors import InvalidInput, TurnkeeperError
from shared.domain.ids import TurnId
from shared.jobs.postgres import PostgresJobQueue
from shared.jobs.queue import BACKGROUND_POOLS, Pool
from shared.settings import load_settings
from shared.turns.postgres_lost import read_lost_turns
from shared.turns.postgres_retry import Retried, retry_turn
from shared.wakes.names import TURNS

T = TypeVar("T")

BATCH = 100
#: How many turns one call looks at, the last ones that were given up.
TURNS_MAX = 1_000


def command(
    pool: Annotated[str, typer.Argument(help=f"The pool: {TURNS}, {', '.join(BACKGROUND_POOLS)}.")],
    job_id: Annotated[str | None, typer.Argument(help="One item, as `turnkeeper status` names it.")] = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="Every parked item of the pool.")] = False,
) -> None:
    """Put a parked item back, with its tries forgotten; it is claimed as soon as a worker has room.

    A turn that had opened is resumed by a new turn with its message; one that had not waits again.
    """
    found = next((one for one in BACKGROUND_POOLS if one == pool), None)
    if found is None and pool != TURNS:
        bound = ", ".join((TURNS, *BACKGROUND_POOLS))
        raise InvalidInput(f"no pool {pool!r}", field="pool", bound=bound)
    if (job_id is None) != all_of_them:
        raise InvalidInput("name one item, or say --all", field="job_id", bound="one of both")
    if found is not None:
        print(f"{_with_database(lambda database: _retry(database, found, job_id))} put back")
    elif job_id is not None:
        turn_id = _turn_id(job_id)
        _say(_with_database(lambda database: retry_turn(database, turn_id)))
    else:
        print(f"{_with_database(_retry_turns)} put back")


def _with_database(work: Callable[[Database], Awaitable[T]]) -> T:
    async def run() -> T:
        database = Database(find_database_url(load_settings()), connections=1, name="turnkeeper-retry")
        await database.open(wait_s=5.0)
        try:
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(run())


async def _retry(database: Database, pool: Pool, job_id: str | None) -> int:
    jobs = PostgresJobQueue(database)
    if job_id is not None:
        return int(await jobs.retry(pool, job_id))
    done = 0
    while parked := await jobs.parked(pool, limit=BATCH):
        done += sum([await jobs.retry(pool, job.job_id) for job in parked])
    return done


async def _retry_turns(database: Database) -> int:
    """Put back what can be; a session that went on, or that was retried before, is left as it is."""
    done = 0
    for lost in await read_lost_turns(database, limit=TURNS_MAX):
        try:
            done += not (await retry_turn(database, lost.turn_id)).repeated
        except TurnkeeperError as error:
            print(f"{lost.turn_id} stays: {error} [{error.code}]")
    return done


def _say(done: Retried) -> None:
    if done.resumes is None:
        print("1 put back")
    elif done.repeated:
        print(f"it was retried before: turn {done.turn_id}")
    else:
        print(f"turn {done.turn_id} resumes it")


def _turn_id(text: str) -> TurnId:
    try:
        return TurnId(UUID(text))
    except ValueError as error:
        raise InvalidInput(f"no turn {text!r}", field="job_id", bound="a turn's id") from error
