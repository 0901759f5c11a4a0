"""The kit of the turn queue: what any adapter of :class:`shared.turns.queue.TurnQueue` must show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shared.conformance import (
    turn_queue_admission,
    turn_queue_appends,
    turn_queue_claims,
    turn_queue_endings,
    turn_queue_holders,
)
from shared.conformance.check import ConformanceCheck
from shared.conformance.turn_stage import TurnQueueSubject
from shared.conformance.turns import begins, hooks, interrupts, resumes, shares, standings

CHECKS: Final = (
    *turn_queue_admission.CHECKS,
    *begins.CHECKS,
    *hooks.CHECKS,
    *interrupts.CHECKS,
    *resumes.CHECKS,
    *shares.CHECKS,
    *turn_queue_claims.CHECKS,
    *turn_queue_holders.CHECKS,
    *turn_queue_appends.CHECKS,
    *turn_queue_endings.CHECKS,
    *standings.CHECKS,
)


def turn_queue_conformance(subject: TurnQueueSubject) -> Sequence[ConformanceCheck]:
    """Return the checks of a turn queue for this subject. Each uses owners, workers and revisions of its own."""
    return [each.on(subject) for each in CHECKS]
