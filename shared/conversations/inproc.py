"""The bounded store of conversations in this process's memory: for tests, scripts and notebooks.

What it holds ends with the process. It never evicts: a full store refuses (law 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.conversations.messages import ConversationMessage, check_prefix, check_whole
from shared.conversations.port import (
    BYTES_MAX,
    CONVERSATION_MAX_BYTES,
    CONVERSATION_MAX_MESSAGES,
    CONVERSATIONS_MAX,
    Conversation,
)
from shared.domain.bounds import check_identity
from shared.domain.errors import (
    HistoryConflict,
    HistoryFenced,
    HistoryFull,
    HistoryMissing,
)
from shared.domain.ids import SessionId


@dataclass(slots=True, eq=False)
class _Owner:
    """Who owns sessions: the application, or one scope."""

    is_closed: bool = False


@dataclass(slots=True)
class _Table:
    """All sessions of one store, whoever owns them."""

    sessions: dict[SessionId, tuple[_Owner, Conversation]] = field(default_factory=dict)
    size_bytes: int = 0
    is_closed: bool = False


class InMemoryConversations:
    """Implements :class:`shared.conversations.port.ScopedConversations`; one object an owner, one table a store.

    Belongs to one event loop. No call waits for anything, so an update and a release are never cut half-way.
    """

    def __init__(self, table: _Table | None = None) -> None:
        self._is_application = table is None
        self._table = table if table is not None else _Table()
        self._owner = _Owner()

    @property
    def count(self) -> int:
        """Sessions of all owners."""
        return len(self._table.sessions)

    @property
    def size_bytes(self) -> int:
        """Encoded content of all owners."""
        return self._table.size_bytes

    async def snapshot(self, session_id: SessionId) -> Conversation:
        """See the port."""
        found = self._find(session_id)
        if found is None:
            raise HistoryMissing("no such session", session=session_id)
        return found

    async def update(
        self, session_id: SessionId, messages: Sequence[ConversationMessage], *, create: bool = False
    ) -> Conversation:
        """See the port."""
        check_identity(session_id, field="session_id")
        found = self._find(session_id)
        if found is None and not create:
            raise HistoryMissing("no such session", session=session_id)
        recorded = found.messages if found is not None else ()
        check_prefix(session_id, recorded, messages)
        suffix = tuple(messages[len(recorded) :])
        check_whole(suffix, after=len(recorded))
        added = sum(len(message.encoded) for message in suffix)
        size = added + (found.size_bytes if found is not None else 0)
        self._check_bounds(session_id, found is None, len(recorded) + len(suffix), size, added)
        conversation = Conversation(session_id, (*recorded, *suffix), size)
        self._table.sessions[session_id] = (self._owner, conversation)
        self._table.size_bytes += added
        return conversation

    def open_owner(self) -> InMemoryConversations:
        """See the port."""
        self._refuse_closed()
        return type(self)(self._table)

    def close(self) -> None:
        """See the port. The application's own store closes all: its owners are fenced with it (THR-16)."""
        self._owner.is_closed = True
        if self._is_application:
            self._table.is_closed = True
            self._table.sessions.clear()
            self._table.size_bytes = 0
        mine = [name for name, (owner, _) in self._table.sessions.items() if owner is self._owner]
        for name in mine:
            _, conversation = self._table.sessions.pop(name)
            self._table.size_bytes -= conversation.size_bytes

    def _find(self, session_id: SessionId) -> Conversation | None:
        self._refuse_closed()
        owner, conversation = self._table.sessions.get(session_id, (self._owner, None))
        if owner is not self._owner:
            raise HistoryConflict("the session is another owner's", session=session_id)
        return conversation

    def _refuse_closed(self) -> None:
        if self._owner.is_closed or self._table.is_closed:
            raise HistoryFenced("the owner of these sessions has closed")

    def _check_bounds(
        self, session_id: SessionId, is_new: bool, count: int, size_bytes: int, added_bytes: int
    ) -> None:
        sessions = len(self._table.sessions) + is_new
        for what, value, bound in (
            ("sessions", sessions, CONVERSATIONS_MAX),
            ("messages", count, CONVERSATION_MAX_MESSAGES),
            ("session bytes", size_bytes, CONVERSATION_MAX_BYTES),
            ("bytes", self._table.size_bytes + added_bytes, BYTES_MAX),
        ):
            if value > bound:
                raise HistoryFull(
                    f"the history would hold more than {bound} {what}",
                    session=session_id,
                    field=what,
                    bound=f"<= {bound}",
                )


def in_memory_conversation_store() -> InMemoryConversations:
    """Return a new, empty store: the store alone, wired to nothing (THR-44)."""
    return InMemoryConversations()
