"""What a process counts for each pool it serves or rings: shown by its metrics, and added to the system's totals (DST-17)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.database.totals import TotalName
from shared.leases.keeper import KeeperCounts
from shared.wakes.port import WakePublisher
from workers.parts import QueueServer


@dataclass(frozen=True, slots=True)
class ProcessCounts:
    """The parts that count, by pool. Read from the event loop and from a scrape's thread."""

    wakes: WakePublisher
    pumps: Mapping[str, QueueServer]
    keepers: Mapping[str, KeeperCounts] = field(default_factory=dict)
    repaired: Mapping[str, int] = field(default_factory=dict)

    def read(self) -> dict[tuple[str, TotalName], int]:
        """Return the counts of this process since its start."""
        counts: dict[tuple[str, TotalName], int] = {}
        for pool, pump in self.pumps.items():
            info = pump.info()
            for name in ("claims", "claimed", "lost_claims"):
                counts[pool, name] = info.get(name, 0)
        for pool, keeper in self.keepers.items():
            counts[pool, "renewals_refused"] = keeper.refused
        for queue, published in self.wakes.stats().published_by_queue.items():
            counts[queue, "wakes_published"] = published
        for queue, rung in list(self.repaired.items()):
            counts[queue, "wakes_repaired"] = rung
        return counts
