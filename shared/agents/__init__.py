"""What a host writes: an :class:`App` of :class:`Agent`\\ s with typed tools, and bodies of their turns.

A host's module holds one ``app``; ``TURNKEEPER_APP=my_module:app`` names it for producer and workers alike.
"""

from shared.agents.app import App, load_app
from shared.agents.definition import Agent
from shared.agents.memory import MemoryPolicy
from shared.agents.policy import Policy
from shared.agents.tasks import TurnTasks
from shared.agents.tools import Tool, ToolContext, tool
from shared.agents.turn import RunResult, Turn, TurnResult, Use
from shared.host.endings import TurnOutcome

__all__ = [
    "Agent",
    "App",
    "MemoryPolicy",
    "Policy",
    "RunResult",
    "Tool",
    "ToolContext",
    "Turn",
    "TurnOutcome",
    "TurnResult",
    "TurnTasks",
    "Use",
    "load_app",
    "tool",
]
