"""The host's app of the benchmark: one agent that only answers, told by name to worker processes."""

from __future__ import annotations

from typing import Final

from shared.agents import Agent, App

app: Final = App(agents=[Agent(name="teller", instructions="Tell.")])
