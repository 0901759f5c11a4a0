"""The root of a worker process: builds its parts from the settings, in order, and closes them in reverse."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import psutil

from shared.agents import App, load_app
from shared.database.counters import WorkCounters
from shared.database.pool import Database
from shared.domain.errors import ConfigError
from shared.domain.failpoints import Failpoints
from shared.domain.ids import TurnId, WorkerId, new_worker_id
from shared.feed.inproc import InprocFeed
from shared.feed.redis import RedisFeed
from shared.leases.postgres import PostgresLeases
from shared.models.openai_chat import OpenAIChatModel
from shared.models.port import ChatModel
from shared.sessions.postgres import PostgresSessionLog
from shared.settings import DEFAULT_OPENAI_BASE_URL, Settings
from shared.turns.postgres import PostgresTurnQueue
from shared.wakes.celery_publisher import CeleryWakePublisher
from shared.wakes.names import TURNS, UPKEEP
from workers.executor import BoundedExecutor
from workers.figures import turn_figures
from workers.metrics import PartsCollector, serve_metrics
from workers.parts import ConsumerGate, QueueServer, WorkerParts
from workers.pump import Pump
from workers.sweeps import Sweeps, turn_sweeps
from workers.turns.claims import TurnClaimer
from workers.turns.holdings import Holding, Holdings
from workers.turns.presence import Presence
from workers.turns.runner import TurnRunner

WAKES_CLOSE_S: Final = 1.0
#: Connections for renewals and polls, apart from the hot path's, so that a pool that is used up costs no lease.
POLL_CONNECTIONS: Final = 1


Feed = RedisFeed | InprocFeed


@dataclass(frozen=True, slots=True)
class _Stores:
    """What every queue of the process shares."""

    worker: WorkerId
    database: Database
    polls: Database
    queue: PostgresTurnQueue
    log: PostgresSessionLog
    feed: Feed
    wakes: CeleryWakePublisher
    leave: asyncio.Event


@asynccontextmanager
async def build_worker(
    settings: Settings, *, queues: frozenset[str], capacity: int, gate: ConsumerGate
) -> AsyncIterator[WorkerParts]:
    """Build the parts that serve ``queues``; see :class:`workers.parts.BuildWorker`.

    Raises ``ConfigError``, ``StoreUnavailable`` and ``SchemaOutOfRange`` before anything is claimed.
    """
    collector = PartsCollector()
    pumps: dict[str, QueueServer] = {}
    services: list[Callable[[], Awaitable[None]]] = []
    async with AsyncExitStack() as stack:
        stores = await _open_stores(settings, sorted(queues), stack)
        if TURNS in queues:
            pump, loops = await _build_turns(settings, stores, capacity, gate, stack, collector)
            pumps[TURNS] = pump
            services += loops
        if UPKEEP in queues:
            pumps[UPKEEP] = _build_upkeep(settings, stores)
        presence = _presence(settings, stores, queues, capacity, pumps.get(TURNS))
        await presence.write()
        stack.push_async_callback(presence.leave)
        services.append(presence.write_for_ever)
        stack.callback(serve_metrics(collector, settings.metrics_port))
        yield WorkerParts(pumps=pumps, wakes=stores.wakes, services=services, leave=stores.leave)


async def _open_stores(settings: Settings, queues: Sequence[str], stack: AsyncExitStack) -> _Stores:
    for value, variable in (
        (settings.database_url, "DATABASE_URL"),
        (settings.broker_url, "CELERY_BROKER_URL"),
    ):
        if not value.get_secret_value():
            raise ConfigError(f"{variable} is not set", field=variable)
    pool = "+".join(queues)
    connections = settings.worker_connections if TURNS in queues else settings.upkeep_connections
    counters = WorkCounters()
    database = await _open_database(settings, connections, counters, stack, name=f"turnkeeper-{pool}")
    polls = await _open_database(settings, POLL_CONNECTIONS, counters, stack, name=f"turnkeeper-{pool}-polls")
    process = psutil.Process()
    worker = new_worker_id(pool, host=socket.gethostname(), pid=os.getpid(), started_at=process.create_time())
    feed = _open_feed(settings, stack)
    wakes = CeleryWakePublisher(settings.broker_url.get_secret_value(), bound_s=settings.publish_bound_s)
    stack.push_async_callback(asyncio.to_thread, wakes.close, WAKES_CLOSE_S)
    return _Stores(
        worker=worker,
        database=database,
        polls=polls,
        queue=PostgresTurnQueue(database, polls=polls, attempts_max=settings.attempts_max),
        log=PostgresSessionLog(database),
        feed=feed,
        wakes=wakes,
        leave=asyncio.Event(),
    )


def _open_feed(settings: Settings, stack: AsyncExitStack) -> Feed:
    """Open the live feed; without a Redis nobody could read it, and followers live on records alone (core 10)."""
    url = settings.effective_feed_url
    if not url:
        return InprocFeed()
    feed = RedisFeed(
        url,
        interval_s=settings.delta_interval_s,
        max_bytes=settings.feed_max_bytes,
        ttl_s=settings.feed_ttl_s,
    )
    feed.open()
    stack.push_async_callback(feed.close)
    return feed


async def _open_database(
    settings: Settings, connections: int, counters: WorkCounters, stack: AsyncExitStack, *, name: str
) -> Database:
    database = Database(
        settings.database_url.get_secret_value(),
        connections=connections,
        wait_s=settings.connection_wait_s,
        prepared=settings.prepared_statements,
        counters=counters,
        name=name,
    )
    await database.open()
    stack.push_async_callback(database.close)
    return database


async def _build_turns(
    settings: Settings,
    stores: _Stores,
    capacity: int,
    gate: ConsumerGate,
    stack: AsyncExitStack,
    collector: PartsCollector,
) -> tuple[QueueServer, list[Callable[[], Awaitable[None]]]]:
    app = load_app(settings.app)
    holdings = Holdings(
        stores.queue,
        stores.worker,
        lease_s=settings.turn_lease_s,
        renew_s=settings.turn_renew_s,
        poll_s=settings.cancel_poll_s,
    )
    executor = BoundedExecutor(
        settings.executor_threads, lost_max=settings.lost_threads_max, on_exhausted=stores.leave.set
    )
    stack.callback(executor.close)
    pump: Pump[Holding]

    def ring(ids: Sequence[TurnId]) -> None:
        # Our own pump hears it first; when it has no room it rings the queue for the workers elsewhere.
        pump.offer([str(one) for one in ids])

    runner = TurnRunner(
        queue=stores.queue,
        log=stores.log,
        app=app,
        model=await _model(settings, app, stack),
        default_model=settings.model,
        holdings=holdings,
        executor=executor,
        failpoints=Failpoints.parse(settings.failpoints),
        feed=stores.feed,
        hints=stores.feed,
        ring=ring,
    )
    claimer = TurnClaimer(
        queue=stores.queue,
        holdings=holdings,
        worker=stores.worker,
        revisions=_revisions(settings, app),
        lease_s=settings.turn_lease_s,
        attempts_max=settings.attempts_max,
        suspects_max=settings.suspects_max,
        running_per_owner=settings.running_turns_per_owner,
    )
    pump = Pump(
        queue=TURNS,
        capacity=capacity,
        claim=claimer.claim,
        run=runner.run,
        name=lambda holding: str(holding.claim.turn_id),
        ring=lambda: stores.wakes.ring(TURNS),
        gate=gate,
        unasked_s=settings.unasked_claim_s,
    )
    turn_figures(collector, pump, holdings, runner, stores.wakes, stores.database.counters)

    async def hear_cancels() -> None:
        async for _turn in stores.feed.subscribe_worker(stores.worker):
            holdings.look_soon()

    return pump, [holdings.renew_for_ever, holdings.watch_for_ever, hear_cancels]


async def _model(settings: Settings, app: App, stack: AsyncExitStack) -> ChatModel:
    if app.model is not None:
        return app.model
    key = settings.openai_api_key.get_secret_value()
    if not key:
        raise ConfigError(
            "OPENAI_API_KEY is not set (an endpoint without keys takes any value)", field="OPENAI_API_KEY"
        )
    model = OpenAIChatModel(
        base_url=settings.openai_base_url or DEFAULT_OPENAI_BASE_URL,
        api_key=key,
        timeout_s=settings.model_timeout_s,
        retries=settings.model_retries,
    )
    stack.push_async_callback(model.aclose)
    return model


def _revisions(settings: Settings, app: App) -> tuple[str, ...]:
    """Return what this worker serves: what the settings say, else every revision of the app."""
    return settings.served_revisions or app.revisions


def _build_upkeep(settings: Settings, stores: _Stores) -> Sweeps:
    return Sweeps(
        turn_sweeps(stores.queue, stores.wakes, on_change=stores.feed.publish_change),
        PostgresLeases(stores.polls),
        stores.worker,
        every_s=settings.sweep_s,
        lease_s=settings.sweep_lease_s,
    )


def _presence(
    settings: Settings, stores: _Stores, queues: frozenset[str], capacity: int, turns: QueueServer | None
) -> Presence:
    revisions = _revisions(settings, load_app(settings.app)) if turns is not None else ()
    return Presence(
        queue=stores.queue,
        worker=stores.worker,
        queues=sorted(queues),
        revisions=revisions,
        capacity=capacity if turns is not None else 0,
        held=lambda: int(turns.info()["held"]) if turns is not None else 0,
        every_s=settings.worker_seen_s,
    )
