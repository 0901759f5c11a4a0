"""Agents, checked when they are built."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from shared.agents.application import open_application
from shared.agents.options import TurnOptions
from shared.agents.policy import Policy
from shared.agents.tools import Tool
from shared.agents.turn import TurnResult, Use
from shared.domain.bounds import check_identity, check_text
from shared.domain.errors import BudgetInvalid, ConfigError, InvalidInput
from shared.domain.ids import SessionId
from shared.turns.queue import OnWorkerLoss, TurnHistory

#: Names of the tools that ``task_tools`` gives an agent.
TASK_TOOL_NAMES: Final = ("start_task", "task_status")
AGENT_NAME = re.compile(r"[a-z0-9][a-z0-9._/-]{0,127}")
INSTRUCTIONS_MAX_BYTES = 262_144
#: What a request should stay under, in estimated tokens: no provider's limit (TRN-112, TRN-113).
BUDGET_TOKENS = 64_000


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent: what it is told, the model it asks, the tools it may call.

    ``revision`` names this definition: a turn admitted under a revision is run by workers that serve it (DST-26).
    ``model=None`` takes ``TURNKEEPER_MODEL``. ``on_worker_loss`` says what becomes of a turn whose worker died. ``use`` is
    the body of its turns; without one a body runs the step loop once and answers with what the model said.
    ``budget_tokens`` is how many tokens, estimated, a request's instructions, tools and messages should have together: of
    earlier turns as many of the newest are shown as fit at the turn's start; the turn itself is always shown whole.
    ``history`` is how workers keep its turns: ``per-step`` as they go, or ``whole-turn``, all in the closing commit and
    nothing but start and end of one that fails. Such a turn is never continued: its ``on_worker_loss`` is ``interrupt``.
    ``task_tools`` lets its model start background tasks and look after them (TSK-44).
    """

    name: str
    instructions: str
    model: str | None = None
    tools: Sequence[Tool] = ()
    policy: Policy = field(default_factory=Policy)
    revision: str = "1"
    on_worker_loss: OnWorkerLoss = "continue"
    use: Use | None = None
    budget_tokens: int = BUDGET_TOKENS
    history: TurnHistory = "per-step"
    task_tools: bool = False

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
        if self.history not in ("per-step", "whole-turn"):
            raise ConfigError("history must be per-step or whole-turn", field=f"agent.{self.name}.history")
        if self.history == "whole-turn":
            object.__setattr__(self, "on_worker_loss", "interrupt")
        if self.use is not None and not callable(self.use):
            raise ConfigError("use must be an async function of a Turn", field=f"agent.{self.name}.use")
        if not is_budget_tokens(self.budget_tokens):
            raise BudgetInvalid(
                "budget_tokens must be a whole number of at least 1", field=f"agent.{self.name}.budget_tokens"
            )
        object.__setattr__(self, "tools", tuple(self.tools))
        names = [*(t.name for t in self.tools), *(TASK_TOOL_NAMES if self.task_tools else ())]
        if len(set(names)) != len(names):
            raise ConfigError(
                f"agent {self.name} has two tools of one name", field=f"agent.{self.name}.tools"
            )

    async def run(
        self, message: str, *, session_id: SessionId | None = None, options: TurnOptions | None = None
    ) -> TurnResult:
        """Run one turn in the application that is open here, and return what it came to.

        Without ``session_id`` a new session begins; the result names it for the next turn. Raises ``ConfigError`` when no
        application is open, ``SessionHistoryError`` with a reason when the session cannot be had or cannot grow, and
        what the turn failed with. What was recorded until then stays.
        """
        return await open_application().run(
            self, message, session_id=session_id, options=options or TurnOptions()
        )

    def tool(self, name: str) -> Tool | None:
        """Return the tool of this name, if the agent has it."""
        return next((t for t in self.tools if t.name == name), None)


def is_budget_tokens(value: object) -> bool:
    """Say whether this can be a token budget: a whole number of at least 1 (TRN-114)."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
