"""Tools and answers for scripted turns: calls by name, a tool that answers at once, one that waits to be let go."""

from __future__ import annotations

import asyncio
from typing import Any

from shared.agents import Tool, ToolContext, tool
from shared.models.scripted import ScriptedReply
from shared.models.types import ToolCall, Usage


def calls(*names: str, usage: Usage | None = None, text: str = "") -> ScriptedReply:
    """Return an answer that calls these tools, without arguments."""
    asked = tuple(ToolCall(f"c{n}", name, "{}") for n, name in enumerate(names))
    return ScriptedReply(text=text, calls=asked, usage=usage or Usage())


class Bench:
    """A tool whose calls wait to be let go, one by one."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.begun: list[str] = []
        self.tokens: list[str] = []
        self.cancelled: list[str] = []
        self.most = 0
        self._gates: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Condition()
        self.tool: Tool = tool(name="work", description="Work.")(self._work)

    async def _work(self, context: ToolContext) -> str:
        name = context.invocation_id.rpartition(":")[2]
        async with self._changed:
            self.begun.append(name)
            self.tokens.append(context.idempotency_token)
            self.running.append(name)
            self.most = max(self.most, len(self.running))
            self._changed.notify_all()
        try:
            await self._gates.setdefault(name, asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            self.running.remove(name)
        return f"done {name}"

    async def has_begun(self, count: int) -> None:
        """Wait until this many calls began."""
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(lambda: len(self.begun) >= count)

    def let_go(self, *names: str) -> None:
        """Let calls answer, named by their ordinal."""
        for name in names:
            self._gates.setdefault(name, asyncio.Event()).set()


def quick(name: str = "quick", **options: Any) -> Tool:
    """Return a tool that answers at once."""

    async def act() -> str:
        return "done"

    return tool(name=name, description="Act.", **options)(act)
