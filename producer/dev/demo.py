"""The system of ``turnkeeper demo``: that of ``dev``, made for one run in a temporary home and gone with it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from producer.dev.places import Places, Say, open_places
from producer.dev.programs import kept_processes, start_programs
from producer.dev.stop_signals import stop_signals
from shared.database.migrate import migrate
from shared.database.pool import Database
from shared.domain.errors import ProcessFailed
from shared.domain.ids import OwnerId
from shared.owners.keys import new_key
from shared.owners.postgres import PostgresApiKeys
from shared.settings import DEFAULT_APP, Settings
from shared.turns.postgres import PostgresTurnQueue
from shared.wakes.names import QUEUES

POOLS_BOUND_S: Final = 60.0
LOOK_S: Final = 0.05
KEY_NAME: Final = "demo"
LOGS: Final = "logs"

#: Laid over the caller's environment: what would change what is shown. The model's settings stay as they are.
OWN_SETTINGS: Final = {
    "TURNKEEPER_APP": DEFAULT_APP,
    "TURNKEEPER_REVISIONS": "",
    "TURNKEEPER_FAILPOINTS": "",
    "TURNKEEPER_METRICS_PORT": "",
}


@dataclass(slots=True)
class DemoSystem:
    """The running system: where its parts are, and an API key for each owner. ``keep_logs``: they outlive the run."""

    places: Places
    keys: Mapping[str, str]
    keep_logs: bool = False


@contextmanager
def running_demo(settings: Settings, owners: Sequence[str], *, say: Say) -> Iterator[DemoSystem]:
    """Start servers and every part, wait until each pool is there, and stop them all at the end; for the main thread.

    The home folder goes at the end too; its logs stay when the run failed. Raises ``ConfigError`` when a server program
    is missing, and ``ProcessFailed`` when a part does not become ready.
    """
    home = Path(tempfile.mkdtemp(prefix="turnkeeper-demo-"))
    own = settings.model_copy(
        update={
            **dict.fromkeys(("database_url", "broker_url", "feed_url"), SecretStr("")),
            **dict.fromkeys(("port", "flower_port"), 0),
            "home": str(home),
        }
    )
    keep_logs = True
    try:
        with ExitStack() as stack:
            kill = stack.enter_context(stop_signals())
            places = open_places(stack, own, home=home, fresh=False, pools=QUEUES, say=_say_nothing)
            migrate(places.database_url)
            processes = stack.enter_context(kept_processes(places, say=say))
            kill.append(processes.kill)
            start_programs(processes, places, own, pools=QUEUES, extra_env=OWN_SETTINGS)
            system = DemoSystem(places, asyncio.run(_prepare(places.database_url, owners)))
            yield system
            keep_logs = system.keep_logs
    except KeyboardInterrupt:
        keep_logs = False
        raise
    finally:
        _clear(home, keep_logs=keep_logs, say=say)


async def _prepare(database_url: str, owners: Sequence[str]) -> dict[str, str]:
    """Make a key for each owner, and wait until every pool has a worker."""
    database = Database(database_url, connections=1, name="turnkeeper-demo")
    await database.open()
    try:
        keys = {owner: new_key() for owner in owners}
        for owner, key in keys.items():
            await PostgresApiKeys(database).add(key, OwnerId(owner), KEY_NAME)
        await _wait_for_pools(PostgresTurnQueue(database))
        return {owner: key.text for owner, key in keys.items()}
    finally:
        await database.close()


async def _wait_for_pools(queue: PostgresTurnQueue) -> None:
    missing = set(QUEUES)
    try:
        async with asyncio.timeout(POOLS_BOUND_S):
            while missing:
                missing -= {name for worker in await queue.workers() for name in worker["queues"]}
                await asyncio.sleep(LOOK_S if missing else 0)
    except TimeoutError as error:
        names = ", ".join(sorted(missing))
        raise ProcessFailed(
            f"no worker within {POOLS_BOUND_S:g} s for: {names}", name=min(missing)
        ) from error


def _clear(home: Path, *, keep_logs: bool, say: Say) -> None:
    logs = home / LOGS
    if not (keep_logs and logs.is_dir()):
        shutil.rmtree(home)
        return
    for entry in home.iterdir():
        if entry == logs:
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    say(f"logs are kept in {logs}")


def _say_nothing(line: str) -> None:
    pass
