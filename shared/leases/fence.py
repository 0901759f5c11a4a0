"""The fence: what a holder shows with every write."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Fence:
    """An acquisition's epoch and token; a write is refused when they are no longer the row's (law 3)."""

    epoch: int
    token: UUID
