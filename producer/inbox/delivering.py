"""Delivering to a session's inbox: one transaction, acknowledged after its commit, then a wake (laws 2 and 4, API-08)."""

from __future__ import annotations

import logging
from typing import Final

from producer.inbox.wire import DeliveryRequest
from producer.parts import ProducerParts
from shared.agents import Agent
from shared.domain.errors import ConfigError, InvalidInput, StoreUnavailable, TurnkeeperError
from shared.domain.ids import OwnerId, SessionId
from shared.inbox.port import Delivered, Delivery
from shared.wakes.names import TURNS

_log: Final = logging.getLogger(__name__)


async def deliver_item(
    parts: ProducerParts, owner: OwnerId, session_id: SessionId, request: DeliveryRequest
) -> Delivered:
    """Deliver an item durably and ring for the turn that takes it. Raises what :meth:`Inbox.deliver` does, and ``Draining``.

    The item's id makes it safe to repeat: when an answer was lost, the second try finds what the first stored.
    """
    try:
        with parts.traffic.admitting(session=session_id):
            delivery = await _delivery(parts, owner, session_id, request)
            delivered = await _deliver_twice(parts, delivery)
            await parts.failpoints.hit("delivery.committed")
    except TurnkeeperError as error:
        parts.metrics.deliveries.labels(error.code).inc()
        raise
    parts.metrics.deliveries.labels("duplicate" if delivered.duplicate else "stored").inc()
    if delivered.turn_id is not None:
        parts.wakes.ring(TURNS, [str(delivered.turn_id)])
    if parts.hints is not None and not delivered.duplicate:
        parts.hints.publish_change(session_id)
    about = {"session": session_id, "item": delivery.id, "duplicate": delivered.duplicate}
    _log.info("item delivered", extra=about | {"pending": delivered.pending})
    return delivered


async def _deliver_twice(parts: ProducerParts, delivery: Delivery) -> Delivered:
    bound = parts.settings.inbox_max_pending
    try:
        return await parts.inbox.deliver(delivery, max_pending=bound)
    except StoreUnavailable:
        return await parts.inbox.deliver(delivery, max_pending=bound)


async def _delivery(
    parts: ProducerParts, owner: OwnerId, session_id: SessionId, request: DeliveryRequest
) -> Delivery:
    agent = await _answerer(parts, owner, session_id, request.agent)
    return Delivery(
        session_id=session_id,
        owner=owner,
        id=request.id,
        source=request.source,
        content=request.content,
        meta=request.meta,
        agent=None if agent is None else agent.name,
        agent_revision=None if agent is None else agent.revision,
        # Nobody named: the session's last turn says it, also one that never opened.
        on_worker_loss=None if agent is None or request.agent is None else agent.on_worker_loss,
    )


async def _answerer(
    parts: ProducerParts, owner: OwnerId, session_id: SessionId, name: str | None
) -> Agent | None:
    """Return who answers the item: nobody named in a session that had a turn, whose last one's agent the database takes."""
    if name is None and (await parts.log.head(session_id, owner)).turns > 0:
        return None
    try:
        return parts.app.agent(name or "")
    except ConfigError as error:
        raise InvalidInput(
            "the app has no such agent", field="/agent", bound="an agent of the app"
        ) from error
