"""The host's app of the benchmark: one tool that only reads, told by name to worker processes."""

from __future__ import annotations

from typing import Final

from shared.agents import Agent, App, tool

#: What a look gives back: 256 bytes.
FOUND: Final = "0123456789abcdef" * 16
INSTRUCTIONS: Final = "Look as often as you are told, then say what you saw."


@tool(repeatable=True)
async def look() -> str:
    """Look."""
    return FOUND


app: Final = App(agents=[Agent(name="looker", instructions=INSTRUCTIONS, tools=[look])])
