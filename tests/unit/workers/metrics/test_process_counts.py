"""What a process counts for each pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from shared.leases.keeper import KeeperCounts
from shared.wakes.inproc import InprocWakes
from workers.metrics.totals import ProcessCounts
from workers.sweeps import CountingBell


@dataclass(frozen=True)
class Serving:
    """A queue's server with given figures."""

    figures: Mapping[str, Any]

    def info(self) -> Mapping[str, Any]:
        return {"held": 0, "capacity": 1, "ids": [], **self.figures}

    def offer(self, ids: object) -> None: ...

    async def serve(self) -> None: ...

    async def drain(self, timeout_s: float) -> None: ...

    def stop_now(self) -> None: ...


@pytest.mark.behaviour("DST-17")
def test_claims_refusals_and_wakes_are_counted_by_pool() -> None:
    wakes = InprocWakes()
    sweeps = CountingBell(wakes)
    counts = ProcessCounts(
        wakes,
        {"turns": Serving({"claims": 4, "claimed": 3, "lost_claims": 2}), "upkeep": Serving({})},
        {"turns": KeeperCounts(renewed=9, refused=1)},
        sweeps.rung,
    )
    wakes.ring("index")
    sweeps.ring("turns")
    assert counts.read() == {
        ("turns", "claims"): 4,
        ("turns", "claimed"): 3,
        ("turns", "lost_claims"): 2,
        ("turns", "renewals_refused"): 1,
        ("turns", "wakes_published"): 1,
        ("turns", "wakes_repaired"): 1,
        ("index", "wakes_published"): 1,
        ("upkeep", "claims"): 0,
        ("upkeep", "claimed"): 0,
        ("upkeep", "lost_claims"): 0,
    }
