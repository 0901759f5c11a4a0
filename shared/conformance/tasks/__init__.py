"""The kits of background tasks: a runner of their work, and a whole backend of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shared.conformance.check import ConformanceCheck
from shared.conformance.tasks import bounded, running
from shared.conformance.tasks.runner import MadeRunner, MakeRunner, task_runner_conformance
from shared.conformance.tasks.stage import MadeTasks, MakeTasks

CHECKS: Final = (*running.CHECKS, *bounded.CHECKS)


def tasks_conformance(make: MakeTasks) -> Sequence[ConformanceCheck]:
    """Return the checks of a tasks backend that ``make`` opens with the checks' own runner and executor (KIT-53).

    Each uses an owner of its own. They wait up to two seconds on the live clock (KIT-06).
    """
    return [each.on(make) for each in CHECKS]


__all__ = [
    "CHECKS",
    "MadeRunner",
    "MadeTasks",
    "MakeRunner",
    "MakeTasks",
    "task_runner_conformance",
    "tasks_conformance",
]
