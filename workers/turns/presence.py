"""A worker process's own row: that it is there, what it serves and how much it holds (core 7)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from shared.domain.errors import Unavailable
from shared.domain.ids import WorkerId
from shared.turns.queue import TurnQueue, WorkerSeen
from shared.version import VERSION
from workers.health.loop_load import LoopLoad

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Presence:
    """Writes the row every few seconds, also when idle: silence for one lease says that the process is gone."""

    queue: TurnQueue
    worker: WorkerId
    queues: Sequence[str]
    revisions: Sequence[str]
    capacity: int
    held: Callable[[], int]
    draining: Callable[[], bool]
    load: LoopLoad
    every_s: float

    async def write(self) -> None:
        """Write the row once."""
        await self.queue.seen(
            WorkerSeen(
                worker=self.worker,
                host=socket.gethostname(),
                pid=os.getpid(),
                queues=self.queues,
                revisions=self.revisions,
                capacity=self.capacity,
                held=self.held(),
                version=VERSION,
                draining=self.draining(),
                lag_s=self.load.lag_s,
                overloaded=self.load.is_overloaded,
            )
        )

    async def write_for_ever(self) -> None:
        """Write the row on its beat; a database that is away is met again on the next."""
        while True:
            await asyncio.sleep(self.every_s)
            try:
                await self.write()
            except Unavailable as error:
                _log.warning("presence could not be written: %s", error, extra={"code": error.code})

    async def leave(self) -> None:
        """Remove the row of a process that stops in order; a row left behind falls silent and is swept."""
        try:
            await self.queue.gone(self.worker)
        except Unavailable as error:
            _log.info("presence could not be removed: %s", error)
