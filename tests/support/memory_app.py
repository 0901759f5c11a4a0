"""The host app of the memory fault tests: one plain agent that remembers."""

from __future__ import annotations

from shared.agents import Agent, App, MemoryPolicy

app = App(
    agents=[Agent(name="rememberer", instructions="Answer from what you recall.")], memory=MemoryPolicy()
)
