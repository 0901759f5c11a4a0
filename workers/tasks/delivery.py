"""Telling a parent what its task came to, right after the task's turn ended; whoever dies here, the sweep tells it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from shared.domain.errors import TurnkeeperError
from shared.domain.failpoints import Failpoints
from shared.domain.ids import TurnId
from shared.feed.port import ChangeHints
from shared.host.port import SessionAddress
from shared.host.tasks.delivering import deliver_owed
from shared.tasks.port import TaskStore
from shared.turns.queue import Claim
from workers.tasks.results import is_task

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultDelivery:
    """Delivers the results of the turns that a process ended, and rings for the parents' turns."""

    store: TaskStore
    hints: ChangeHints
    failpoints: Failpoints
    ring: Callable[[Sequence[TurnId]], None]

    async def after_end(self, claim: Claim) -> None:
        """Deliver what this turn owes, if it is a task's. Raises nothing of the store: what stays owed the sweep delivers."""
        if not is_task(claim) or claim.parent is None:
            return
        await self.failpoints.hit("task.owed")
        parent = SessionAddress(claim.parent, claim.owner)
        try:
            delivered = await deliver_owed(self.store, parent, only=claim.session_id)
        except TurnkeeperError as error:
            about = {"task": claim.session_id, "parent": claim.parent, "code": error.code}
            _log.warning("a task's result waits for the sweep: %s", error, extra=about)
            return
        await self.failpoints.hit("task.told")
        if delivered:
            self.hints.publish_change(claim.parent)
            self.ring([one.turn_id for one in delivered if one.turn_id is not None])
