"""What every queue of a worker process shares: its identity, its databases, log, queues, feed and wakes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import psutil

from shared.database.counters import WorkCounters
from shared.database.pool import Database
from shared.domain.errors import ConfigError
from shared.domain.failpoints import Failpoints
from shared.domain.ids import WorkerId, new_worker_id
from shared.feed.inproc import InprocFeed
from shared.feed.redis import RedisFeed
from shared.inbox.postgres import PostgresInbox
from shared.jobs.postgres import PostgresJobQueue
from shared.sessions.postgres import PostgresSessionLog
from shared.settings import Settings
from shared.tasks.postgres import PostgresTaskStore
from shared.turns.grouping.postgres import TurnGroups
from shared.turns.postgres import PostgresTurnQueue
from shared.wakes.names import TURNS, UPKEEP
from shared.wakes.opening import open_wakes
from shared.wakes.port import WakePublisher

WAKES_CLOSE_S: Final = 1.0
#: Connections for renewals and polls, apart from the hot path's, so that a pool that is used up costs no lease.
POLL_CONNECTIONS: Final = 1
#: For the claims of turns, beside those: they wait for no statement of the turns that run, and no renewal waits for them.
CLAIM_CONNECTIONS: Final = 1

Feed = RedisFeed | InprocFeed


@dataclass(frozen=True, slots=True)
class WorkerStores:
    """Parts that are opened once a process and used by all its queues."""

    worker: WorkerId
    database: Database
    polls: Database
    turns: PostgresTurnQueue
    tasks: PostgresTaskStore
    inbox: PostgresInbox
    jobs: PostgresJobQueue
    log: PostgresSessionLog
    feed: Feed
    wakes: WakePublisher
    failpoints: Failpoints
    leave: asyncio.Event


async def open_stores(settings: Settings, queues: Sequence[str], stack: AsyncExitStack) -> WorkerStores:
    """Open the parts; ``stack`` closes them in reverse. Raises ``ConfigError``, ``StoreUnavailable``, ``SchemaOutOfRange``."""
    for value, variable in (
        (settings.database_url, "DATABASE_URL"),
        (settings.broker_url, "CELERY_BROKER_URL"),
    ):
        if not value.get_secret_value():
            raise ConfigError(f"{variable} is not set", field=variable)
    pool = "+".join(queues)
    counters = WorkCounters()
    database = await _open_database(
        settings, _connections(settings, queues), counters, stack, f"turnkeeper-{pool}"
    )
    polls = await _open_database(
        settings,
        POLL_CONNECTIONS + CLAIM_CONNECTIONS * (TURNS in queues),
        counters,
        stack,
        f"turnkeeper-{pool}-polls",
    )
    failpoints = Failpoints.parse(settings.failpoints)
    groups = TurnGroups(
        database, members_max=settings.group_members, wait_s=settings.group_wait_s, failpoints=failpoints
    )
    stack.push_async_callback(groups.close)
    process = psutil.Process()
    wakes = open_wakes(settings.broker_url.get_secret_value(), bound_s=settings.publish_bound_s)
    stack.push_async_callback(asyncio.to_thread, wakes.close, WAKES_CLOSE_S)
    return WorkerStores(
        worker=new_worker_id(
            pool, host=socket.gethostname(), pid=os.getpid(), started_at=process.create_time()
        ),
        database=database,
        polls=polls,
        turns=PostgresTurnQueue(
            database,
            polls=polls,
            attempts_max=settings.attempts_max,
            inbox_retry_s=settings.inbox_retry_s,
            groups=groups,
        ),
        inbox=PostgresInbox(
            database, attempts_max=settings.inbox_attempts, turn_attempts_max=settings.attempts_max
        ),
        tasks=PostgresTaskStore(
            database,
            attempts_max=settings.attempts_max,
            inbox_attempts=settings.inbox_attempts,
            failpoints=failpoints,
        ),
        jobs=PostgresJobQueue(database, polls=polls),
        log=PostgresSessionLog(database),
        feed=_open_feed(settings, stack),
        wakes=wakes,
        failpoints=failpoints,
        leave=asyncio.Event(),
    )


def _connections(settings: Settings, queues: Sequence[str]) -> int:
    """Return the pool's size: that of the largest queue served (core 2)."""
    if TURNS in queues:
        return settings.worker_connections
    return settings.upkeep_connections if list(queues) == [UPKEEP] else settings.background_connections


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
    settings: Settings, connections: int, counters: WorkCounters, stack: AsyncExitStack, name: str
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
