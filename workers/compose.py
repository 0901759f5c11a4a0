"""The root of a worker process: builds its parts from the settings, in order, and closes them in reverse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from shared.agents import load_app
from shared.leases.postgres import PostgresLeases
from shared.settings import Settings
from shared.wakes.names import TURNS, UPKEEP
from workers.metrics.turn_figures import turn_figures
from workers.metrics.collector import PartsCollector, serve_metrics
from workers.parts import ConsumerGate, QueueServer, WorkerParts
from workers.stores import WorkerStores, open_stores
from workers.sweeps import Sweeps, turn_sweeps
from workers.turns.building import build_turns, served_revisions
from workers.turns.presence import Presence


@asynccontextmanager
async def build_worker(
    settings: Settings, *, queues: frozenset[str], capacity: int, gate: ConsumerGate
) -> AsyncIterator[WorkerParts]:
    """Build the parts that serve ``queues``; see :class:`workers.parts.BuildWorker`.

    Raises ``ConfigError``, ``StoreUnavailable`` and ``SchemaOutOfRange`` before anything is claimed.
    """
    app = load_app(settings.app)
    collector = PartsCollector()
    pumps: dict[str, QueueServer] = {}
    services: list[Callable[[], Awaitable[None]]] = []
    async with AsyncExitStack() as stack:
        stores = await open_stores(settings, sorted(queues), stack)
        if TURNS in queues:
            parts = await build_turns(
                settings, app, stores, capacity=capacity, gate=gate, stack=stack, recall=None
            )
            pumps[TURNS] = parts.pump
            services += parts.services
            turn_figures(collector, parts, stores)
        if UPKEEP in queues:
            pumps[UPKEEP] = _build_upkeep(settings, stores)
        presence = _presence(settings, stores, pumps, served_revisions(settings, app))
        await presence.write()
        stack.push_async_callback(presence.leave)
        services.append(presence.write_for_ever)
        stack.callback(serve_metrics(collector, settings.metrics_port))
        yield WorkerParts(pumps=pumps, wakes=stores.wakes, services=services, leave=stores.leave)


def _build_upkeep(settings: Settings, stores: WorkerStores) -> Sweeps:
    return Sweeps(
        turn_sweeps(stores.turns, stores.wakes, on_change=stores.feed.publish_change),
        PostgresLeases(stores.polls),
        stores.worker,
        every_s=settings.sweep_s,
        lease_s=settings.sweep_lease_s,
    )


def _presence(
    settings: Settings, stores: WorkerStores, pumps: dict[str, QueueServer], revisions: tuple[str, ...]
) -> Presence:
    work = [pump for queue, pump in pumps.items() if queue != UPKEEP]
    return Presence(
        queue=stores.turns,
        worker=stores.worker,
        queues=sorted(pumps),
        revisions=revisions if TURNS in pumps else (),
        capacity=sum(int(pump.info()["capacity"]) for pump in work),
        held=lambda: sum(int(pump.info()["held"]) for pump in work),
        every_s=settings.worker_seen_s,
    )
