"""What may be delivered, and what an inbox turn is asked: one message made of the contents of its items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shared.domain.bounds import check_identity, check_text
from shared.domain.canonical import canonical_json
from shared.domain.errors import InputTooLarge, InvalidInput
from shared.inbox.port import Delivery, InboxItem

#: The largest content of one item, as JSON writes it.
CONTENT_MAX_BYTES: Final = 64 * 1024
#: How much one inbox turn takes of what waits, as JSON writes contents and ids: half of what the record that names and asks
#: them may hold, so that nothing that is stored beside it makes the opening commit too large.
CLAIMED_MAX_BYTES: Final = 2 * 1024 * 1024
#: Ids of this kind are the framework's: a background task's result is delivered under one, once.
TASK_ID: Final = "task:"
#: Stands between the contents of two items.
BETWEEN: Final = "\n\n"


def oldest_that_fit(items: Sequence[InboxItem]) -> Sequence[InboxItem]:
    """Return what one inbox turn claims of the items that wait: the oldest, up to ``CLAIMED_MAX_BYTES``, at least one (INB-07)."""
    taken = 0
    for n, item in enumerate(items):
        taken += len(canonical_json([item.id, item.content + BETWEEN]).encode())
        if n > 0 and taken > CLAIMED_MAX_BYTES:
            return items[:n]
    return items


def message_of(items: Sequence[InboxItem]) -> str:
    """Return the user message of a turn that claims these items: their contents, oldest first (INB-08)."""
    return BETWEEN.join(item.content for item in items)


def check_delivery(delivery: Delivery) -> Delivery:
    """Return what a host delivers if it may; the store checks what holds for every delivery.

    Raises ``InvalidInput`` naming the field and its bound.
    """
    check_item_id(delivery.id, field="id")
    check_content(delivery.content, field="content")
    return delivery


def check_item_id(value: str, *, field: str) -> str:
    """Return an item's id if it is one that others than the framework may use."""
    check_identity(value, field=field)
    if value.startswith(TASK_ID):
        raise InvalidInput(
            f"ids that begin with {TASK_ID!r} are those of background tasks",
            field=field,
            bound=f"no {TASK_ID!r} at its beginning",
        )
    return value


def check_content(value: str, *, field: str) -> str:
    """Return an item's content if it can be stored and asked."""
    if not value:
        raise InvalidInput(f"{field} must not be empty", field=field, bound=f"1..{CONTENT_MAX_BYTES} bytes")
    check_text(value, field=field, max_bytes=CONTENT_MAX_BYTES)
    if len(canonical_json(value).encode()) - len('""') > CONTENT_MAX_BYTES:
        bound = f"<= {CONTENT_MAX_BYTES} bytes as JSON"
        raise InputTooLarge(f"{field} is larger than {CONTENT_MAX_BYTES} bytes", field=field, bound=bound)
    return value
