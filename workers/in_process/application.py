"""The application in memory: one bounded store and what runs turns over it, for as long as its block is open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

from shared.agents import Agent, TurnOptions, TurnResult, application_opened
from shared.conversations import ConversationHistory, ConversationStore, InMemoryConversations
from shared.domain.bounds import check_identity
from shared.domain.errors import ConfigError, HistoryFenced, InvalidInput
from shared.domain.ids import OwnerId, SessionId
from shared.models.port import ChatModel
from shared.settings import Settings, load_settings
from workers.executor import BoundedExecutor
from workers.in_process.turn import ConversingParts, converse
from workers.turns.building import open_model

#: Threads for tools that block, in one application.
THREADS: Final = 8
#: Options that belong to hosts with a journal.
_UNTAKEN: Final = ("durability", "subagent", "resume", "resume_usage")
_NO_OPTIONS: Final = TurnOptions()


class InMemorySessions:
    """Implements :class:`shared.agents.OpenApplication` over a conversation history. Belongs to one event loop.

    Turns of one session that run at once conflict: the second to write raises ``SessionHistoryDiverged`` (THR-22). Who may
    use which session is the host's to decide: an id is all that is asked for (THR-23).
    """

    def __init__(
        self, history: ConversationHistory, parts: ConversingParts, *, within: InMemorySessions | None = None
    ) -> None:
        self.history = history
        self._parts = parts
        self._within = within
        self._closed = False

    @property
    def conversation_store(self) -> ConversationStore:
        """The store of whoever owns this block: what snapshots are asked of."""
        return self.history.store

    async def run(
        self,
        agent: Agent,
        message: str,
        *,
        session_id: SessionId | None = None,
        options: TurnOptions = _NO_OPTIONS,
    ) -> TurnResult:
        """Run one turn; see :meth:`shared.agents.Agent.run`. Raises ``HistoryFenced`` once the block is over."""
        if self._is_over:
            raise HistoryFenced("the application's block is over")
        if untaken := options.given(*_UNTAKEN):
            raise ConfigError(
                f"in-memory sessions take no {untaken[0]}: it belongs to a host with a journal",
                field=f"options.{untaken[0]}",
            )
        if session_id is not None and options.session_id not in (None, session_id):
            raise InvalidInput(
                "session_id and the options name two sessions", field="session_id", bound="one session"
            )
        options = replace(options, session_id=session_id or options.session_id)
        return await converse(agent, message, options, history=self.history, parts=self._parts)

    @asynccontextmanager
    async def scoped(self) -> AsyncIterator[InMemorySessions]:
        """Own the sessions that begin in the block, and release them at its end, however it ends (THR-24 to THR-40).

        In the block ``Agent.run`` finds this owner; so does the object that it yields. Other owners' sessions are
        ``HistoryConflict``; after the block everything through it is ``HistoryFenced``. Raises ``InMemoryScopeError``
        where the history is not the in-memory one.
        """
        history, owned = self.history.open_owner()
        scope = InMemorySessions(history, self._parts, within=self)
        try:
            with application_opened(scope):
                yield scope
        finally:
            owned.close()  # waits for nothing: a cancellation finds it undone or done
            scope.close()

    def close(self) -> None:
        """Take no more turns, nor do the scopes within."""
        self._closed = True

    @property
    def _is_over(self) -> bool:
        return self._closed or (self._within is not None and self._within._is_over)


@asynccontextmanager
async def in_memory_sessions(
    *,
    model: ChatModel | None = None,
    model_name: str | None = None,
    history: ConversationHistory | None = None,
    settings: Settings | None = None,
    owner: str = "in-process",
) -> AsyncIterator[InMemorySessions]:
    """Open one bounded store of conversations for the whole program, and let ``Agent.run`` find it in the block.

    ``model`` answers; without one the configured endpoint does (``OPENAI_API_KEY``, ``OPENAI_BASE_URL``,
    ``TURNKEEPER_MODEL``). ``model_name`` is for agents that name none. ``history`` is a host's own assembly, which stays
    open after the block; the default one is released with it (THR-16). ``owner`` is what tools are told. Raises
    ``ConfigError`` without a model or a key. A block within a block is a store of its own (THR-06).
    """
    check_identity(owner, field="owner")
    async with AsyncExitStack() as stack:
        settings = settings or load_settings()
        executor = BoundedExecutor(THREADS)
        stack.callback(executor.close)
        parts = ConversingParts(
            model=model if model is not None else await open_model(settings, None, stack),
            default_model=model_name or settings.model,
            executor=executor,
            owner=OwnerId(owner),
        )
        if history is None:
            store = InMemoryConversations()
            stack.callback(store.close)
            history = ConversationHistory(store)
        application = InMemorySessions(history, parts)
        stack.callback(application.close)
        stack.enter_context(application_opened(application))
        yield application
