"""What a host writes: an :class:`App` of :class:`Agent`\\ s with typed tools.

A host's module holds one ``app``; ``TURNKEEPER_APP=my_module:app`` names it for producer and workers alike.
"""

from shared.agents.app import App, load_app
from shared.agents.definition import Agent, Policy
from shared.agents.memory import MemoryPolicy
from shared.agents.tools import Tool, ToolContext, tool

__all__ = ["Agent", "App", "MemoryPolicy", "Policy", "Tool", "ToolContext", "load_app", "tool"]
