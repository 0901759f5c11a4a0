"""Puts the activity, remember and index pools of a process together, each with its own concurrency, lease and deadline."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from memory_pipeline.activity.postgres import PostgresActivityStore
from memory_pipeline.activity.process import process_committed_activity
from memory_pipeline.activity.user_statements import user_statements
from memory_pipeline.activity.work import PassLimits, ProcessorKey
from memory_pipeline.index.embedding import open_embedder, profile_of, search_by_meaning
from memory_pipeline.index.limits import SemanticIndexLimits
from memory_pipeline.index.port import SemanticIndex
from memory_pipeline.index.postgres import PostgresSemanticIndex
from memory_pipeline.index.profile import SemanticProfile
from memory_pipeline.index.refresh import refresh_source
from memory_pipeline.namespaces.owners import owner_namespace
from memory_pipeline.recall.compose import recall
from memory_pipeline.recall.sources import OwnerMemory, limits_of, sources_of
from memory_pipeline.remembering.advance import Remembering
from memory_pipeline.remembering.extraction import model_extraction
from memory_pipeline.remembering.postgres import PostgresRememberingStore
from memory_pipeline.remembering.sources import session_sources
from memory_pipeline.store.documents import MemoryKey
from memory_pipeline.store.postgres import PostgresMemoryStore
from shared.agents.memory import MemoryPolicy
from shared.domain.errors import ConfigError, TurnkeeperError, Unavailable
from shared.domain.ids import OwnerId
from shared.jobs.queue import JobClaim, Pool
from shared.leases.watchdog import lease_trusted_for
from shared.models.embeddings import Embedder
from shared.models.structured import StructuredModel
from shared.settings import DEFAULT_OPENAI_BASE_URL, Settings
from shared.wakes.names import INDEX, REMEMBER
from workers.background.serving import HeldJob, JobServer, Pass, PoolPolicy
from workers.parts import Room
from workers.pump import Pump
from workers.stores import WorkerStores
from workers.turns.runner import Recall

_log: Final = logging.getLogger(__name__)

#: Seconds before documents are looked through again after trouble outside.
OWE_AGAIN_S: Final = 5.0
#: An activity pass is not renewed: its lease is trusted for its deadline and what a release may take (decision 27); were
#: it shorter, the watchdog would end each slow pass, and its item would wait for the lease instead of its backoff.
ACTIVITY_LEASE_SLACK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class RecallParts:
    """What gives a turn its transient context, and the loops that go with it."""

    recall: Recall
    services: tuple[Callable[[], Awaitable[None]], ...] = ()


@dataclass(frozen=True, slots=True)
class BackgroundParts:
    """One background pool of a process."""

    pump: Pump[HeldJob]
    server: JobServer
    services: tuple[Callable[[], Awaitable[None]], ...]


def build_recall(
    settings: Settings, policy: MemoryPolicy, stores: WorkerStores, stack: AsyncExitStack
) -> RecallParts:
    """Return what gives a turn its transient context: direct, keyword and semantic sources, revalidated."""
    store = PostgresMemoryStore(stores.database)
    embedder = open_embedder(settings, stack) if policy.semantic else None
    by_meaning = None
    services: tuple[Callable[[], Awaitable[None]], ...] = ()
    if embedder is not None:
        services = (partial(_keep_warm, embedder),)
        index = PostgresSemanticIndex(stores.database)
        by_meaning = search_by_meaning(index, embedder, timeout_s=policy.recall_timeout_s)
    memory = OwnerMemory(policy, store, store, by_meaning)
    limits = limits_of(policy)

    async def recall_text(owner: OwnerId, query: str) -> str:
        return (await recall(sources_of(memory, owner, query), limits)).text

    return RecallParts(recall_text, services)


async def build_activity(
    settings: Settings, policy: MemoryPolicy, stores: WorkerStores, room: Room
) -> BackgroundParts:
    """Build the activity pool and switch the app's processor on."""
    activity = PostgresActivityStore(stores.database)
    key = ProcessorKey(policy.processor, policy.processor_version)
    processor = user_statements(
        key=key,
        store=_remembering_store(settings, stores),
        reader=PostgresMemoryStore(stores.database),
        namespace_of=lambda owner: owner_namespace(policy, owner).address,
    )
    await activity.register(key)

    async def run_pass(claim: JobClaim) -> None:
        result = await process_committed_activity(
            claim,
            store=activity,
            log=stores.log,
            processors={key: processor},
            limits=PassLimits(),
            failpoints=stores.failpoints,
        )
        if result.applied:
            stores.wakes.ring(REMEMBER)

    lease_s = lease_trusted_for(settings.activity_deadline_s + ACTIVITY_LEASE_SLACK_S)
    return _parts(
        settings,
        stores,
        PoolPolicy("activity", lease_s, settings.activity_deadline_s),
        run_pass,
        capacity=settings.activity_capacity,
        room=room,
    )


