"""What an operator and a balancer ask: alive, ready, busy, metrics (API-14). Open to anyone who reaches the port."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from producer.doors import Parts
from producer.metrics import CONTENT_TYPE
from producer.parts import ProducerParts
from shared.database.readiness import StandbyMode, read_readiness
from shared.domain.errors import TurnkeeperError
from shared.jobs.queue import BACKGROUND_POOLS
from shared.wakes.names import TURNS

#: A probe answers within this, whatever the database does.
PROBE_BOUND_S: Final = 3.0
#: A worker writes that it is there every few seconds; one that was silent longer is not counted.
SEEN_PERIODS: Final = 4

router: Final = APIRouter(tags=["operations"])


class HealthAnswer(BaseModel):
    """The process is alive."""

    status: Literal["ok"] = "ok"


class PingAnswer(BaseModel):
    """Whether this process works on anything now."""

    status: Literal["idle", "busy", "draining"]
    requests: int
    admissions: int
    streams: int


class ReadyAnswer(BaseModel):
    """Whether requests should be sent here, and what limps without making it unready."""

    ready: bool
    draining: bool
    store: str
    schema_version: int | None
    standby: StandbyMode | None
    broker_ok: bool
    feed: Literal["redis", "away", "off"]


@router.get("/healthz")
async def healthz() -> HealthAnswer:
    """Answer that the process is alive; asks nobody else."""
    return HealthAnswer()


@router.get("/ping")
async def ping(parts: Parts) -> PingAnswer:
    """Tell what is in flight here, this request left out."""
    traffic = parts.traffic
    requests = traffic.requests - 1
    status: Literal["idle", "busy", "draining"] = "busy" if requests > 0 else "idle"
    return PingAnswer(
        status="draining" if traffic.is_draining else status,
        requests=requests,
        admissions=traffic.admissions,
        streams=traffic.streams,
    )


@router.get("/readyz", responses={503: {"model": ReadyAnswer}})
async def readyz(parts: Parts, response: Response) -> ReadyAnswer:
    """Tell whether Postgres answers at a schema that fits and this process is not going away (503 otherwise).

    A broker or feed that is away, and the model, are no reason: admissions survive without them.
    """
    store, version, standby = await _look_at_store(parts)
    draining = parts.traffic.is_draining
    ready = store == "ok" and not draining
    response.status_code = 200 if ready else 503
    response.headers["Cache-Control"] = "no-store"
    return ReadyAnswer(
        ready=ready,
        draining=draining,
        store=store,
        schema_version=version,
        standby=standby,
        broker_ok=parts.wakes.stats().broker_ok,
        feed=_feed_state(parts),
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(parts: Parts) -> Response:
    """Answer Prometheus' text form; without Postgres, what this process knows by itself."""
    try:
        async with asyncio.timeout(PROBE_BOUND_S):
            workers = await parts.queue.workers()
            seen = [w for w in workers if w["silent_s"] < SEEN_PERIODS * parts.settings.worker_seen_s]
            served = sorted({revision for w in seen for revision in w["revisions"]})
            backlog = await parts.queue.backlog(TURNS, served or [""])
            inbox = await parts.inbox.backlog()
            items = {pool: await parts.jobs.backlog(pool) for pool in BACKGROUND_POOLS}
    except (TurnkeeperError, TimeoutError):
        parts.metrics.show_store_away()
    else:
        parts.metrics.show_queue(TURNS, backlog, seen)
        parts.metrics.show_inbox(inbox)
        for pool, owed in items.items():
            parts.metrics.show_pool(pool, owed)
    return Response(parts.metrics.render(), media_type=CONTENT_TYPE)


def _feed_state(parts: ProducerParts) -> Literal["redis", "away", "off"]:
    """Tell whether there are deltas: without a feed records alone arrive, by polling."""
    if parts.hints is None:
        return "off"
    return "away" if parts.hints.stats().is_up is False else "redis"


async def _look_at_store(parts: ProducerParts) -> tuple[str, int | None, Any]:
    try:
        async with asyncio.timeout(PROBE_BOUND_S):
            readiness = await read_readiness(parts.database)
    except TimeoutError:
        return "timeout", None, None
    except TurnkeeperError as error:
        return error.code, None, None
    return "ok", readiness.schema_version, readiness.standby
