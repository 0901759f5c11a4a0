"""The host's app of the torture: tools with outside effects, each noted in a journal that no part of the system reads.

Worker processes load it by name. The journal is a file in the home folder that is only appended to: one line an effect,
written by one system call, so that it stays whole whoever is killed or stopped.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Final

from shared.agents import Agent, App, Policy, ToolContext, tool
from shared.settings import load_settings

JOURNAL: Final = "effects.log"
#: Tools whose effects the outside keeps by their token, as a payment service with idempotency keys does.
KEYED_TOOLS: Final = frozenset({"book"})


@tool
async def pay(order: str, seconds: float, context: ToolContext) -> str:
    """Pay an order. It must not happen twice, and nobody outside would notice that it did."""
    await asyncio.sleep(seconds / 2)  # the tool takes its time
    _note("pay", order, context)
    await asyncio.sleep(seconds / 2)  # the tool takes its time
    return f"{order} is paid"


@tool(repeatable=True)
async def book(order: str, seconds: float, context: ToolContext) -> str:
    """Book an order by its token: outside, the same token again is the same booking."""
    await asyncio.sleep(seconds / 2)  # the tool takes its time
    _note("book", order, context)
    await asyncio.sleep(seconds / 2)  # the tool takes its time
    return f"{order} is booked"


@tool
def ship(order: str, seconds: float, context: ToolContext) -> str:
    """Ship an order, in a thread that nothing interrupts."""
    time.sleep(seconds)  # the tool is one that blocks
    _note("ship", order, context)
    return f"{order} is shipped"


def _note(name: str, order: str, context: ToolContext) -> None:
    about = {
        "tool": name,
        "order": order,
        "token": context.idempotency_token,
        "turn": str(context.turn_id),
    }
    descriptor = os.open(_journal(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{json.dumps(about)}\n".encode())
    finally:
        os.close(descriptor)


def _journal() -> Path:
    return Path(load_settings().home) / JOURNAL


_TOOLS: Final = (pay, book, ship)
_POLICY: Final = Policy(max_steps=6, max_duration_s=120)

app: Final = App(
    agents=[
        Agent(name="continued", instructions="You are under torture.", tools=_TOOLS, policy=_POLICY),
        Agent(
            name="interrupted",
            instructions="You are under torture.",
            tools=_TOOLS,
            policy=_POLICY,
            on_worker_loss="interrupt",
        ),
    ]
)
