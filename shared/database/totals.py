"""What each pool has done since the system began, over all processes: figures for an operator, never for a decision (DST-17)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal, get_args

from shared.database.pool import Database
from shared.database.statements import load_statements
from shared.domain.errors import Unavailable

_log: Final = logging.getLogger(__name__)
_SQL = load_statements(Path(__file__).with_name("queries.sql"))

TotalName = Literal[
    "claims", "claimed", "lost_claims", "renewals_refused", "wakes_published", "wakes_repaired"
]
TOTAL_NAMES: Final[tuple[TotalName, ...]] = get_args(TotalName)
#: Counts of one process since its start, by pool and name; none ever falls.
Counts = Mapping[tuple[str, TotalName], int]


class PoolTotals:
    """Adds what one process counted to the totals, a difference at a time. Belongs to one event loop.

    ``read`` returns the process's counts. A difference whose storing is unknown is sent again: a total may then count it
    twice, and lacks what a killed process had not sent.
    """

    def __init__(self, database: Database, read: Callable[[], Counts], *, every_s: float) -> None:
        self._db = database
        self._read = read
        self._every_s = every_s
        self._sent: dict[tuple[str, TotalName], int] = {}

    async def write(self) -> None:
        """Add what was counted since the last time. Raises ``StoreBusy`` and ``StoreUnavailable``."""
        counts = dict(self._read())
        new = {key: n - self._sent.get(key, 0) for key, n in counts.items() if n != self._sent.get(key, 0)}
        if not new:
            return
        params = {
            "pools": [pool for pool, _ in new],
            "names": [name for _, name in new],
            "counts": list(new.values()),
        }
        await self._db.call("totals.add", _SQL["add_totals"], params)
        self._sent = counts

    async def write_for_ever(self) -> None:
        """Add on a beat; a database that is away is met again on the next."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.write_if_possible()

    async def write_if_possible(self) -> None:
        """Add once; what could not be stored waits for the next time."""
        try:
            await self.write()
        except Unavailable as error:
            _log.info("totals could not be written: %s", error, extra={"code": error.code})


async def read_totals(database: Database) -> dict[str, dict[str, int]]:
    """Return the totals by pool and name."""
    totals: dict[str, dict[str, int]] = {}
    for row in await database.read("totals.read", _SQL["totals"], {}):
        totals.setdefault(row["pool"], {})[row["name"]] = row["total"]
    return totals
