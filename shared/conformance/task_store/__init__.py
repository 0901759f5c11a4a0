"""The kit of the store of background tasks: what any adapter of :class:`shared.tasks.port.TaskStore` must show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shared.conformance.check import ConformanceCheck, checks_of
from shared.conformance.task_store import deliveries, ends, starts
from shared.conformance.task_store.stage import TaskStoreSubject

CHECKS: Final = tuple(each for part in (starts, ends, deliveries) for each in checks_of(vars(part)))


def task_store_conformance(subject: TaskStoreSubject) -> Sequence[ConformanceCheck]:
    """Return the checks of a store of tasks for this subject."""
    return [each.on(subject) for each in CHECKS]
