"""A program that runs one whole turn over Postgres, for tests that end it between two steps: URL, session, text."""

from __future__ import annotations

import asyncio
import sys

from shared.agents import Agent, tool
from shared.domain.ids import SessionId
from shared.models.scripted import ScriptedModel
from shared.models.types import ToolCall
from workers.in_process import persistent_sessions


@tool()
async def look() -> str:
    """Look."""
    return "found"


async def run(url: str, session: SessionId, text: str) -> None:
    """Run the turn and print its reply."""
    model = ScriptedModel([ToolCall("c", "look", "{}"), f"heard {text}"])
    async with persistent_sessions(url, model=model, model_name="m"):
        result = await Agent("a", "Be brief.", tools=[look]).run(text, session_id=session)
    print(result.reply)  # noqa: T201  # what the test reads


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], SessionId(sys.argv[2]), sys.argv[3]))
