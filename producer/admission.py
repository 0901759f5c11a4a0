"""Admitting a turn: one transaction, acknowledged after its commit, then a wake (laws 2 and 4, API-02, API-03)."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import Final

from producer.parts import ProducerParts
from producer.wire import TurnRequest
from shared.agents import Agent
from shared.domain.errors import (
    ConfigError,
    InvalidInput,
    NotResumable,
    StoreUnavailable,
    TurnkeeperError,
    TurnMissing,
)
from shared.domain.ids import OwnerId, SessionId, TurnId, new_run_id, new_turn_id
from shared.turns.queue import PRIORITIES, Admission, Receipt
from shared.turns.resume import not_resumable, resume_key
from shared.wakes.names import TURNS

_log: Final = logging.getLogger(__name__)


async def admit_turn(
    parts: ProducerParts, owner: OwnerId, session_id: SessionId, request: TurnRequest, key: str | None
) -> Receipt:
    """Admit a turn durably and ring for it. Raises what :meth:`TurnQueue.admit` does, and ``Draining``.

    Ids are minted before the first try: when its answer was lost, the second try finds what it stored.
    """
    admission = _admission(parts, owner, session_id, request, key)
    began = time.perf_counter()
    try:
        with parts.traffic.admitting(session=session_id):
            if request.resumes is not None:
                n = await _resumed_number(parts, owner, session_id, TurnId(request.resumes))
                admission = replace(admission, resumes=n, key=resume_key(n) if key is None else key)
            receipt = await _admit_twice(parts, admission)
            await parts.failpoints.hit("admission.committed")
    except NotResumable as error:
        parts.metrics.admissions.labels(error.code).inc()
        raise not_resumable(session_id, request.resumes, error.fields["reason"]) from error
    except TurnkeeperError as error:
        parts.metrics.admissions.labels(error.code).inc()
        raise
    parts.metrics.admission_seconds.observe(time.perf_counter() - began)
    parts.metrics.admissions.labels("duplicate" if receipt.duplicate else "admitted").inc()
    if receipt.status == "ready":
        parts.wakes.ring(TURNS, [str(receipt.turn_id)])
    if request.on_busy == "interrupt" and parts.hints is not None and not receipt.duplicate:
        for turn, holder in receipt.superseded.items():
            parts.hints.publish_to_worker(holder, turn)
        parts.hints.publish_change(session_id)
    if _log.isEnabledFor(logging.DEBUG):  # a line a turn costs as much as a tenth of its admission
        ids = {"session": session_id, "turn": str(receipt.turn_id), "status": receipt.status}
        _log.debug("turn admitted", extra=ids | {"duplicate": receipt.duplicate})
    return receipt


async def _resumed_number(
    parts: ProducerParts, owner: OwnerId, session_id: SessionId, turn_id: TurnId
) -> int:
    """Return the number of the turn to resume, which stays the same for good; the rest is judged as it is admitted."""
    with suppress(TurnMissing):
        view = await parts.queue.get(turn_id, owner)
        if view.session_id == session_id and view.number is not None:
            return view.number
    await parts.log.head(session_id, owner)
    raise not_resumable(session_id, turn_id, "missing")


async def _admit_twice(parts: ProducerParts, admission: Admission) -> Receipt:
    limits, hook = replace(parts.limits, is_full=parts.waiting.is_full), parts.app.admission
    try:
        return await parts.queue.admit(admission, limits, admit=hook)
    except StoreUnavailable:
        return await parts.queue.admit(admission, limits, admit=hook)


def _admission(
    parts: ProducerParts, owner: OwnerId, session_id: SessionId, request: TurnRequest, key: str | None
) -> Admission:
    agent = agent_of(parts, request.agent)
    return Admission(
        turn_id=new_turn_id(),
        run_id=new_run_id(),
        session_id=session_id,
        owner=owner,
        message={"text": request.message.text},
        key=key,
        command=request.command,
        meta=request.meta,
        agent=agent.name,
        agent_revision=agent.revision,
        on_busy=request.on_busy,
        on_worker_loss=agent.on_worker_loss,
        priority=PRIORITIES[request.priority],
        deadline=request.deadline,
        max_duration_s=duration_of(agent, request.max_duration_s),
    )


def agent_of(parts: ProducerParts, name: str | None) -> Agent:
    """Return the agent that a request names, the first one by default; raise ``InvalidInput`` for one that there is not."""
    try:
        return parts.app.agent(name or "")
    except ConfigError as error:
        raise InvalidInput(
            "the app has no such agent", field="/agent", bound="an agent of the app"
        ) from error


def duration_of(agent: Agent, wanted_s: float | None) -> float:
    """Return how long a turn may take: as asked for, at most what the agent's policy allows (else ``InvalidInput``)."""
    allowed_s = agent.policy.max_duration_s
    if wanted_s is not None and wanted_s > allowed_s:
        bound = f"<= {allowed_s:g} seconds"
        raise InvalidInput("longer than the agent's policy allows", field="/max_duration_s", bound=bound)
    return allowed_s if wanted_s is None else wanted_s
