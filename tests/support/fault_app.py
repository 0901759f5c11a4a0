"""The host app of the fault tests: tools whose effects are counted outside the system, by idempotency token."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from shared.agents import Agent, App, Policy, ToolContext, Turn, TurnOutcome, tool

#: One file a call, appended with O_APPEND: the kernel keeps lines whole, whoever is killed.
EFFECTS = Path(os.path.expandvars("$TURNKEEPER_HOME")) / "effects.log"


def _note(context: ToolContext, what: str) -> None:
    line = f"{what} {context.turn_id} {context.idempotency_token}\n".encode()
    descriptor = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


@tool
async def pay(amount: int, context: ToolContext) -> str:
    """Pay an amount. Has an outside effect that must not be doubled."""
    _note(context, "pay")
    return f"paid {amount}"


@tool(repeatable=True)
async def look(context: ToolContext, subject: str = "weather") -> str:
    """Look something up. Safe to repeat."""
    _note(context, "look")
    return f"{subject}: fine"


@tool(repeatable=True)
def dawdle(seconds: float, context: ToolContext) -> str:
    """Block a thread for some seconds: a tool that outlasts its worker's lease."""
    _note(context, "dawdle")
    time.sleep(seconds)  # the tool under test is one that blocks
    return "done"


async def run_twice(turn: Turn) -> TurnOutcome:
    """Run the step loop for the user's message, and again for a word of the host's."""
    first = await turn.run()
    await turn.context("Say goodbye.")
    second = await turn.run()
    return TurnOutcome("completed", f"{first.text} / {second.text}")


@tool(repeatable=True)
def stick(context: ToolContext) -> str:
    """Never return."""
    time.sleep(3_600)
    return "never"


@tool(repeatable=True)
async def linger(seconds: float, context: ToolContext) -> str:
    """Take some seconds, and note when it began and when it ended or was cut off."""
    _note(context, f"linger-begun@{time.monotonic()}")
    try:
        await asyncio.sleep(seconds)
    finally:
        _note(context, f"linger-over@{time.monotonic()}")
    return "done"


app = App(
    agents=[
        Agent(
            name="tester",
            instructions="You are under test.",
            tools=[pay, look, dawdle, linger],
            policy=Policy(max_steps=4, max_duration_s=120),
        ),
        Agent(
            name="hasty",
            instructions="You are under test.",
            tools=[stick],
            policy=Policy(max_duration_s=2),
        ),
        Agent(
            name="whole",
            instructions="You are under test.",
            tools=[pay],
            history="whole-turn",
        ),
        Agent(
            name="interrupted",
            instructions="You are under test.",
            tools=[pay],
            on_worker_loss="interrupt",
        ),
        Agent(name="delegating", instructions="You are under test.", task_tools=True),
        Agent(name="twice", instructions="You are under test.", tools=[pay], use=run_twice),
    ]
)
