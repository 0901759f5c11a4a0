"""The host's app of the benchmark, loaded by name: one agent with the default budget, asked over HTTP."""

from __future__ import annotations

from typing import Final

from benchmarks.seeding.history import INSTRUCTIONS
from shared.agents import Agent, App

app: Final = App(agents=[Agent(name="resumed", instructions=INSTRUCTIONS)])
