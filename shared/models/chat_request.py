"""A model request as the body of a Chat Completions call. Pure."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, assert_never

from shared.models.types import (
    AssistantMessage,
    Message,
    ModelRequest,
    SystemMessage,
    ToolCall,
    ToolDeclaration,
    ToolMessage,
    UserMessage,
)

#: The field that bounds the answer's length: OpenAI's present name, or the older one that some servers only know.
OutputLimitField: TypeAlias = Literal["max_completion_tokens", "max_tokens"]

_TOOL_CHOICES = frozenset({"auto", "none", "required"})


def chat_request(
    request: ModelRequest, *, output_limit_field: OutputLimitField, streamed: bool = True
) -> dict[str, Any]:
    """Return the body of ``request``, streamed with usage or whole; what the request leaves open is left out."""
    body: dict[str, Any] = {
        "model": request.model,
        "messages": [_wire_message(message) for message in request.messages],
    }
    if streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if request.tools:
        body["tools"] = [_wire_tool(tool) for tool in request.tools]
        if request.tool_choice != "auto":
            body["tool_choice"] = _wire_tool_choice(request.tool_choice)
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.max_output_tokens is not None:
        body[output_limit_field] = request.max_output_tokens
    if request.cache_key is not None:
        body["prompt_cache_key"] = request.cache_key
    return body


def _wire_message(message: Message) -> dict[str, Any]:
    match message:
        case SystemMessage(text):
            return {"role": "system", "content": text}
        case UserMessage(text):
            return {"role": "user", "content": text}
        case AssistantMessage(text, ()):
            return {"role": "assistant", "content": text}
        case AssistantMessage(text, calls):
            wire_calls = [_wire_call(call) for call in calls]
            return {"role": "assistant", "content": text or None, "tool_calls": wire_calls}
        case ToolMessage(call_id, _, text):
            return {"role": "tool", "tool_call_id": call_id, "content": text}
        case _:
            assert_never(message)


def _wire_call(call: ToolCall) -> dict[str, Any]:
    # Models call a tool without parameters with no text at all, which several servers then refuse to read back.
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments or "{}"},
    }


def _wire_tool(tool: ToolDeclaration) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _wire_tool_choice(choice: str) -> str | dict[str, Any]:
    return choice if choice in _TOOL_CHOICES else {"type": "function", "function": {"name": choice}}
