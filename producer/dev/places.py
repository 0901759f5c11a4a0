"""Where the parts of a run on this machine are: embedded servers or named ones, and ports of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shared.agents import App
from shared.database.embedded import EmbeddedServers
from shared.database.embedded.ports import find_free_port, next_free_port
from shared.settings import Settings
from shared.wakes.names import ACTIVITY, INDEX, REMEMBER, TURNS, UPKEEP

Say = Callable[[str], None]

LOOPBACK: Final = "127.0.0.1"
#: Connections of PostgreSQL beside the workers': the producer's pool, the superuser's, and people's.
CONNECTIONS_BESIDE_WORKERS: Final = 40
#: Connections that each worker has beside its pool of them: renewals, claims of turns, and one that is being replaced.
CONNECTIONS_BESIDE_POOL: Final = 3

#: Pools that an app with memory needs besides the others.
MEMORY_POOLS: Final = (ACTIVITY, REMEMBER, INDEX)


def pools_of(app: App, *, turn_workers: int) -> tuple[str, ...]:
    """Return the queue of each worker process: so many turn workers, and one of every other pool that the app needs."""
    return (*(TURNS,) * turn_workers, *(MEMORY_POOLS if app.memory else ()), UPKEEP)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the parts of this run are. ``offline_port`` is 0 when a real endpoint is used."""

    home: Path
    database_url: str
    broker_url: str
    feed_url: str
    port: int
    flower_port: int
    offline_port: int

    @property
    def producer_url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def flower_url(self) -> str:
        return f"http://{LOOPBACK}:{self.flower_port}"

    @property
    def offline_model_url(self) -> str:
        return f"http://{LOOPBACK}:{self.offline_port}/v1" if self.offline_port else ""


def open_places(
    stack: ExitStack, settings: Settings, *, home: Path, fresh: bool, pools: Sequence[str], say: Say
) -> Places:
    """Start the embedded servers that the settings name no real ones for, and choose ports; ``stack`` stops them.

    ``pools``: the queue of each worker that will connect. Raises ``ConfigError`` when a server program is missing.
    """
    database_url = settings.database_url.get_secret_value()
    broker_url = settings.broker_url.get_secret_value()
    feed_url = settings.effective_feed_url
    needs_postgres, needs_valkey = not database_url, not (broker_url and feed_url)
    if needs_postgres or needs_valkey:
        servers = stack.enter_context(
            EmbeddedServers(
                home,
                fresh=fresh,
                tune={"max_connections": str(_connections(settings, pools))},
                postgres=needs_postgres,
                valkey=needs_valkey,
            )
        )
        if needs_postgres:
            database_url = servers.database_url
            say(f"PostgreSQL under {home}")
        if needs_valkey:
            broker_url = broker_url or servers.redis_url
            feed_url = feed_url or servers.redis_url
            say(f"Valkey under {home}")
    has_model = bool(settings.openai_api_key.get_secret_value() or settings.openai_base_url)
    return Places(
        home=home,
        database_url=database_url,
        broker_url=broker_url,
        feed_url=feed_url,
        port=_choose_port("producer", settings.port, say),
        flower_port=_choose_port("Flower", settings.flower_port, say),
        offline_port=0 if has_model else find_free_port(),
    )


def _connections(settings: Settings, pools: Sequence[str]) -> int:
    of_pools = {TURNS: settings.worker_connections, UPKEEP: settings.upkeep_connections}
    return CONNECTIONS_BESIDE_WORKERS + sum(
        of_pools.get(pool, settings.background_connections) + CONNECTIONS_BESIDE_POOL for pool in pools
    )


def _choose_port(name: str, wanted: int, say: Say) -> int:
    port = next_free_port(wanted, host=LOOPBACK) if wanted else find_free_port()
    if wanted and port != wanted:
        say(f"port {wanted} is taken: {name} on {port}")
    return port
