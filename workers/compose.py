"""The root of a worker process: builds its parts from the settings, in order, and closes them in reverse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from shared.agents import load_app
from shared.agents.memory import MemoryPolicy
from shared.database.totals import PoolTotals
from shared.domain.errors import ConfigError
from shared.leases.keeper import KeeperCounts
from shared.leases.postgres import PostgresLeases
from shared.settings import Settings
from shared.transfer.retention import Retention
from shared.wakes.names import ACTIVITY, INDEX, REMEMBER, TURNS, UPKEEP
from workers.background.building import (
    BackgroundParts,
    build_activity,
    build_index,
    build_recall,
    build_remember,
)
from workers.health.loop_load import LoopLoad
from workers.metrics.collector import PartsCollector
from workers.metrics.pool_figures import pool_figures
from workers.metrics.process_figures import process_figures
from workers.metrics.serving import health_of, serve_metrics
from workers.metrics.totals import ProcessCounts
from workers.metrics.turn_figures import turn_figures
from workers.parts import ConsumerGate, Health, QueueServer, Room, WorkerParts
from workers.stores import WorkerStores, open_stores
from workers.sweeps import (
    CountingBell,
    Sweeps,
    inbox_sweep,
    job_sweep,
    retention_sweeps,
    task_sweeps,
    turn_sweeps,
)
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
    load, health = LoopLoad(settings.loop_lag_max_s), Health()
    pumps: dict[str, QueueServer] = {}
    keepers: dict[str, KeeperCounts] = {}
    services: list[Callable[[], Awaitable[None]]] = []
    async with AsyncExitStack() as stack:
        stores = await open_stores(settings, sorted(queues), stack)
        room = Room(capacity, gate, lambda: load.is_overloaded)
        if TURNS in queues:
            recalling = build_recall(settings, app.memory, stores, stack) if app.memory else None
            recall = recalling.recall if recalling is not None else None
            parts = await build_turns(settings, app, stores, room=room, stack=stack, recall=recall)
            pumps[TURNS], keepers[TURNS] = parts.pump, parts.holdings.keeper.counts
            services += (*parts.services, *(recalling.services if recalling is not None else ()))
            turn_figures(collector, parts, stores)
        for pool in await _build_background(settings, app.memory, stores, queues, room, stack):
            pumps[pool.server.pool], keepers[pool.server.pool] = pool.pump, pool.server.keeper.counts
            services += pool.services
            pool_figures(collector, pool)
        bell = CountingBell(stores.wakes)
        if UPKEEP in queues:
            pumps[UPKEEP] = _build_upkeep(settings, stores, bell)
        counts = ProcessCounts(stores.wakes, pumps, keepers, bell.rung)
        process_figures(collector, counts, load)
        presence = _presence(settings, stores, pumps, served_revisions(settings, app), load)
        await presence.write()
        stack.push_async_callback(presence.leave)
        totals = PoolTotals(stores.polls, counts.read, every_s=settings.worker_seen_s)
        stack.push_async_callback(totals.write_if_possible)
        services += (presence.write_for_ever, totals.write_for_ever)
        report = partial(health_of, health, load, pumps, silent_max_s=settings.liveness_s)
        stack.callback(serve_metrics(collector, report, settings.metrics_host, settings.metrics_port))
        yield WorkerParts(
            pumps=pumps,
            wakes=stores.wakes,
            services=services,
            leave=stores.leave,
            load=load,
            health=health,
        )


async def _build_background(
    settings: Settings,
    policy: MemoryPolicy | None,
    stores: WorkerStores,
    queues: frozenset[str],
    room: Room,
    stack: AsyncExitStack,
) -> list[BackgroundParts]:
    """Build the background pools among ``queues``. Raises ``ConfigError`` when the app has no memory to work for."""
    wanted = queues & {ACTIVITY, REMEMBER, INDEX}
    if wanted and policy is None:
        raise ConfigError(
            f"the app has no memory: nothing to do for {', '.join(sorted(wanted))}", field="app.memory"
        )
    pools: list[BackgroundParts] = []
    if policy is None:
        return pools
    if ACTIVITY in queues:
        pools.append(await build_activity(settings, policy, stores, room))
    if REMEMBER in queues:
        pools.append(build_remember(settings, policy, stores, room, stack))
    if INDEX in queues:
        pools.append(await build_index(settings, stores, room, stack))
    return pools


def _build_upkeep(settings: Settings, stores: WorkerStores, bell: CountingBell) -> Sweeps:
    return Sweeps(
        (
            *turn_sweeps(stores.turns, bell, on_change=stores.feed.publish_change),
            *task_sweeps(stores.tasks, bell, on_change=stores.feed.publish_change),
            inbox_sweep(stores.inbox, bell),
            job_sweep(stores.jobs, bell),
            *retention_sweeps(
                Retention(stores.database),
                key_window_days=settings.key_window_days,
                sessions_keep_days=settings.sessions_keep_days,
                every_s=settings.retention_s,
            ),
        ),
        PostgresLeases(stores.polls),
        stores.worker,
        every_s=settings.sweep_s,
        lease_s=settings.sweep_lease_s,
    )


def _presence(
    settings: Settings,
    stores: WorkerStores,
    pumps: dict[str, QueueServer],
    revisions: tuple[str, ...],
    load: LoopLoad,
) -> Presence:
    work = [pump for queue, pump in pumps.items() if queue != UPKEEP]
    return Presence(
        queue=stores.turns,
        worker=stores.worker,
        queues=sorted(pumps),
        revisions=revisions if TURNS in pumps else (),
        capacity=sum(int(pump.info()["capacity"]) for pump in work),
        held=lambda: sum(int(pump.info()["held"]) for pump in work),
        draining=lambda: any(pump.info()["draining"] for pump in work),
        load=load,
        every_s=settings.worker_seen_s,
    )
