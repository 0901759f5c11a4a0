"""The port of conversation stores, its values and its bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from shared.conversations.messages import ConversationMessage, Prompt
from shared.domain.ids import SessionId

#: Sessions that one store holds (THR-17).
CONVERSATIONS_MAX: Final = 256
#: Messages of one session (THR-18).
CONVERSATION_MAX_MESSAGES: Final = 1_024
#: Encoded content of one session: the sum of its messages' canonical JSON in UTF-8 (THR-19).
CONVERSATION_MAX_BYTES: Final = 4 * 1024 * 1024
#: Encoded content of all sessions together (THR-20).
BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Conversation:
    """A session's conversation as one look saw it: an ordinary value, unchanged by whatever happens later (THR-34).

    ``size_bytes`` is what its messages count against the bounds.
    """

    session_id: SessionId
    messages: Prompt
    size_bytes: int


def to_prompt(conversation: Conversation) -> Prompt:
    """Return the messages that a snapshot holds, as a turn takes them for its history (THR-41)."""
    return conversation.messages


class ConversationStore(Protocol):
    """Conversations by session id, for one owner: only ever extended, each update whole or not at all.

    **Order.** A conversation's messages keep the order in which updates brought them.

    **Whole messages.** What is stored ends no message and no tool batch half-way: :func:`check_whole
    <shared.conversations.messages.check_whole>` holds for every stored conversation.

    **Ownership.** A store of an owner finds its own sessions. One of another owner is ``HistoryConflict``, which tells
    nothing of what it holds; once the owner has closed, every call through it is ``HistoryFenced``.

    **Failure.** ``SessionHistoryError`` with its reason, and nothing of the refused call is kept; what was there stays.
    """

    async def snapshot(self, session_id: SessionId) -> Conversation:
        """Return a conversation as it stands. Raises ``HistoryMissing`` when there is none."""
        ...

    async def update(
        self, session_id: SessionId, messages: Sequence[ConversationMessage], *, create: bool = False
    ) -> Conversation:
        """Make the conversation be ``messages``, which begin with all that is recorded; only the rest is stored.

        ``create`` lets it begin when there is none; otherwise that is ``HistoryMissing``. Of two updates that extend
        one prefix the first wins. Raises ``SessionHistoryDiverged`` when the recorded messages are no prefix of these:
        they are out of date, or rewritten; ``HistoryEncoding`` for what is no whole message; ``HistoryFull`` over a bound.
        """
        ...


class OwnedConversations(ConversationStore, Protocol):
    """A store of an owner with an end."""

    def close(self) -> None:
        """Release the owner's sessions and all that they count; further calls are ``HistoryFenced``. Never waits.

        A second call does nothing.
        """
        ...


@runtime_checkable
class ScopedConversations(ConversationStore, Protocol):
    """A store that gives owners of their own their part of it (THR-24 to THR-37)."""

    def open_owner(self) -> OwnedConversations:
        """Return a new owner's store: over the same bounds, with no session yet."""
        ...
