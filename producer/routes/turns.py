"""Turns that were admitted: look at, wait for, cancel (API-07)."""

from __future__ import annotations

import logging
from typing import Annotated, Final

from fastapi import APIRouter, Query

from producer.doors import SECURITY, OwnedRoute, Owner, Parts
from producer.routes.streams import wait_for_end
from producer.wire import (
    CancelAnswer,
    NoBody,
    TurnAnswer,
    WaitQuery,
    cancel_answer,
    read_turn_id,
    turn_answer,
)
from shared.wakes.names import TURNS

_log: Final = logging.getLogger(__name__)

router: Final = APIRouter(prefix="/v1", tags=["turns"], route_class=OwnedRoute, dependencies=list(SECURITY))


@router.get("/turns/{turn_id}")
async def read_turn(parts: Parts, owner: Owner, turn_id: str) -> TurnAnswer:
    """Read how a turn stands."""
    return turn_answer(await parts.queue.get(read_turn_id(turn_id), owner))


@router.get("/turns/{turn_id}/wait")
async def wait_turn(
    parts: Parts, owner: Owner, turn_id: str, query: Annotated[WaitQuery, Query()]
) -> TurnAnswer:
    """Read how a turn stands once it has finished, or when the time is over or this process goes away."""
    wanted = read_turn_id(turn_id)
    view = await parts.queue.get(wanted, owner)
    answer = turn_answer(view)
    if answer.finished or query.timeout == 0:
        return answer
    await wait_for_end(parts, view, query.timeout)
    return turn_answer(await parts.queue.get(wanted, owner))


@router.post("/turns/{turn_id}/cancel")
async def cancel_turn(parts: Parts, owner: Owner, turn_id: str, body: NoBody | None = None) -> CancelAnswer:
    """End a turn as cancelled, durably, whoever runs it; tells whether that took effect, and why not."""
    wanted = read_turn_id(turn_id)
    done = await parts.queue.cancel(wanted, owner)
    if done.reason not in ("finished", "inbox"):
        if parts.hints is not None:
            if done.holder is not None:
                parts.hints.publish_to_worker(done.holder, wanted)
            parts.hints.publish_change(done.session_id)
        # What waited behind it may be ready now.
        parts.wakes.ring(TURNS)
    parts.metrics.cancels.labels(done.reason).inc()
    _log.info(
        "turn cancelled", extra={"turn": str(wanted), "session": done.session_id, "result": done.reason}
    )
    return cancel_answer(done)
