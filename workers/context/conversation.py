"""A conversation's native messages as a model is shown them: the newest that fit the agent's budget, cut before a user's message."""

from __future__ import annotations

from collections.abc import Sequence

from shared.conversations import ConversationMessage, FilePart, Prompt
from shared.domain.errors import AttachmentRejected
from shared.models.types import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from workers.context.estimates import estimate_messages
from workers.context.transcript import Transcript


def show_conversation(prompt: Prompt, *, room_tokens: int) -> Transcript:
    """Return the transcript of a conversation's newest messages that fit.

    What a model thought is not shown again: the model port has no place for it. Raises ``AttachmentRejected`` for a
    file, for the same reason.
    """
    shown: tuple[Message, ...] = ()
    group: list[Message] = []
    for place in range(len(prompt) - 1, -1, -1):
        group[:0] = _shown(prompt[place], place)
        if prompt[place].role != "user" and place > 0:
            continue
        room_tokens -= estimate_messages(group)
        if room_tokens < 0:
            break
        shown, group = (*group, *shown), []
    return Transcript(shown)


def _shown(message: ConversationMessage, place: int) -> Sequence[Message]:
    if any(isinstance(part, FilePart) for part in message.parts):
        raise AttachmentRejected(
            "the conversation holds a file, which the model is not shown", field=f"history/{place}"
        )
    match message.role:
        case "system":
            return [SystemMessage(message.text)]
        case "user":
            return [UserMessage(message.text)]
        case "assistant":
            calls = tuple(ToolCall(call.call_id, call.name, call.arguments) for call in message.calls)
            return [AssistantMessage(message.text, calls)]
        case "tool":
            return [ToolMessage(result.call_id, result.name, result.text) for result in message.results]
