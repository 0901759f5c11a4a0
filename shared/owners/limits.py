"""What one owner may: caps, quotas and rates of its own, and the port of where they are kept (API-17, DST-14, DST-16)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol, Self

from shared.domain.errors import InvalidInput
from shared.domain.ids import OwnerId

LIST_MAX_OWNERS: Final = 1_000
COUNT_MAX: Final = 1_000_000
WRITES_PER_S_MIN: Final = 0.001
WRITES_PER_S_MAX: Final = 100_000.0
BODY_MIN_BYTES: Final = 1_024
BODY_MAX_BYTES: Final = 64 * 1024 * 1024

#: The bounds of each limit, lowest and highest.
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "running_max": (1, COUNT_MAX),
    "queued_max": (1, COUNT_MAX),
    "writes_per_s": (WRITES_PER_S_MIN, WRITES_PER_S_MAX),
    "writes_burst": (1, COUNT_MAX),
    "body_max_bytes": (BODY_MIN_BYTES, BODY_MAX_BYTES),
}


@dataclass(frozen=True, slots=True)
class OwnerLimits:
    """An owner's own limits; None: the setting that holds for everyone.

    ``running_max`` turns run at once, ``queued_max`` wait; ``writes_per_s`` and ``writes_burst`` are what a producer
    takes of the owner; ``body_max_bytes`` bounds a request body below the route's own bound, never above it.
    """

    running_max: int | None = None
    queued_max: int | None = None
    writes_per_s: float | None = None
    writes_burst: int | None = None
    body_max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                bound = f"{low:,g}..{high:,g}".replace(",", "_")
                raise InvalidInput(f"{name} must be {bound}", field=name, bound=bound)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Return what a stored row says. A value out of bounds, written past us, counts as the nearest bound."""
        return cls(**{f.name: _within(row[f.name], *BOUNDS[f.name]) for f in fields(cls)})


def _within(value: Any, low: float, high: float) -> Any:
    return None if value is None else type(value)(min(max(value, low), high))


class Owners(Protocol):
    """Keeps the limits of owners. All may raise ``StoreBusy`` and ``StoreUnavailable``."""

    async def limits(self, owner: OwnerId) -> OwnerLimits:
        """Return an owner's own limits; none of its own for an owner that was never seen."""
        ...

    async def set_limits(self, owner: OwnerId, change: OwnerLimits) -> OwnerLimits:
        """Set the limits that ``change`` names, keep the others, and return all; the owner's row is made if need be."""
        ...

    async def reset_limits(self, owner: OwnerId) -> bool:
        """Take all limits of its own from an owner; False when it has no row."""
        ...

    async def list(
        self, *, limit: int = LIST_MAX_OWNERS, after: OwnerId | None = None
    ) -> Sequence[tuple[OwnerId, OwnerLimits]]:
        """Read owners with limits of their own, by id, in pages."""
        ...
