"""The bound over all owners: how many turns wait in all, counted once a second and beside the admissions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from shared.domain.errors import TurnkeeperError

COUNT_EVERY_S: Final = 1.0

_log: Final = logging.getLogger(__name__)


class WaitingTotal:
    """Knows whether the waiting turns of all owners reached ``bound``, as of the last count.

    An admission is judged by that without a look of its own: a burst may pass the bound by what is admitted within the
    second. While nobody can count, the last answer stands.
    """

    def __init__(
        self, count: Callable[[int], Awaitable[int]], *, bound: int, every_s: float = COUNT_EVERY_S
    ) -> None:
        self._count = count
        self._bound = bound
        self._every_s = every_s
        self.waiting = 0

    @property
    def is_full(self) -> bool:
        """Whether the last count found the bound reached."""
        return self.waiting >= self._bound

    async def count(self) -> None:
        """Count now; never further than the bound."""
        self.waiting = await self._count(self._bound)

    async def count_for_ever(self) -> None:
        """Count each ``every_s`` seconds; a store that cannot be reached is asked again."""
        while True:
            try:
                await self.count()
            except TurnkeeperError as error:
                _log.warning("waiting turns were not counted", extra={"code": error.code})
            await asyncio.sleep(self._every_s)
