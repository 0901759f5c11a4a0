"""How long a task's work may take: an absolute deadline, and the cutoff before it that leaves time to close (TSK-28 to 30). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from shared.domain.errors import ConfigError

#: What is kept of a budget for storing the result, delivering it and closing the parent's turn; at most half of it.
CLOSING_RESERVE_MS: Final = 2_000
CLOSING_RESERVE_MAX_MS: Final = 600_000
BUDGET_MAX_S: Final = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """Until when work may go on, by the event loop's clock: infinite where nothing bounds it.

    Past ``cutoff`` nothing is executed any more; past ``at`` nothing is done at all.
    """

    at: float = math.inf
    cutoff: float = math.inf

    @property
    def is_finite(self) -> bool:
        """Whether there is an end at all."""
        return self.at != math.inf

    def is_cut(self, now: float) -> bool:
        """Say whether execution has to have stopped."""
        return now >= self.cutoff

    def is_past(self, now: float) -> bool:
        """Say whether the deadline itself has come."""
        return now >= self.at

    def earlier(self, other: Deadline) -> Deadline:
        """Return what keeps both: the earlier end and the earlier cutoff."""
        return Deadline(min(self.at, other.at), min(self.cutoff, other.cutoff))


UNBOUNDED: Final = Deadline()


def closing_reserve_s(budget_s: float, closing_reserve_ms: int = CLOSING_RESERVE_MS) -> float:
    """Return how much of a budget is kept for closing, in seconds: the reserve, at most half of the budget."""
    return min(closing_reserve_ms / 1_000, max(0.0, budget_s) / 2)


def deadline_after(
    budget_s: float | None, *, now: float, closing_reserve_ms: int = CLOSING_RESERVE_MS
) -> Deadline:
    """Return the deadline of a budget that begins ``now``; None is no budget."""
    if budget_s is None:
        return UNBOUNDED
    at = now + max(0.0, budget_s)
    return Deadline(at, at - closing_reserve_s(budget_s, closing_reserve_ms))


def check_budget(budget_s: float | None, closing_reserve_ms: int) -> None:
    """Raise ``ConfigError`` naming the field for a budget or a reserve out of bounds."""
    if budget_s is not None and not (_is_number(budget_s) and 0 < budget_s <= BUDGET_MAX_S):
        raise ConfigError(
            "a runner's budget is more than 0 seconds, and not too many",
            field="budget_s",
            bound=f"> 0, <= {BUDGET_MAX_S:g}",
        )
    whole = isinstance(closing_reserve_ms, int) and not isinstance(closing_reserve_ms, bool)
    if not whole or not 0 <= closing_reserve_ms <= CLOSING_RESERVE_MAX_MS:
        raise ConfigError(
            "a closing reserve is a whole number of milliseconds",
            field="closing_reserve_ms",
            bound=f"0..{CLOSING_RESERVE_MAX_MS}",
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
