"""The kits of conversation stores: what every adapter must show, and what a bounded one with owners must show besides."""

from shared.conformance.conversations.bounds import (
    BoundedConversationsSubject,
    bounded_conversations_conformance,
)
from shared.conformance.conversations.stores import ConversationStoreSubject, conversation_store_conformance

__all__ = [
    "BoundedConversationsSubject",
    "ConversationStoreSubject",
    "bounded_conversations_conformance",
    "conversation_store_conformance",
]
