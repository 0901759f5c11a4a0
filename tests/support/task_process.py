"""A process that starts a task, or delivers what a parent is owed, with a failpoint armed: run as a program.

``python -m tests.support.task_process URL start|deliver JSON`` with ``TURNKEEPER_FAILPOINTS`` in the environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

from shared.database.pool import Database
from shared.domain.failpoints import VARIABLE, Failpoints
from shared.domain.ids import TurnId
from shared.tasks.port import NewTask, TaskLimits
from shared.tasks.postgres import PostgresTaskStore

ROOT = Path(__file__).parents[2]


async def run_process(url: str, what: str, given: dict[str, Any], points: str) -> int:
    """Run the program; return its exit code, negative for the signal that ended it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.task_process",
        url,
        what,
        json.dumps(given),
        cwd=ROOT,
        env=os.environ | {VARIABLE: points},
    )
    async with asyncio.timeout(60):
        return await process.wait()


async def _main(url: str, what: str, given: dict[str, Any]) -> None:
    database = Database(url, connections=2)
    await database.open()
    store = PostgresTaskStore(database, failpoints=Failpoints.parse(os.environ[VARIABLE]))
    try:
        if what == "start":
            task = NewTask(**given | {"turn_id": TurnId(UUID(given["turn_id"]))})
            await store.start(task, TaskLimits())
        else:
            for debt in await store.owed(parent=given["parent"]):
                await store.deliver(debt)
    finally:
        await database.close()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
