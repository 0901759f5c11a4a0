"""A turn in a host's own process: ``agent.turn`` as one function over the turn's parts (TRN-01 to TRN-04, TRN-60 to TRN-64)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from shared.agents import Agent, Turn, TurnOutcome, TurnResult, Use
from shared.domain.errors import ConfigError, InvalidInput, TurnClosed, TurnkeeperError, code_of
from shared.domain.failpoints import Failpoints
from shared.feed.port import FeedWriter, TurnFeed
from shared.host.endings import defects_as_failures, our_code, turn_ending_of
from shared.host.port import AdmittedTurn, NewTurn, SessionAddress, Sessions, TurnWriter
from shared.models.port import ChatModel
from shared.sessions.log import SessionLog
from shared.sessions.vocabulary import MEMORY_KINDS, TurnStarted, UserMessage
from shared.turns.resume import is_turn_number, resume_key
from workers.context.history import HISTORY_PAGE_RECORDS, read_history, room_for_history
from workers.context.lineage import LineageReader
from workers.executor import BoundedExecutor
from workers.turns.body.lifecycle import NoReactions, Reactions, TurnEnds, guard_turn
from workers.turns.body.memory import Publish, TakeMessage, TurnMemory, publish_to_nobody, take_nowhere
from workers.turns.body.turn import HostTurn
from workers.turns.journal import HostJournal
from workers.turns.loop import LoopParts
from workers.turns.progress import Progress, TurnRef

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnServices:
    """What a host's process runs turns with; parts come by argument.

    ``publish``, ``take_message`` and ``reactions`` are where an event bus and a memory of the host's are put in.
    """

    sessions: Sessions
    log: SessionLog
    model: ChatModel
    default_model: str
    executor: BoundedExecutor
    feed: FeedWriter
    failpoints: Failpoints = field(default_factory=Failpoints)
    reactions: Reactions = field(default_factory=NoReactions)
    publish: Publish = publish_to_nobody
    take_message: TakeMessage = take_nowhere


async def run_turn(
    agent: Agent,
    turn: NewTurn | TurnWriter,
    services: TurnServices,
    use: Use | None = None,
    *,
    session: SessionAddress | None = None,
) -> TurnResult:
    """Run one turn of an agent here and return what it came to.

    A ``NewTurn`` is begun in ``session`` and ended by this call; what keeps it from beginning is raised itself
    (``TurnBeginError``), before anything is opened or run. One that resumes turn ``n`` has the key ``resume:<n>`` unless it
    is given one: a second try of the same resume is its duplicate (RSM-38). A ``TurnWriter`` was begun by the host, who ends it after its
    own closing records. ``use`` stands for the agent's own body. Raises what the turn failed with, the host's own errors
    unchanged; ``TurnClosed`` with its reason when someone else closed the turn; and, of a turn that was begun here and
    succeeded, whatever kept its end from being stored.
    """
    if agent.history == "whole-turn":
        raise ConfigError(
            "a host's own turn is kept step by step: admit it to the queue, or run it in persistent_sessions",
            field="agent.history",
        )
    if not isinstance(turn, NewTurn):
        return await _Running(agent, turn, services, use).run()
    if session is None:
        raise InvalidInput("a new turn needs a session to begin in", field="session", bound="an address")
    if turn.key is None and is_turn_number(turn.resumes):
        turn = replace(turn, key=resume_key(turn.resumes))
    async with services.sessions.begin(session, turn) as writer:
        return await _Running(agent, writer, services, use).run_and_end()


class _Running:
    """One turn under way; one object a call."""

    def __init__(self, agent: Agent, writer: TurnWriter, services: TurnServices, use: Use | None) -> None:
        self._agent = agent
        self._writer = writer
        self._services = services
        self._use = use or agent.use or _run_once
        self._turn: HostTurn | None = None
        self._returned: TurnOutcome | None = None
        self._usage: Mapping[str, int] = {}

    async def run_and_end(self) -> TurnResult:
        """Run the turn, then end it: once, as it came out, whoever is cancelled meanwhile."""
        try:
            result = await self.run()
        except asyncio.CancelledError:
            # The scope ends it as interrupted, unless its reply is stored as the body returned it (TRN-24, TRN-63).
            if self._has_replied_as_returned and self._returned is not None:
                await self._try_to_end(self._returned)
            raise
        except TurnClosed:
            raise
        except BaseException as error:
            await self._try_to_end(error)
            raise
        ended = await self._writer.end(turn_ending_of(_outcome_of(result), result.usage))
        return replace(result, pending=ended.pending, session_id=self._writer.session.id)

    async def run(self) -> TurnResult:
        """Run the turn until it is done or someone else closes it; the host's own errors come out unchanged."""
        try:
            return await _until_closed(self._writer, self._guarded())
        except Exception as error:
            cause = defects_as_failures(error)
            if cause is error:
                raise
            raise cause from cause.__cause__

    # --- inside ----------------------------------------------------------------------------------------------------

    async def _guarded(self) -> TurnResult:
        feed = self._services.feed.writer(self._writer.admitted.turn_id, 1)
        try:
            with our_code():
                turn = self._turn = await self._open(feed)
                await turn.turn_memory.persist_message()
                ends = TurnEnds(
                    tasks=turn.tasks,
                    recorder=self,
                    reactions=self._services.reactions,
                    flush=self._writer.flush,
                    usage=lambda: self._usage,
                )
                return await guard_turn(partial(self._body, turn), ends)
        finally:
            feed.close()

    async def _body(self, turn: Turn) -> TurnOutcome:
        self._returned = await self._use(turn)
        return self._returned

    async def persist_reply(self, outcome: TurnOutcome) -> None:
        """Record the turn's one reply, after the end of a step that was cut short."""
        turn = self._turn
        assert turn is not None, "only an open turn is guarded"
        payloads, self._usage = turn.cut_short()
        if payloads:
            await turn.journal.append(payloads)
        await turn.turn_memory.persist_reply(outcome)

    async def _open(self, feed: TurnFeed) -> HostTurn:
        admitted, address, services = self._writer.admitted, self._writer.session, self._services
        started = _started_of(admitted)
        reader = LineageReader(
            address.id,
            lambda session, before: services.log.read_back(
                session, before=before, limit=HISTORY_PAGE_RECORDS, kinds=MEMORY_KINDS
            ),
            lambda session: services.log.head(session, address.owner),
            may_inherit=admitted.origin == "task",
        )
        history = await read_history(
            reader,
            room_tokens=room_for_history(self._agent, started.user_message.text),
            without_turn=admitted.number,
        )
        ref = TurnRef(address.id, address.owner, admitted.turn_id, admitted.run_id)
        journal = HostJournal(self._writer)
        progress = Progress(
            history.with_user(started.entry, started.user_message.text), number=admitted.number
        )
        parts = LoopParts(
            turn=ref,
            agent=self._agent,
            model_name=self._agent.model or services.default_model,
            model=services.model,
            journal=journal,
            feed=feed,
            executor=services.executor,
            failpoints=services.failpoints,
        )
        memory = TurnMemory(
            ref, started, progress, journal, take_message=services.take_message, publish=services.publish
        )
        return HostTurn(parts, memory, admitted)

    @property
    def _has_replied_as_returned(self) -> bool:
        replied = None if self._turn is None else self._turn.turn_memory.replied
        return replied is not None and replied is self._returned

    async def _try_to_end(self, exit: TurnOutcome | BaseException) -> None:
        """End the turn; a failure of that is logged: the turn has a cause of its own, and its scope tries again."""
        try:
            await self._writer.end(turn_ending_of(exit, self._usage))
        except TurnkeeperError as error:
            _log.warning("a turn's end could not be stored yet: %s", error, extra={"code": code_of(error)})


