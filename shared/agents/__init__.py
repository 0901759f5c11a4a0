"""What a host writes: an :class:`App` of :class:`Agent`\\ s with typed tools, and bodies of their turns.

A host's module holds one ``app``; ``TURNKEEPER_APP=my_module:app`` names it for producer and workers alike.
"""

from shared.agents.app import App, load_app
from shared.agents.application import (
    OpenApplication,
    application_opened,
    open_application,
    to_turn_session_options,
)
from shared.agents.definition import Agent
from shared.agents.input import TurnCommand, TurnCommands, TurnInputHook, to_turn_input_hook
from shared.agents.memory import MemoryPolicy
from shared.agents.options import TurnOptions
from shared.agents.policy import Policy
from shared.agents.tasks import TurnTasks
from shared.agents.tools import Tool, ToolContext, tool
from shared.agents.turn import RunResult, Turn, TurnResult, Use
from shared.host.endings import TurnOutcome

__all__ = [
    "Agent",
    "App",
    "MemoryPolicy",
    "OpenApplication",
    "Policy",
    "RunResult",
    "Tool",
    "ToolContext",
    "Turn",
    "TurnCommand",
    "TurnCommands",
    "TurnInputHook",
    "TurnOptions",
    "TurnOutcome",
    "TurnResult",
    "TurnTasks",
    "Use",
    "application_opened",
    "load_app",
    "open_application",
    "to_turn_input_hook",
    "to_turn_session_options",
    "tool",
]