def build_remember(
    settings: Settings,
    policy: MemoryPolicy,
    stores: WorkerStores,
    room: Room,
    stack: AsyncExitStack,
) -> BackgroundParts:
    """Build the remember pool: the only background pool that asks a model."""
    documents = PostgresMemoryStore(stores.database)
    model = _structured_model(settings, stack)
    remembering = Remembering(
        store=_remembering_store(settings, stores),
        load_source=session_sources(stores.log),
        extract=model_extraction(
            model, model_name=settings.model, instructions=policy.extraction_instructions
        ),
        reader=documents,
        writer=documents,
        failpoints=stores.failpoints,
        now_ms=lambda: time.time_ns() // 1_000_000,
        scopes=(policy.scope,),
    )

    async def run_pass(claim: JobClaim) -> None:
        await remembering.process(claim)
        stores.wakes.ring(INDEX)

    policy_of_pool = _renewed("remember", settings, settings.remember_deadline_s)
    capacity = settings.remember_capacity
    return _parts(settings, stores, policy_of_pool, run_pass, capacity=capacity, room=room)


async def build_index(
    settings: Settings, stores: WorkerStores, room: Room, stack: AsyncExitStack
) -> BackgroundParts:
    """Build the index pool: register its profile, owe what it lacks, refresh sources."""
    embedder = open_embedder(settings, stack)
    if embedder is None:
        raise ConfigError(
            "the index pool needs an embedder: install the extra 'embedded' or set TURNKEEPER_EMBEDDING_MODEL",
            field="TURNKEEPER_EMBEDDING_MODEL",
        )
    index = PostgresSemanticIndex(stores.database)
    profile = profile_of(embedder)
    await index.register(profile)
    documents = PostgresMemoryStore(stores.database)

    async def run_pass(claim: JobClaim) -> None:
        await refresh_source(
            claim,
            index=index,
            reader=documents,
            embedder=embedder,
            limits=SemanticIndexLimits(),
            failpoints=stores.failpoints,
        )

    policy = _renewed("index", settings, settings.index_deadline_s)
    parts = _parts(settings, stores, policy, run_pass, capacity=settings.index_capacity, room=room)
    return replace(parts, services=(*parts.services, partial(_owe_missing, index, profile)))


async def _keep_warm(embedder: Embedder) -> None:
    """Embed a word, then rest until the drain: the first recall has one second and should not spend it on loading a model.

    A service, so that a worker is ready before: a local model takes about a second of the processor. What fails here
    fails again, typed, where it is needed.
    """
    with suppress(TurnkeeperError):
        await embedder.embed(["warm"])
    await asyncio.Event().wait()


async def _owe_missing(index: SemanticIndex, profile: SemanticProfile) -> None:
    """Owe every document that the profile lacks, batch by batch, beside the pool's work; then rest until the drain."""
    after: MemoryKey | None = None
    looking = True
    while looking:
        try:
            after = (await index.owe_missing(profile, after=after)).next_after
            looking = after is not None
        except Unavailable as error:
            _log.warning("documents could not be looked through: %s", error, extra={"code": error.code})
            await asyncio.sleep(OWE_AGAIN_S)
    await asyncio.Event().wait()


def _renewed(pool: Pool, settings: Settings, deadline_s: float) -> PoolPolicy:
    return PoolPolicy(pool, settings.memory_lease_s, deadline_s, renew_s=settings.memory_lease_s / 3)


def _parts(
    settings: Settings,
    stores: WorkerStores,
    policy: PoolPolicy,
    run_pass: Pass,
    *,
    capacity: int,
    room: Room,
) -> BackgroundParts:
    server = JobServer(stores.jobs, stores.worker, policy, run_pass)
    pump = Pump(
        queue=policy.pool,
        capacity=min(room.capacity, capacity),
        claim=server.claim,
        run=server.run,
        name=lambda held: held.claim.job_id,
        ring=lambda: stores.wakes.ring(policy.pool),
        gate=room.gate,
        is_overloaded=room.is_overloaded,
        unasked_s=settings.unasked_claim_s,
    )
    renewals = (server.keeper.renew_for_ever,) if policy.renew_s is not None else ()
    return BackgroundParts(pump, server, renewals)


def _remembering_store(settings: Settings, stores: WorkerStores) -> PostgresRememberingStore:
    return PostgresRememberingStore(stores.database, intents_per_owner=settings.pending_intents_per_owner)


def _structured_model(settings: Settings, stack: AsyncExitStack) -> StructuredModel:
    if not settings.openai_api_key.get_secret_value():
        raise ConfigError("OPENAI_API_KEY is not set", field="OPENAI_API_KEY")
    # Its client takes half a second to import, and only one pool of five asks it.
    from shared.models.openai_structured import OpenAIStructuredModel  # noqa: PLC0415 - loaded late, see above

    model = OpenAIStructuredModel(
        base_url=settings.openai_base_url or DEFAULT_OPENAI_BASE_URL,
        api_key=settings.openai_api_key,
        timeout_s=settings.model_timeout_s,
        retries=settings.model_retries,
    )
    stack.push_async_callback(model.aclose)
    return model
