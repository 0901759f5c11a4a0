"""The request of one step and its header: the header is saved first and says everything but the messages (REQ-01 to 07)."""

from __future__ import annotations

from dataclasses import dataclass

from shared.agents import Agent
from shared.models.types import Message, ModelRequest, SystemMessage, ToolDeclaration, UserMessage
from shared.sessions.vocabulary import RequestPrepared, ToolDeclared
from workers.context.transcript import Transcript


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A model request and the header that is committed before it is sent."""

    request: ModelRequest
    header: RequestPrepared


def prepare_request(
    agent: Agent,
    transcript: Transcript,
    *,
    model: str,
    run_id: str,
    session_id: str,
    run: int,
    step: int,
    recalled: str = "",
) -> PreparedRequest:
    """Build the request of a step and its header; pure, so a repeated attempt builds the same bytes.

    ``recalled`` is transient context: one user message right before the turn's own, in no record and no header.
    """
    tools = declared_tools(agent)
    request = ModelRequest(
        model=model,
        messages=(SystemMessage(agent.instructions), *_with_recalled(transcript.messages, recalled)),
        tools=tools,
        cache_key=session_id,
    )
    header = RequestPrepared(
        run_id=run_id,
        run=run,
        step=step,
        system=agent.instructions,
        tools=[
            ToolDeclared(name=t.name, description=t.description, parameters=dict(t.parameters)) for t in tools
        ],
        tool_choice=request.tool_choice,
        model={"name": model},
        cache_key=request.cache_key,
        call_policy={},
        recipe=transcript.recipe,
        through=transcript.through,
    )
    return PreparedRequest(request, header)


def declared_tools(agent: Agent) -> tuple[ToolDeclaration, ...]:
    """Return an agent's tools as a model is shown them."""
    return tuple(ToolDeclaration(t.name, t.description, t.parameters) for t in agent.tools)


def _with_recalled(messages: tuple[Message, ...], recalled: str) -> tuple[Message, ...]:
    if not recalled:
        return messages
    last = max(n for n, message in enumerate(messages) if isinstance(message, UserMessage))
    return (*messages[:last], UserMessage(recalled), *messages[last:])
