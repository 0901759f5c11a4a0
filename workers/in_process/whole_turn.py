"""One whole turn: load, run, close, validate, append, publish; in that order, and nothing is kept before the append."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from shared.agents import Agent, Turn, TurnOptions, TurnOutcome, TurnResult
from shared.conversations import ConversationMessage
from shared.conversations.persistent import LoadedSession, PersistentHistory, WholeTurn
from shared.domain.bounds import check_identity
from shared.domain.errors import ConfigError, InvalidInput, TurnTimeout, code_of
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, RunId, SessionId, TurnId, new_run_id, new_session_id, new_turn_id
from shared.feed.port import FeedWriter, TurnFeed
from shared.host.endings import call_host, defects_as_failures, our_code
from shared.host.port import AdmittedTurn
from shared.models.port import ChatModel
from shared.sessions.vocabulary import TurnReply, TurnStarted, UserMessage
from workers.context.conversation import show_conversation
from workers.context.history import room_for_history
from workers.executor import BoundedExecutor
from workers.in_process.collecting import CollectingJournal
from workers.in_process.journal import messages_of
from workers.turns.body.lifecycle import NoReactions, run_body
from workers.turns.body.memory import Publish, TurnMemory, publish_to_nobody
from workers.turns.body.turn import HostTurn
from workers.turns.loop import LoopParts
from workers.turns.progress import Progress, TurnRef

_log: Final = logging.getLogger(__name__)

#: Options that belong to other ways of keeping history; each is refused before anything runs (THR-68, THR-69).
REFUSED_OPTIONS: Final = (
    "history",
    "on_history",
    "input",
    "durability",
    "subagent",
    "resume",
    "resume_usage",
)

#: Opens what one turn owns; it is closed after the body, before the result is looked at.
OpenResources: TypeAlias = Callable[[Turn], AbstractAsyncContextManager[object]]
#: Raises when a turn's result is not to be kept.
Validate: TypeAlias = Callable[[TurnOutcome], Awaitable[None]]


@asynccontextmanager
async def no_resources(_turn: Turn) -> AsyncIterator[None]:
    """Open nothing."""
    yield


async def accept_any(_outcome: TurnOutcome) -> None:
    """Take every result."""


@dataclass(frozen=True, slots=True)
class TurnIds:
    """Where ids come from; the defaults never repeat, whatever restarts (THR-49, THR-73)."""

    session: Callable[[], SessionId] = new_session_id
    turn: Callable[[], TurnId] = new_turn_id
    run: Callable[[], RunId] = new_run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTurnServices:
    """What whole turns run with; parts come by argument.

    ``resources`` opens what each turn owns, ``validate`` has a say in its result, ``publish`` hears ``turn.started`` and,
    once the turn is kept, ``turn.ended`` (THR-51).
    """

    history: PersistentHistory
    owner: OwnerId
    model: ChatModel
    default_model: str
    executor: BoundedExecutor
    feed: FeedWriter
    failpoints: Failpoints = field(default_factory=Failpoints)
    ids: TurnIds = field(default_factory=TurnIds)
    resources: OpenResources = no_resources
    validate: Validate = accept_any
    publish: Publish = publish_to_nobody


async def run_whole_turn(
    agent: Agent,
    message: str,
    services: WholeTurnServices,
    *,
    session_id: SessionId | None = None,
    options: TurnOptions,
) -> TurnResult:
    """Run one turn of an agent and keep it whole; return what it came to.

    A turn that returns a failed outcome is not kept. Raises, before any model or tool runs, ``ConfigError`` for an
    option that this way of keeping has no place for, and what :meth:`PersistentHistory.begin` refuses; then what the
    turn failed with, the host's own errors unchanged; then what :meth:`PersistentHistory.append` raises.
    """
    session = _session_of(session_id, options)
    _refuse_options(options)
    asked = ConversationMessage.user(message)
    session = session if session is not None else services.ids.session()
    loaded = await services.history.begin(session, asked)
    return await _WholeTurn(agent, asked, loaded, services).run()


class _WholeTurn:
    """One turn under way; one object a call."""

    def __init__(
        self, agent: Agent, asked: ConversationMessage, loaded: LoadedSession, services: WholeTurnServices
    ) -> None:
        self._agent = agent
        self._asked = asked
        self._loaded = loaded
        self._services = services
        self._journal = CollectingJournal(loaded.seq)
        self._ref = TurnRef(loaded.session_id, services.owner, services.ids.turn(), services.ids.run())

    async def run(self) -> TurnResult:
        """Run the turn, keep it, say so."""
        try:
            turn, outcome = await self._within_time()
        except Exception as error:
            cause = defects_as_failures(error)
            if cause is error:
                raise
            raise cause from cause.__cause__
        result = TurnResult(
            outcome.outcome, outcome.reply, dict(turn.usage), session_id=self._loaded.session_id
        )
        if outcome.outcome == "failed":
            return result
        reply = turn.turn_memory.reply_of(outcome)
        await self._services.history.append(self._loaded, self._whole(result, reply))
        await self._publish_end(reply)
        return result

    async def _within_time(self) -> tuple[HostTurn, TurnOutcome]:
        limit_s = self._agent.policy.max_duration_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await self._settled()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TurnTimeout(f"the turn took longer than {limit_s:g} s") from error

    async def _settled(self) -> tuple[HostTurn, TurnOutcome]:
        """Run the body, close what the turn owns, then look at the result: what any of it raises keeps the turn out."""
        feed = self._services.feed.writer(self._ref.turn_id, 1)
        async with AsyncExitStack() as stack:
            stack.callback(feed.close)
            turn = self._open(feed)
            with our_code():
                await turn.turn_memory.persist_message()
            await _enter(self._services.resources(turn), stack)
            stack.push_async_callback(turn.tasks.cancel)
            use = self._agent.use or _run_once
            outcome, cancelled = await run_body(partial(use, turn), turn.tasks, NoReactions())
        if cancelled:
            raise asyncio.CancelledError
        await call_host(self._services.validate, outcome)
        return turn, outcome

    def _open(self, feed: TurnFeed) -> HostTurn:
        started = TurnStarted(
            turn_id=str(self._ref.turn_id),
            run_id=self._ref.run_id,
            entry=f"{self._ref.run_id}:0",
            origin="user",
            user_message=UserMessage(text=self._asked.text),
        )
        room = room_for_history(self._agent, self._asked.text)
        before = show_conversation(self._loaded.prompt, room_tokens=room)
        # No queue numbers this turn. Where it begins in the log tells its calls from those of every turn kept there.
        progress = Progress(before.with_user(started.entry, self._asked.text), number=self._loaded.seq + 1)
        parts = LoopParts(
            turn=self._ref,
            agent=self._agent,
            model_name=self._agent.model or self._services.default_model,
            model=self._services.model,
            journal=self._journal,
            feed=feed,
            executor=self._services.executor,
            failpoints=self._services.failpoints,
        )
        memory = TurnMemory(self._ref, started, progress, self._journal, publish=self._services.publish)
        return HostTurn(parts, memory, self._admitted(progress.number))

    def _admitted(self, number: int) -> AdmittedTurn:
        message = {"text": self._asked.text}
        return AdmittedTurn(self._ref.turn_id, number, self._ref.run_id, "user", message)

    def _whole(self, result: TurnResult, reply: TurnReply) -> WholeTurn:
        said = messages_of([reply])  # what no step of the model said
        instructions = self._journal.instructions
        return WholeTurn(
            turn_id=self._ref.turn_id,
            run_id=self._ref.run_id,
            instructions=self._agent.instructions if instructions is None else instructions,
            message=self._asked,
            model=self._agent.model or self._services.default_model,
            tools=self._journal.tools,
            messages=[*self._journal.messages, *said],
            outcome="partial" if result.outcome == "partial" else "completed",
            output=result.reply,
            usage=result.usage,
        )

    async def _publish_end(self, reply: TurnReply) -> None:
        """Say that the turn ended; it is kept, so whoever cannot hear that changes nothing."""
        try:
            await self._services.publish("turn.ended", reply)
        except Exception as error:
            where = {"turn": str(self._ref.turn_id), "session": self._loaded.session_id}
            _log.warning(
                "a turn's end could not be published: %s", error, extra=where | {"code": code_of(error)}
            )


async def _enter(owned: AbstractAsyncContextManager[object], stack: AsyncExitStack) -> None:
    """Open what a turn owns; ``stack`` closes it. What its closing raises fails the turn, and it hides no failure."""

    async def close(*raised: Any) -> bool:
        await call_host(owned.__aexit__, *raised)
        return False

    await call_host(owned.__aenter__)
    stack.push_async_exit(close)


async def _run_once(turn: Turn) -> TurnOutcome:
    result = await turn.run()
    return TurnOutcome(result.outcome, result.text)


def _session_of(session_id: SessionId | None, options: TurnOptions) -> SessionId | None:
    given = {found for found in (session_id, options.session_id) if found is not None}
    if len(given) > 1:
        raise InvalidInput(
            "session_id and the options name two sessions", field="session_id", bound="one session"
        )
    for found in given:
        check_identity(found, field="session_id")
    return next(iter(given), None)


def _refuse_options(options: TurnOptions) -> None:
    if refused := options.given(*REFUSED_OPTIONS):
        raise ConfigError(
            f"persistent history keeps whole turns by itself: it takes no {refused[0]}",
            field=f"options.{refused[0]}",
        )
