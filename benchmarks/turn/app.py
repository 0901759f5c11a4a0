"""The host's app of the benchmark, loaded by name: one agent whose model is in the process, one whose model is over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cached_property
from typing import Final

from shared.agents import Agent, App
from shared.models.openai_chat import OpenAIChatModel
from shared.models.types import Finished, ModelEvent, ModelRequest, ModelResponse, TextDelta, Usage
from shared.settings import load_settings

IN_PROCESS: Final = "in-process"
OVER_HTTP: Final = "over-http"
#: As in-process, with a revision of its own: its turns wait until a worker comes that serves it.
DRAINED: Final = "drained"

SCRIPTED_MODEL: Final = "scripted"
HTTP_MODEL: Final = "offline"
PIECES: Final = (
    "Noted: ",
    "the answer ",
    "to this ",
    "question is ",
    "a sentence ",
    "of a few ",
    "plain words.",
)
REPLY: Final = "".join(PIECES)
INSTRUCTIONS: Final = "Answer in one sentence."


class EitherModel:
    """Answers at once in this process, or over HTTP through the endpoint of the settings, as the request's model says."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Return the stream of one call; the port's contract holds."""
        if request.model != SCRIPTED_MODEL:
            async with aclosing(self._endpoint.stream(request)) as events:
                async for event in events:
                    yield event
            return
        for piece in PIECES:
            yield TextDelta(piece)
        yield Finished(ModelResponse(REPLY, usage=Usage(40, 16), model=SCRIPTED_MODEL))

    @cached_property
    def _endpoint(self) -> OpenAIChatModel:
        settings = load_settings()
        return OpenAIChatModel(base_url=settings.openai_base_url, api_key=settings.openai_api_key)


def _agent(name: str, model: str) -> Agent:
    return Agent(name=name, instructions=INSTRUCTIONS, model=model, revision=name)


app: Final = App(
    agents=[
        _agent(IN_PROCESS, SCRIPTED_MODEL),
        _agent(OVER_HTTP, HTTP_MODEL),
        _agent(DRAINED, SCRIPTED_MODEL),
    ],
    model=EitherModel(),
)
