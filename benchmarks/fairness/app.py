"""The host's app of the benchmark, loaded by name: agents that tell the owners' turns apart, whose model answers at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from shared.agents import Agent, App
from shared.models.types import Finished, ModelEvent, ModelRequest, ModelResponse, TextDelta, Usage

#: The owner with many turns; the one with few, queued beside them; the one who comes while they are worked off.
MANY: Final = "many"
FEW: Final = "few"
GUEST: Final = "guest"
REPLY: Final = "Noted."


class InstantModel:
    """Answers at once, in this process."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Return the stream of one call; the port's contract holds."""
        yield TextDelta(REPLY)
        yield Finished(ModelResponse(REPLY, usage=Usage(40, 16), model="instant"))


app: Final = App(
    agents=[Agent(name=name, instructions="Answer in one sentence.") for name in (MANY, FEW, GUEST)],
    model=InstantModel(),
)
