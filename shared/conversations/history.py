"""A session's history in memory: where a turn's conversation comes from, and where it is recorded as the turn goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shared.conversations.inproc import in_memory_conversation_store
from shared.conversations.messages import ConversationMessage, Prompt
from shared.conversations.port import ConversationStore, OwnedConversations, ScopedConversations, to_prompt
from shared.domain.errors import HistoryMissing, InMemoryScopeError
from shared.domain.ids import SessionId, new_session_id


@dataclass(frozen=True, slots=True)
class HistoryUpdate:
    """What was just recorded: the whole prompt of the session, and the suffix of it that is new."""

    session_id: SessionId
    prompt: Prompt
    added: Prompt


#: Observes updates after they are recorded; what it writes, and what becomes of that, is the host's own (THR-81, THR-89).
OnHistory: TypeAlias = Callable[[HistoryUpdate], Awaitable[None]]


class ConversationHistory:
    """The history that turns in this process share, over one conversation store (THR-11).

    It grows with each turn's whole messages and whole tool batches. Nothing is ever taken back.
    """

    def __init__(self, store: ConversationStore) -> None:
        self._store = store

    @property
    def store(self) -> ConversationStore:
        """The store beneath; it is what snapshots are asked of."""
        return self._store

    async def load(self, session_id: SessionId) -> Prompt:
        """Return what is recorded of a session. Raises ``HistoryMissing`` when there is nothing."""
        return to_prompt(await self._store.snapshot(session_id))

    async def open(
        self, session_id: SessionId | None, *, seed: Sequence[ConversationMessage] | None = None
    ) -> RecordedConversation:
        """Return a session's conversation to extend; nothing is recorded yet.

        Without ``session_id`` a new session begins. ``seed`` begins a session of that id, or extends the one there is
        (THR-80); it is recorded with the first messages. Raises ``HistoryMissing`` for an id that has neither.
        """
        known = await self._known(session_id, may_be_new=seed is not None)
        return RecordedConversation(
            self._store,
            session_id or new_session_id(),
            known if seed is None else tuple(seed),
            recorded=len(known),
            is_new=session_id is None or seed is not None,
        )

    def open_owner(self) -> tuple[ConversationHistory, OwnedConversations]:
        """Return a history of a new owner's, and that owner's store to close.

        Raises ``InMemoryScopeError`` over a store without owners, which everything but the in-memory one may be.
        """
        if not isinstance(self._store, ScopedConversations):
            raise InMemoryScopeError(
                f"{type(self._store).__name__} has no owners: only in-memory sessions can be scoped"
            )
        store = self._store.open_owner()
        return ConversationHistory(store), store

    async def _known(self, session_id: SessionId | None, *, may_be_new: bool) -> Prompt:
        if session_id is None:
            return ()
        try:
            return await self.load(session_id)
        except HistoryMissing:
            if may_be_new:
                return ()
            raise


class RecordedConversation:
    """One session's conversation while a turn extends it. ``prompt`` is all of it: what is recorded, and a seed before that."""

    def __init__(
        self, store: ConversationStore, session_id: SessionId, prompt: Prompt, *, recorded: int, is_new: bool
    ) -> None:
        self.session_id = session_id
        self.prompt = prompt
        self._store = store
        self._recorded = recorded
        self._is_new = is_new

    async def record(self, added: Sequence[ConversationMessage]) -> HistoryUpdate:
        """Store whole messages behind the others. The store's errors come out, and nothing of these is kept then."""
        prompt = (*self.prompt, *added)
        await self._store.update(self.session_id, prompt, create=self._is_new)
        update = HistoryUpdate(self.session_id, prompt, prompt[self._recorded :])
        self.prompt, self._recorded, self._is_new = prompt, len(prompt), False
        return update


def in_memory_session_history(store: ConversationStore | None = None) -> ConversationHistory:
    """Return the history services alone, for a host's own assembly; over a new in-memory store unless one is given."""
    return ConversationHistory(store if store is not None else in_memory_conversation_store())
