"""The application of whole turns: what ``agent.run`` finds inside ``async with persistent_sessions(...)``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final

from shared.agents import Agent, OpenApplication, TurnOptions, TurnResult, application_opened
from shared.conversations import ConversationStore
from shared.conversations.persistent import ContextRule, PersistentHistory
from shared.database.pool import Database
from shared.domain.bounds import check_identity
from shared.domain.errors import ConfigError, InMemoryScopeError
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, SessionId
from shared.feed.inproc import InprocFeed
from shared.feed.port import FeedWriter
from shared.models.port import ChatModel
from shared.sessions.log import SessionLog
from shared.sessions.postgres import PostgresSessionLog
from shared.settings import Settings, load_settings
from workers.executor import BoundedExecutor
from workers.in_process.whole_turn import (
    OpenResources,
    TurnIds,
    Validate,
    WholeTurnServices,
    accept_any,
    no_resources,
    run_whole_turn,
)
from workers.turns.body.memory import Publish, publish_to_nobody
from workers.turns.building import open_model

#: Whose sessions these are when a program does not say: one owner, who signs in nowhere.
LOCAL_OWNER: Final = "in-process"
CONNECTIONS: Final = 8
#: Blocking tools that run at once.
EXECUTOR_THREADS: Final = 8
_NO_OPTIONS: Final = TurnOptions()


class PersistentSessions:
    """Implements :class:`shared.agents.OpenApplication` over whole-turn history. Any number of turns may run at once."""

    def __init__(self, services: WholeTurnServices) -> None:
        self._services = services

    @property
    def history(self) -> PersistentHistory:
        """The history beneath: ``await history.load(session_id)`` tells what was kept (THR-47)."""
        return self._services.history

    @property
    def conversation_store(self) -> ConversationStore | None:
        """None: a log of whole turns is no store that a turn extends as it goes."""
        return None

    async def run(
        self,
        agent: Agent,
        message: str,
        *,
        session_id: SessionId | None = None,
        options: TurnOptions = _NO_OPTIONS,
    ) -> TurnResult:
        """See :func:`workers.in_process.whole_turn.run_whole_turn`."""
        return await run_whole_turn(agent, message, self._services, session_id=session_id, options=options)

    def scoped(self) -> AbstractAsyncContextManager[OpenApplication]:
        """Raise ``InMemoryScopeError``: what is in a database outlives every scope (THR-37)."""
        raise InMemoryScopeError("persistent sessions have no scopes: only in-memory sessions can be scoped")


@asynccontextmanager
async def persistent_sessions(
    database_url: str | None = None,
    *,
    log: SessionLog | None = None,
    owner: str = LOCAL_OWNER,
    model: ChatModel | None = None,
    model_name: str | None = None,
    context_rule: ContextRule | None = None,
    resources: OpenResources = no_resources,
    validate: Validate = accept_any,
    publish: Publish = publish_to_nobody,
    ids: TurnIds | None = None,
    feed: FeedWriter | None = None,
    failpoints: Failpoints | None = None,
    settings: Settings | None = None,
) -> AsyncIterator[PersistentSessions]:
    """Open whole-turn history for the block, so that ``agent.run`` keeps each successful turn in a database.

    Open it around the whole program, tasks that run turns included (THR-48). ``database_url``, ``model`` and
    ``model_name`` are the settings' when not given; ``log`` stands in place of a database. All sessions are ``owner``'s:
    who may use which is decided before (THR-78). The database must be migrated. Raises ``ConfigError``,
    ``StoreUnavailable``, ``SchemaOutOfRange``. After the block every use is ``HistoryFenced``.
    """
    check_identity(owner, field="owner")
    settings = settings if settings is not None else load_settings()
    async with AsyncExitStack() as stack:
        if log is None:
            log = await _open_log(database_url or settings.database_url.get_secret_value(), stack)
        failpoints = failpoints if failpoints is not None else Failpoints.parse(settings.failpoints)
        history = PersistentHistory(log, OwnerId(owner), context_rule=context_rule, failpoints=failpoints)
        executor = BoundedExecutor(EXECUTOR_THREADS)
        stack.callback(executor.close)
        services = WholeTurnServices(
            history=history,
            owner=OwnerId(owner),
            model=model if model is not None else await open_model(settings, None, stack),
            default_model=model_name or settings.model,
            executor=executor,
            feed=feed if feed is not None else InprocFeed(),
            failpoints=failpoints,
            ids=ids if ids is not None else TurnIds(),
            resources=resources,
            validate=validate,
            publish=publish,
        )
        stack.callback(history.close)
        application = PersistentSessions(services)
        with application_opened(application):
            yield application


async def _open_log(database_url: str, stack: AsyncExitStack) -> SessionLog:
    if not database_url:
        raise ConfigError("DATABASE_URL is not set and no database_url was given", field="DATABASE_URL")
    database = Database(database_url, connections=CONNECTIONS)
    await database.open()
    stack.push_async_callback(database.close)
    return PostgresSessionLog(database)
