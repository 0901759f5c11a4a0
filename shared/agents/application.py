"""The application that ``Agent.run`` finds: who runs turns in this process, for the block that opened it.

An application is opened on the worker side (:mod:`workers.in_process`), which this package never imports.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

from shared.agents.options import TurnOptions
from shared.agents.turn import TurnResult
from shared.conversations import ConversationStore, HistoryUpdate, OnHistory, to_prompt
from shared.domain.errors import ConfigError, InvalidInput
from shared.domain.ids import SessionId

if TYPE_CHECKING:
    from shared.agents.definition import Agent


class OpenApplication(Protocol):
    """Runs turns of agents in this process.

    ``conversation_store`` is where it keeps what they say, None when that is no conversation store.
    """

    @property
    def conversation_store(self) -> ConversationStore | None: ...

    async def run(
        self, agent: Agent, message: str, *, session_id: SessionId | None = None, options: TurnOptions = ...
    ) -> TurnResult:
        """Run one turn; see :meth:`shared.agents.Agent.run`."""
        ...

    def scoped(self) -> AbstractAsyncContextManager[OpenApplication]:
        """Return a block that owns the sessions it begins. Raises ``InMemoryScopeError`` where sessions have no owners."""
        ...


_open: Final[ContextVar[OpenApplication | None]] = ContextVar("open_application", default=None)


def open_application() -> OpenApplication:
    """Return the innermost application that is open here. Raises ``ConfigError`` that says what to open."""
    found = _open.get()
    if found is None:
        raise ConfigError(
            "no application is open here: run inside `async with in_memory_sessions(...)` of workers.in_process,"
            " or call `.run` of an application that you keep",
            field="application",
        )
    return found


@contextmanager
def application_opened(application: OpenApplication) -> Iterator[None]:
    """Let ``Agent.run`` find this application in the block and in the tasks that it starts."""
    token = _open.set(application)
    try:
        yield
    finally:
        # A block that ends in another context than it began in (a notebook's cells, a fixture) leaves nothing there.
        with suppress(ValueError):
            _open.reset(token)


async def to_turn_session_options(
    session_id: SessionId, *, store: ConversationStore | None = None, on_history: OnHistory | None = None
) -> TurnOptions:
    """Return options that go on with a stored conversation and record what is added in that store (THR-82, THR-84).

    The store is the one given, or the open application's; it is taken now, so inside a scope the options keep that
    scope's. Each update is written to it before ``on_history`` hears of it. Raises ``HistoryMissing``, and
    ``InvalidInput`` where the application has no conversation store.
    """
    found = store if store is not None else open_application().conversation_store
    if found is None:
        raise InvalidInput(
            "the application keeps no conversations", field="store", bound="a conversation store"
        )
    prompt = to_prompt(await found.snapshot(session_id))
    return TurnOptions(session_id=session_id, history=prompt, on_history=_recorder(found, on_history))


def _recorder(store: ConversationStore, then: OnHistory | None) -> OnHistory:
    async def record(update: HistoryUpdate) -> None:
        await store.update(update.session_id, update.prompt)
        if then is not None:
            await then(update)

    return record
