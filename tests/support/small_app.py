"""A host's app with one agent, for producers that tests run; nothing here calls a model."""

from __future__ import annotations

from shared.agents import Agent, App, MemoryPolicy

app = App(
    [Agent(name="small", instructions="Answer."), Agent(name="other", instructions="Answer.", revision="2")],
    memory=MemoryPolicy(),
)
