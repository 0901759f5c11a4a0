"""A session's inbox: deliver an item that its agent answers in a turn of its own (API-08)."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Response

from producer.doors import SECURITY, OwnedRoute, Owner, Parts
from producer.inbox.delivering import deliver_item
from producer.inbox.wire import DeliveryAnswer, DeliveryRequest, delivery_answer
from producer.wire import read_session_id

router: Final = APIRouter(
    prefix="/v1/sessions/{session_id}/inbox",
    tags=["inbox"],
    route_class=OwnedRoute,
    dependencies=list(SECURITY),
)

_BEFORE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": DeliveryAnswer, "description": "Delivered before under the same id: nothing was added."}
}


@router.post("", status_code=202, responses=_BEFORE)
async def deliver(
    parts: Parts, owner: Owner, response: Response, session_id: str, body: DeliveryRequest
) -> DeliveryAnswer:
    """Deliver an item, once per id: 202 once it is durable, 200 for an id that was delivered before, whatever became of it.

    It waits until the session is free; then one turn takes the items that wait. 429 `inbox.full` when too many wait.
    """
    session = read_session_id(session_id)
    delivered = await deliver_item(parts, owner, session, body)
    if delivered.duplicate:
        response.status_code = 200
    return delivery_answer(session, body.id, delivered)
