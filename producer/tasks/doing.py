"""What the routes of background tasks do: each stores first, then rings (laws 2 and 4, API-08)."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from typing import Final

from producer.admission import agent_of, duration_of
from producer.parts import ProducerParts
from producer.tasks.wire import StartRequest
from shared.domain.errors import TurnkeeperError
from shared.domain.ids import OwnerId, SessionId, TurnId
from shared.host.port import SessionAddress
from shared.host.tasks.delivering import deliver_owed
from shared.host.tasks.port import Reconciled
from shared.host.tasks.reconciling import waiting_tasks
from shared.host.tasks.tasks import start_known
from shared.tasks.port import CancelledTask, StartedTask, new_task
from shared.wakes.names import TURNS

_log: Final = logging.getLogger(__name__)

#: Makes a task's id of a session and a key.
_NAMESPACE: Final = uuid.UUID("b5a4d1f0-2c0e-4b53-8d37-0b8a6d1f7c52")


async def start_task(
    parts: ProducerParts, owner: OwnerId, session: SessionId, request: StartRequest, key: str | None
) -> StartedTask:
    """Start a task durably and ring for its turn. Raises what :meth:`TaskStore.start` does, and ``Draining``."""
    agent = agent_of(parts, request.agent)
    task = new_task(
        session,
        owner,
        request.instructions,
        request.mode,
        task_id=None if key is None else task_id_of(session, key),
        meta=request.meta,
        agent=agent.name,
        agent_revision=agent.revision,
        on_worker_loss=agent.on_worker_loss,
        deadline_in_s=request.deadline_in_s,
        max_duration_s=duration_of(agent, request.max_duration_s),
    )
    limits = replace(parts.task_limits, is_full=parts.waiting.is_full)
    try:
        with parts.traffic.admitting(session=session):
            started = await start_known(parts.tasks, task, limits)
            await parts.failpoints.hit("task.unrung")
    except TurnkeeperError as error:
        parts.metrics.task_starts.labels(error.code).inc()
        raise
    parts.metrics.task_starts.labels("duplicate" if started.duplicate else "started").inc()
    parts.wakes.ring(TURNS, [str(started.turn_id)])
    if parts.hints is not None and not started.duplicate:
        parts.hints.publish_change(session)
    about = {"session": session, "task": started.task_id, "duplicate": started.duplicate}
    _log.info("task started", extra=about)
    return started


async def cancel_task(
    parts: ProducerParts, owner: OwnerId, session: SessionId, task_id: str
) -> CancelledTask:
    """Cancel a task durably and tell the process that runs it."""
    done = await parts.tasks.cancel(session, task_id, owner)
    if parts.hints is not None and done.took_effect:
        if done.holder is not None and done.turn_id is not None:
            parts.hints.publish_to_worker(done.holder, done.turn_id)
        parts.hints.publish_change(SessionId(task_id))
    _log.info("task cancelled", extra={"session": session, "task": task_id, "result": done.status})
    return done


async def reconcile_tasks(parts: ProducerParts, owner: OwnerId, session: SessionId) -> Reconciled:
    """Deliver what a session's tasks owe it and ring for those that wait: what the sweep does, now (TSK-41, TSK-43)."""
    await parts.log.head(session, owner)
    address = SessionAddress(session, owner)
    delivered = await deliver_owed(parts.tasks, address)
    waiting = await waiting_tasks(parts.tasks, address)
    turns: list[TurnId] = [one.turn_id for one in delivered if one.turn_id is not None]
    turns += [one.turn_id for one in waiting]
    if turns:
        parts.wakes.ring(TURNS, [str(turn) for turn in turns])
    if delivered and parts.hints is not None:
        parts.hints.publish_change(session)
    return Reconciled([one.task_id for one in waiting], [one.task_id for one in delivered])


def task_id_of(session: SessionId, key: str) -> SessionId:
    """Return the id of the task that a key names in a session: a key of another session, or owner, never meets it."""
    return SessionId("ses_" + uuid.uuid5(_NAMESPACE, session + "\n" + key).hex)
