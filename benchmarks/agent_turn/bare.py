"""The same requests and the same tool through the same client, without anything durable: what a step costs by itself."""

from __future__ import annotations

from contextlib import aclosing

from benchmarks.agent_turn.app import INSTRUCTIONS, look
from shared.domain.errors import ModelStreamBroken
from shared.models.openai_chat import OpenAIChatModel
from shared.models.types import (
    AssistantMessage,
    Finished,
    Message,
    ModelRequest,
    ModelResponse,
    SystemMessage,
    ToolDeclaration,
    ToolMessage,
    UserMessage,
)

_DECLARED = ToolDeclaration(look.name, look.description, look.parameters)


async def run_bare(model: OpenAIChatModel, history: tuple[Message, ...], message: str) -> int:
    """Ask, call, ask again, until the model answers; return how many requests that took."""
    messages = [SystemMessage(INSTRUCTIONS), *history, UserMessage(message)]
    requests = 0
    while True:
        requests += 1
        response = await _ask(model, ModelRequest("stub-1", tuple(messages), (_DECLARED,)))
        if not response.calls:
            return requests
        messages.append(AssistantMessage(response.text, response.calls))
        for call in response.calls:
            messages.append(ToolMessage(call.id, call.name, await look.handler()))


async def _ask(model: OpenAIChatModel, request: ModelRequest) -> ModelResponse:
    async with aclosing(model.stream(request)) as events:
        async for event in events:
            if isinstance(event, Finished):
                return event.response
    raise ModelStreamBroken("the model's stream ended without an answer")
