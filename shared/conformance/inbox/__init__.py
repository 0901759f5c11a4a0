"""The kit of the inbox: what any adapter of :class:`shared.inbox.port.Inbox`, with its turn queue, must show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shared.conformance.check import ConformanceCheck
from shared.conformance.inbox import begins, claims, deliveries, endings, following, refusals
from shared.conformance.inbox.stage import InboxSubject

CHECKS: Final = (
    *deliveries.CHECKS,
    *claims.CHECKS,
    *endings.CHECKS,
    *following.CHECKS,
    *begins.CHECKS,
    *refusals.CHECKS,
)


def inbox_conformance(subject: InboxSubject) -> Sequence[ConformanceCheck]:
    """Return the checks of an inbox for this subject. Each uses owners, workers and revisions of its own."""
    return [each.on(subject) for each in CHECKS]
