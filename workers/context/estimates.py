"""Tokens, estimated from bytes: what budgets are kept by where nothing counts exactly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shared.domain.canonical import canonical_json
from shared.models.types import AssistantMessage, Message, ToolDeclaration

#: UTF-8 bytes that count as one token: near to what English text has; other scripts have a few more.
BYTES_PER_TOKEN: Final = 4
#: What a message or a tool costs beside its text.
FRAME_TOKENS: Final = 4


def estimate_text(text: str) -> int:
    """Return the tokens of a text, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def estimate_messages(messages: Iterable[Message]) -> int:
    """Return the tokens of messages, with the calls that they make."""
    return sum(_estimate_message(message) for message in messages)


def estimate_tools(tools: Iterable[ToolDeclaration]) -> int:
    """Return the tokens of tools as a model is shown them."""
    return sum(
        FRAME_TOKENS + estimate_text(t.name + t.description + canonical_json(t.parameters)) for t in tools
    )


def _estimate_message(message: Message) -> int:
    calls = message.calls if isinstance(message, AssistantMessage) else ()
    called = sum(FRAME_TOKENS + estimate_text(call.name + call.arguments) for call in calls)
    return FRAME_TOKENS + estimate_text(message.text) + called
