"""Agents and their policies, checked when they are built."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.agents.tools import Tool
from shared.domain.bounds import check_identity, check_text
from shared.domain.errors import ConfigError, InvalidInput
from shared.turns.queue import OnWorkerLoss

AGENT_NAME = re.compile(r"[a-z0-9][a-z0-9._/-]{0,127}")
INSTRUCTIONS_MAX_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds of one turn (decision 30). Durations are seconds, by the database's clock, over all attempts."""

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


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent: what it is told, the model it asks, the tools it may call.

    ``revision`` names this definition: a turn admitted under a revision is run by workers that serve it (DST-26).
    ``model=None`` takes ``TURNKEEPER_MODEL``. ``on_worker_loss`` says what becomes of a turn whose worker died.
    """

    name: str
    instructions: str
    model: str | None = None
    tools: Sequence[Tool] = ()
    policy: Policy = field(default_factory=Policy)
    revision: str = "1"
    on_worker_loss: OnWorkerLoss = "continue"

    def __post_init__(self) -> None:
        if not AGENT_NAME.fullmatch(self.name):
            raise ConfigError(f"agent name {self.name!r} must match {AGENT_NAME.pattern}", field="agent.name")
        try:
            where = f"agent.{self.name}.instructions"
            check_text(self.instructions, field=where, max_bytes=INSTRUCTIONS_MAX_BYTES)
            check_identity(self.revision, field=f"agent.{self.name}.revision")
        except InvalidInput as error:
            raise ConfigError(error.message, field=error.field) from error
        if self.on_worker_loss not in ("continue", "interrupt"):
            raise ConfigError(
                "on_worker_loss must be continue or interrupt", field=f"agent.{self.name}.on_worker_loss"
            )
        object.__setattr__(self, "tools", tuple(self.tools))
        names = [t.name for t in self.tools]
        if len(set(names)) != len(names):
            raise ConfigError(
                f"agent {self.name} has two tools of one name", field=f"agent.{self.name}.tools"
            )

    def tool(self, name: str) -> Tool | None:
        """Return the tool of this name, if the agent has it."""
        return next((t for t in self.tools if t.name == name), None)
