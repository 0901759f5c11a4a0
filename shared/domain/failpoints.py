"""Named points between two durable steps where a test may kill, stop or fail the process.

A point does nothing unless a test armed it. Real worker processes read one variable, ``TURNKEEPER_FAILPOINTS``, and
only under ``TURNKEEPER_ENV=test`` (decision 42); in-process tests pass a :class:`Failpoints` as a part.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from shared.domain.errors import ConfigError

_log: Final = logging.getLogger(__name__)

#: Every point, in the order a turn, and then what it leaves to the background, meets them. A test checks that each is reached by some fault test.
POINTS: Final = (
    "turn.claimed",
    "inbox.read",
    "turn.opened",
    "turn.requested",
    "turn.response-stored",
    "turn.tool-started",
    "turn.tool-done",
    "turn.step-stored",
    "turn.run-stored",
    "turn.reply-ready",
    "turn.ended",
    "group.gathered",
    "group.committed",
    "history.ready",
    "history.committed",
    "task.owed",
    "task.told",
    "admission.committed",
    "task.unrung",
    "task.starting",
    "task.started",
    "task.delivering",
    "task.delivered",
    "delivery.committed",
    "activity.claimed",
    "activity.extracted",
    "activity.pinned",
    "activity.applied",
    "activity.advanced",
    "remember.claimed",
    "remember.extracted",
    "remember.proposed",
    "remember.merged",
    "remember.prepared",
    "remember.dispatched",
    "remember.settled",
    "index.claimed",
    "index.embedded",
    "index.reread",
    "index.replaced",
    "export.page-written",
    "import.page-added",
    "import.filled",
    "import.committed",
    "archive.range-moved",
    "prune.batch-done",
)

ACTIONS: Final = ("kill", "stop", "raise", "hold")
VARIABLE: Final = "TURNKEEPER_FAILPOINTS"
EVERY: Final = "every"
_COUNT: Final = re.compile(rf"[1-9][0-9]{{0,5}}|{EVERY}")


class FailpointError(Exception):
    """Raised by a point armed with ``raise``."""


Action = Callable[[], Awaitable[None]]


class Failpoints:
    """The armed points of a process. ``hit`` is called by product code; everything else is for tests."""

    def __init__(self, actions: Mapping[str, Action] | None = None) -> None:
        self._actions = dict(actions or {})
        for name in self._actions:
            _check_point(name)

    async def hit(self, name: str) -> None:
        """Run what a test armed under ``name``; free when nothing is armed."""
        if self._actions and (action := self._actions.get(name)) is not None:
            await action()

    @classmethod
    def parse(cls, text: str) -> Failpoints:
        """Build points from ``name=action[@n],…``; action is kill, stop, raise or hold.

        ``n`` is the hit that fires: the first by default, or ``every``.
        """
        actions: dict[str, Action] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, _, rest = part.partition("=")
            action, _, count = rest.partition("@")
            _check_point(name)
            if action not in ACTIONS or not _COUNT.fullmatch(count or "1"):
                raise ConfigError(
                    f"{VARIABLE}: {part!r} must be {name}=<{'|'.join(ACTIONS)}>, then perhaps @<hit from 1, or {EVERY}>",
                    field=VARIABLE,
                )
            actions[name] = _armed(name, action, None if count == EVERY else int(count or 1))
        return cls(actions)


def _check_point(name: str) -> None:
    if name not in POINTS:
        raise ConfigError(f"{VARIABLE}: unknown failpoint {name!r}", field=VARIABLE, known=list(POINTS))


def _armed(name: str, action: str, fire_at: int | None) -> Action:
    hits = 0

    async def run() -> None:
        nonlocal hits
        hits += 1
        if fire_at is not None and hits != fire_at:
            return
        match action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "hold":
                _log.warning("held at %s", name)
                await asyncio.Event().wait()
            case _:
                raise FailpointError(name)

    return run
