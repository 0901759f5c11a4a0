"""One look before a block and one after it: everything that is counted, of servers and processes, and what lies between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.harness.broker import RedisCounts
from benchmarks.harness.processes import Usage, cpu_between, own_usage, usage_of
from benchmarks.harness.site import POSTGRES
from benchmarks.harness.stores import PostgresCounts, Writes
from benchmarks.harness.units import Units, read_units

#: What the load and the counting use, among the processes.
LOAD: Final = "load"


@dataclass(slots=True)
class Spent:
    """What was spent, over one block or several: sums but for memory, which is the most that was seen, in MiB."""

    transactions: int = 0
    wal_bytes: int = 0
    commands: Counter[str] = field(default_factory=Counter)
    store: dict[str, Counter[str]] = field(default_factory=dict)
    messages: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    rss_mib: dict[str, float] = field(default_factory=dict)

    def add(self, other: Spent) -> None:
        """Take another block's spending in."""
        self.transactions += other.transactions
        self.wal_bytes += other.wal_bytes
        self.commands += other.commands
        self.messages += other.messages
        for figure, units in other.store.items():
            self.store[figure] = self.store.get(figure, Counter()) + units
        for name, seconds in other.cpu_s.items():
            self.cpu_s[name] = self.cpu_s.get(name, 0.0) + seconds
        for name, size in other.rss_mib.items():
            self.rss_mib[name] = max(size, self.rss_mib.get(name, 0.0))

    @property
    def cpu_ms(self) -> dict[str, float]:
        """The CPU time of each process in milliseconds."""
        return {name: seconds * 1e3 for name, seconds in self.cpu_s.items()}

    def total(self, figure: str) -> float:
        """Return a figure of the product's database work (``statements``, ``round_trips``, ``commits``) over all units."""
        return sum(self.store.get(figure, Counter()).values())


@dataclass(frozen=True, slots=True)
class Look:
    """Totals at one moment."""

    writes: Writes
    commands: Counter[str]
    units: Units
    usage: Mapping[str, Usage]


@dataclass(frozen=True, slots=True)
class Watch:
    """Looks at a site's servers and at the product's processes. ``pids`` names who is watched, ``ports`` whose metrics are read."""

    postgres: PostgresCounts
    redis: RedisCounts
    pids: Callable[[], Mapping[str, int]]
    ports: Callable[[], Iterable[int]]

    async def look(self) -> Look:
        """Take a look; the load stands still meanwhile."""
        return await asyncio.to_thread(self._look)

    async def since(self, before: Look) -> Spent:
        """Return what was spent since an earlier look."""
        after = await self.look()
        writes = after.writes.since(before.writes)
        units = after.units.since(before.units)
        return Spent(
            transactions=writes.transactions,
            wal_bytes=writes.wal_bytes,
            commands=after.commands - before.commands,
            store=units.store,
            messages=units.messages,
            cpu_s=cpu_between(before.usage, after.usage),
            # PostgreSQL's processes share most of what each of them holds: a sum would say nothing.
            rss_mib={name: usage.rss_mib for name, usage in after.usage.items() if name != POSTGRES},
        )

    def _look(self) -> Look:
        usage = usage_of(self.pids()) | {LOAD: own_usage()}
        return Look(self.postgres.writes(), self.redis.commands(), read_units(self.ports()), usage)
