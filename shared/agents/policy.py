"""Bounds of a turn and of a run of the step loop, checked when they are built."""

from __future__ import annotations

from dataclasses import dataclass

from shared.domain.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds of one turn (decision 30).

    ``max_steps`` and ``max_tool_calls`` count within one run of the step loop. ``max_duration_s`` is the turn's, by the
    database's clock, over all attempts; in a policy that a body gives to one run it bounds that run, by the worker's clock.
    """

    max_steps: int = 32
    max_tool_calls: int = 64
    max_duration_s: float = 600.0
    tool_concurrency: int = 4

    def __post_init__(self) -> None:
        for name, kind, low, high in (
            ("max_steps", int, 1, 1_000),
            ("max_tool_calls", int, 0, 10_000),
            ("max_duration_s", int | float, 0.1, 86_400),
            ("tool_concurrency", int, 1, 64),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
                what = "a whole number of" if kind is int else "seconds,"
                raise ConfigError(f"policy {name} must be {what} {low}..{high}", field=f"policy.{name}")
