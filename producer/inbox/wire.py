"""Deliveries on the wire: the strict model of the request, and of its answer."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

from pydantic import AfterValidator, Field

from producer.wire import IDENTITY_PATTERN, Answer, Identity, Meta, NonEmpty, Request, TurnLinks, links_of
from shared.domain.ids import SessionId
from shared.inbox.message import CONTENT_MAX_BYTES, TASK_ID, check_content, check_item_id
from shared.inbox.port import Delivered

#: As JSON Schema says it: an identity that is no task's.
ITEM_ID_PATTERN: Final = rf"^(?!{TASK_ID}){IDENTITY_PATTERN.removeprefix('^')}"


def _content(value: str) -> str:
    return check_content(value, field="/content")


def _item_id(value: str) -> str:
    return check_item_id(value, field="/id")


class DeliveryRequest(Request):
    """An item for a session's inbox."""

    id: Annotated[Identity, AfterValidator(_item_id)] = Field(
        description="Names the item in its session: the same id adds nothing again. `task:` begins those of background tasks.",
        json_schema_extra={"pattern": ITEM_ID_PATTERN},
    )
    source: Identity = Field(description="Who delivers.")
    content: Annotated[NonEmpty, AfterValidator(_content)] = Field(
        description=f"What the agent reads, at most {CONTENT_MAX_BYTES} bytes of UTF-8."
    )
    agent: Identity | None = Field(
        None,
        description="Who answers; by default the agent of the session's last turn, else the app's first.",
    )
    meta: Meta | None = Field(None, description="Goes with the turn that answers; the oldest item's counts.")


class DeliveryAnswer(Answer):
    """What a delivery came to. ``pending`` counts the items that wait now, ``turn_id`` is the turn that takes them next.

    ``seq`` is that of the item's own record, also of a repeat: the cursor from which the answer can be followed.
    """

    session_id: str
    id: str
    seq: int
    pending: int
    duplicate: bool
    turn_id: UUID | None
    links: TurnLinks | None = Field(description="Of the turn, when one is named.")


def delivery_answer(session_id: SessionId, item: str, delivered: Delivered) -> DeliveryAnswer:
    """Return what a delivery came to as it goes over the wire."""
    turn = delivered.turn_id
    return DeliveryAnswer(
        session_id=session_id,
        id=item,
        seq=delivered.seq,
        pending=delivered.pending,
        duplicate=delivered.duplicate,
        turn_id=turn,
        links=None if turn is None else links_of(turn),
    )
