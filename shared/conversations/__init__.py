"""Conversations as values: native messages, snapshots of them, and the bounded store in memory that tests and scripts use.

A conversation is what a session's turns say to each other, without the records that a worker needs to go on after a crash:
those are the session log's (THR-45). Who runs turns over it is :mod:`workers.in_process`.
"""

from shared.conversations.history import (
    ConversationHistory,
    HistoryUpdate,
    OnHistory,
    in_memory_session_history,
)
from shared.conversations.inproc import InMemoryConversations, in_memory_conversation_store
from shared.conversations.messages import (
    ConversationMessage,
    FilePart,
    Prompt,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from shared.conversations.port import (
    BYTES_MAX,
    CONVERSATION_MAX_BYTES,
    CONVERSATION_MAX_MESSAGES,
    CONVERSATIONS_MAX,
    Conversation,
    ConversationStore,
    OwnedConversations,
    ScopedConversations,
    to_prompt,
)

__all__ = [
    "BYTES_MAX",
    "CONVERSATIONS_MAX",
    "CONVERSATION_MAX_BYTES",
    "CONVERSATION_MAX_MESSAGES",
    "Conversation",
    "ConversationHistory",
    "ConversationMessage",
    "ConversationStore",
    "FilePart",
    "HistoryUpdate",
    "InMemoryConversations",
    "OnHistory",
    "OwnedConversations",
    "Prompt",
    "ReasoningPart",
    "ScopedConversations",
    "TextPart",
    "ToolCallPart",
    "ToolResultPart",
    "in_memory_conversation_store",
    "in_memory_session_history",
    "to_prompt",
]
