"""What a delivery is checked for, and what it writes into the log."""

from __future__ import annotations

from shared.domain.bounds import check_identity, check_json, check_text
from shared.inbox.port import Delivery
from shared.sessions.records import Draft
from shared.sessions.vocabulary import draft_of
from shared.sessions.vocabulary_around import InboxQueued


def queued_draft(delivery: Delivery) -> Draft:
    """Return the ``inbox.queued`` record of a delivery, once every field of it is within its bound.

    Its digest is the delivery's fingerprint: the same id with another one is a conflict. Raises ``InvalidInput`` or
    ``InputTooLarge`` naming field and bound.
    """
    check_identity(delivery.id, field="id")
    check_identity(delivery.source, field="source")
    check_text(delivery.content, field="content")
    if delivery.meta is not None:
        check_json(dict(delivery.meta), field="meta")
    for field, value in (("agent", delivery.agent), ("agent_revision", delivery.agent_revision)):
        if value:
            check_identity(value, field=field)
    return draft_of(InboxQueued(id=delivery.id, source=delivery.source, content=delivery.content))
