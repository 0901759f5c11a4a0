"""The root of the producer: builds its parts from the settings, in order, and closes them in reverse."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from producer.callers.authentication import ApiKeyAuthenticator
from producer.callers.keyset import KeySet
from producer.callers.rates import WriteRates
from producer.memory.parts import build_memory
from producer.metrics import ProducerMetrics
from producer.parts import ProducerParts
from producer.traffic import Traffic
from shared.agents import App, load_app
from shared.database.counters import WorkCounters
from shared.database.pool import Database
from shared.database.totals import Counts, PoolTotals
from shared.domain.errors import ConfigError
from shared.domain.failpoints import Failpoints
from shared.feed.follow import Following
from shared.feed.merge import MERGE_KINDS
from shared.feed.redis import RedisFeed
from shared.feed.watcher import SessionWatcher
from shared.inbox.postgres import PostgresInbox
from shared.jobs.postgres import PostgresJobQueue
from shared.owners.authenticator import Authenticator
from shared.owners.postgres import PostgresApiKeys, PostgresOwners
from shared.sessions.postgres import PostgresSessionLog
from shared.sessions.vocabulary import CLIENT_KINDS
from shared.settings import Settings, variable_of
from shared.tasks.port import TaskLimits
from shared.tasks.postgres import PostgresTaskStore
from shared.turns.grouping.postgres import TurnGroups
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import AdmissionLimits
from shared.turns.waiting import WaitingTotal
from shared.wakes.opening import open_wakes
from shared.wakes.port import WakePublisher

#: Seconds that owed wakes may take at the end; sweeps find what they were about.
WAKES_CLOSE_S: Final = 1.0


@asynccontextmanager
async def producer_parts(
    settings: Settings,
    traffic: Traffic,
    *,
    app: App | None = None,
    authenticator: Authenticator | None = None,
    wakes: WakePublisher | None = None,
    failpoints: Failpoints | None = None,
) -> AsyncIterator[ProducerParts]:
    """Open the producer's parts. What is given is used instead of what the settings name.

    Raises ``ConfigError``, ``StoreUnavailable`` and ``SchemaOutOfRange`` before anything is served.
    """
    for name in ("database_url", "broker_url"):
        if not getattr(settings, name).get_secret_value():
            variable = {"database_url": "DATABASE_URL", "broker_url": "CELERY_BROKER_URL"}[name]
            raise ConfigError(f"{variable} is not set", field=variable)
    host_app = app if app is not None else load_app(settings.app)
    points = failpoints or Failpoints.parse(settings.failpoints)
    database = _database(settings, counters := WorkCounters())
    await database.open()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        bell = wakes if wakes is not None else _publisher(settings)
        # In a thread: it waits for the publisher's own, and nothing of the loop may wait with it.
        stack.push_async_callback(asyncio.to_thread, bell.close, WAKES_CLOSE_S)
        feed = _feed(settings)
        if feed is not None:
            feed.open()
            stack.push_async_callback(feed.close)
        log = PostgresSessionLog(database)
        queue, inbox = _queues(database, settings, _groups(database, settings, points, stack))
        watcher = SessionWatcher(
            log, queue, hints=feed, poll_s=settings.follower_poll_s, kinds=CLIENT_KINDS | MERGE_KINDS
        )
        watcher.open()
        stack.push_async_callback(watcher.close)
        _report_wakes(bell, database, settings.worker_seen_s, stack)
        yield ProducerParts(
            settings=settings,
            database=database,
            log=log,
            queue=queue,
            inbox=inbox,
            tasks=PostgresTaskStore(database, attempts_max=settings.attempts_max, failpoints=points),
            jobs=PostgresJobQueue(database),
            wakes=bell,
            following=Following(log, queue, watcher, feed),
            hints=feed,
            app=host_app,
            authenticator=authenticator
            or host_app.authenticator
            or _authenticator(settings, database, stack),
            rates=WriteRates(
                PostgresOwners(database), per_s=settings.writes_per_s, burst=settings.writes_burst
            ),
            traffic=traffic,
            metrics=ProducerMetrics(counters, bell, traffic),
            waiting=_waiting(queue, settings, stack),
            memory=build_memory(host_app.memory, settings, database, stack),
            failpoints=points,
            limits=_limits(settings),
            task_limits=_task_limits(settings),
        )


def _groups(
    database: Database, settings: Settings, failpoints: Failpoints, stack: AsyncExitStack
) -> TurnGroups:
    """Let admissions of several sessions that come at once share a commit."""
    groups = TurnGroups(
        database,
        members_max=settings.group_members,
        wait_s=settings.group_wait_s,
        failpoints=failpoints,
    )
    stack.push_async_callback(groups.close)
    return groups


def _queues(
    database: Database, settings: Settings, groups: TurnGroups
) -> tuple[PostgresTurnQueue, PostgresInbox]:
    losses, tries = settings.attempts_max, settings.inbox_attempts
    queue = PostgresTurnQueue(
        database, attempts_max=losses, inbox_retry_s=settings.inbox_retry_s, groups=groups
    )
    return queue, PostgresInbox(database, attempts_max=tries, turn_attempts_max=losses)


def _limits(settings: Settings) -> AdmissionLimits:
    return AdmissionLimits(
        settings.queued_turns_per_session, settings.queued_turns_per_owner, settings.attempts_max
    )


def _task_limits(settings: Settings) -> TaskLimits:
    return TaskLimits(settings.tasks_max_running, settings.queued_turns_per_owner)


def _database(settings: Settings, counters: WorkCounters) -> Database:
    return Database(
        settings.database_url.get_secret_value(),
        connections=settings.producer_connections,
        wait_s=settings.connection_wait_s,
        prepared=settings.prepared_statements,
        counters=counters,
        name="turnkeeper-producer",
    )


def _feed(settings: Settings) -> RedisFeed | None:
    """Return the live feed, or None without a Redis: then records arrive by polling and there are no deltas."""
    url = settings.effective_feed_url
    if not url:
        return None
    return RedisFeed(
        url,
        interval_s=settings.delta_interval_s,
        max_bytes=settings.feed_max_bytes,
        ttl_s=settings.feed_ttl_s,
    )


def _report_wakes(bell: WakePublisher, database: Database, every_s: float, stack: AsyncExitStack) -> None:
    """Add the wakes that this process publishes to the totals that an operator sees (DST-17)."""

    def published() -> Counts:
        by_queue = bell.stats().published_by_queue
        return {(queue, "wakes_published"): count for queue, count in by_queue.items()}

    totals = PoolTotals(database, published, every_s=every_s)
    stack.push_async_callback(totals.write_if_possible)
    stack.callback(asyncio.create_task(totals.write_for_ever(), name="totals").cancel)


def _waiting(queue: PostgresTurnQueue, settings: Settings, stack: AsyncExitStack) -> WaitingTotal:
    """Count the turns that wait in all while this process runs (DST-16)."""
    waiting = WaitingTotal(queue.count_waiting, bound=settings.queued_turns_max)
    stack.callback(asyncio.create_task(waiting.count_for_ever(), name="waiting turns").cancel)
    return waiting


def _publisher(settings: Settings) -> WakePublisher:
    return open_wakes(settings.broker_url.get_secret_value(), bound_s=settings.publish_bound_s)


def _authenticator(settings: Settings, database: Database, stack: AsyncExitStack) -> Authenticator:
    """Return API keys, behind tokens where the settings name their keys."""
    keys = ApiKeyAuthenticator(PostgresApiKeys(database), loopback_owner=settings.loopback_owner)
    if not settings.jwt_jwks_url:
        return keys
    try:
        tokens = importlib.import_module("producer.callers.tokens")
    except ModuleNotFoundError as error:
        text = "tokens need the package pyjwt with cryptography: install the extra 'jwt'"
        raise ConfigError(text, field=variable_of("jwt_jwks_url")) from error
    key_set = KeySet(settings.jwt_jwks_url)
    stack.push_async_callback(key_set.close)
    rules = tokens.TokenRules(
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        owner_claim=settings.jwt_owner_claim,
        algorithms=tuple(settings.jwt_algorithms.split(",")),
    )
    authenticator: Authenticator = tokens.TokenAuthenticator(key_set, rules, keys)
    return authenticator
