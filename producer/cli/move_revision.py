"""``turnkeeper move-revision``: give waiting turns of an agent revision that nobody serves another one (DST-26)."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from producer.dev.running import find_database_url
from shared.database.pool import Database
from shared.domain.bounds import check_identity
from shared.domain.errors import InvalidInput
from shared.settings import load_settings
from shared.turns.postgres import PostgresTurnQueue

BATCH = 1_000


def command(
    old: Annotated[str, typer.Argument(metavar="FROM", help="The revision that nobody serves any more.")],
    new: Annotated[str, typer.Argument(metavar="TO", help="One that workers serve.")],
) -> None:
    """Move every turn that waits under FROM to TO; turns that run keep theirs. Safe to repeat."""
    check_identity(old, field="FROM")
    check_identity(new, field="TO")
    if old == new:
        raise InvalidInput("both revisions are the same", field="TO", bound="another revision than FROM")
    print(f"{asyncio.run(_move(find_database_url(load_settings()), old, new))} moved")


async def _move(url: str, old: str, new: str) -> int:
    database = Database(url, connections=1, name="turnkeeper-move-revision")
    await database.open(wait_s=5.0)
    try:
        queue, done = PostgresTurnQueue(database), 0
        while moved := await queue.move_revision(old, new, limit=BATCH):
            done += moved
        return done
    finally:
        await database.close()