async def _run_once(turn: Turn) -> TurnOutcome:
    result = await turn.run()
    return TurnOutcome(result.outcome, result.text)


async def _until_closed(writer: TurnWriter, work: Coroutine[Any, Any, TurnResult]) -> TurnResult:
    """Run work until it is done; when someone else closes the turn first, cancel it and raise ``TurnClosed``."""
    running = asyncio.create_task(work, name="turn")
    closed = asyncio.ensure_future(writer.closed())
    try:
        await asyncio.wait({running, closed}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        reason = closed.result()
        raise TurnClosed(f"the turn was closed: {reason}", turn=str(writer.admitted.turn_id), reason=reason)
    finally:
        closed.cancel()
        await _stop(running)


async def _stop(running: asyncio.Task[TurnResult]) -> None:
    """Cancel what still runs and wait until it has finished its turn; whoever is cancelled meanwhile waits too."""
    if running.done():
        return
    running.cancel()
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            continue  # raised by whoever called us: it is what brought us here, or comes after a cause of its own
    if not running.cancelled():
        running.exception()


def _outcome_of(result: TurnResult) -> TurnOutcome:
    return TurnOutcome(result.outcome, result.reply)


def _started_of(admitted: AdmittedTurn) -> TurnStarted:
    return TurnStarted(
        turn_id=str(admitted.turn_id),
        run_id=admitted.run_id,
        entry=f"{admitted.run_id}:0",
        origin=admitted.origin,
        key=admitted.key,
        user_message=UserMessage.model_validate(dict(admitted.message)),
        command=None if admitted.command is None else dict(admitted.command),
        claimed=list(admitted.claimed),
        meta=dict(admitted.meta) or None,
        resumes=admitted.resumes,
    )
