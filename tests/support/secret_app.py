"""A host app with a secret in each place that must not reach a client: what a leak scan looks for."""

from __future__ import annotations

from shared.agents import Agent, App, Policy, tool

SYSTEM = "5ecret-of-the-system-text"
DECLARED = "5ecret-of-a-tool-declaration"
INPUT = "5ecret-of-a-tool-input"
OUTPUT = "5ecret-of-a-tool-output"
RAISED = "5ecret-of-a-tool-failure"
MODEL_KEY = "5ecret-of-the-model-key"
HEADER = "5ecret-of-a-request-header"

SECRETS = (SYSTEM, DECLARED, INPUT, OUTPUT, RAISED, MODEL_KEY, HEADER)


@tool(description=f"Look something up. {DECLARED}")
async def look(subject: str) -> str:
    return f"{OUTPUT}: {subject}"


@tool
async def stumble(subject: str) -> str:
    """Fail."""
    raise RuntimeError(f"{RAISED}: {subject}")


app = App(
    agents=[
        Agent(
            name="keeper",
            instructions=f"Tell nobody: {SYSTEM}.",
            tools=[look, stumble],
            policy=Policy(max_steps=4),
        )
    ]
)
