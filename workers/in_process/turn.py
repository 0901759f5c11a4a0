"""One turn over a conversation: the same body, step loop and ends as anywhere, without a log, a lease or another attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

from shared.agents import Agent, Turn, TurnOptions, TurnOutcome, TurnResult
from shared.conversations import ConversationHistory, ConversationMessage
from shared.conversations.history import RecordedConversation
from shared.domain.bounds import check_text
from shared.domain.errors import InvalidInput, TurnTimeout
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, RunId, TurnId, new_run_id, new_turn_id
from shared.feed.inproc import InprocFeed
from shared.feed.port import TurnFeed
from shared.host.endings import defects_as_failures, our_code
from shared.host.port import AdmittedTurn
from shared.models.port import ChatModel
from shared.sessions.vocabulary import TurnStarted, UserMessage
from workers.context.conversation import show_conversation
from workers.context.history import room_for_history
from workers.executor import BoundedExecutor
from workers.in_process.inputs import HookInputs
from workers.in_process.journal import ConversationJournal
from workers.turns.body.lifecycle import NoReactions, TurnEnds, guard_turn
from workers.turns.body.memory import TurnMemory
from workers.turns.body.turn import HostTurn
from workers.turns.loop import LoopParts
from workers.turns.progress import Progress, TurnRef


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversingParts:
    """What an application runs turns with; parts come by argument."""

    model: ChatModel
    default_model: str
    executor: BoundedExecutor
    owner: OwnerId
    failpoints: Failpoints = field(default_factory=Failpoints)


async def converse(
    agent: Agent, message: str, options: TurnOptions, *, history: ConversationHistory, parts: ConversingParts
) -> TurnResult:
    """Run one turn over a history and return what it came to.

    Its message is recorded first, then each whole step. Raises what the turn failed with, the host's own errors
    unchanged; a new session's id is told in a note of the error. Nothing that was recorded is taken back, and nothing
    runs a second time.
    """
    _check_given(message, options.history)
    conversation = await history.open(options.session_id, seed=options.history)
    room = room_for_history(agent, message)
    shown = show_conversation(conversation.prompt, room_tokens=room)
    run_id = new_run_id()
    started = TurnStarted(
        turn_id=str(new_turn_id()),
        run_id=run_id,
        entry=f"{run_id}:0",
        origin="user",
        user_message=UserMessage(text=message),
    )
    number = 1 + sum(one.role == "user" for one in conversation.prompt)
    progress = Progress(shown.with_user(started.entry, message), number=number)
    turn = _Conversing(agent, conversation, options, parts, _admitted(started, progress))
    try:
        return await turn.run(started, progress)
    except BaseException as error:
        cause = defects_as_failures(error)
        if options.session_id is None:
            cause.add_note(f"in session {conversation.session_id}")
        if cause is error:
            raise
        raise cause from cause.__cause__


class _Conversing:
    """One turn under way; one object a call."""

    def __init__(
        self,
        agent: Agent,
        conversation: RecordedConversation,
        options: TurnOptions,
        parts: ConversingParts,
        admitted: AdmittedTurn,
    ) -> None:
        self._agent = agent
        self._admitted = admitted
        self._journal = ConversationJournal(conversation, options.on_history)
        self._parts = parts
        hook = options.input
        self._inputs = None if hook is None else HookInputs(hook, self._journal, admitted.run_id)
        self._turn: HostTurn | None = None
        self._usage: Mapping[str, int] = {}

    async def run(self, started: TurnStarted, progress: Progress) -> TurnResult:
        """Record the message, run the body within the agent's time, and give back what never entered."""
        limit_s = self._agent.policy.max_duration_s
        pending = 0
        try:
            async with asyncio.timeout(limit_s) as limit:
                with our_code():
                    result = await self._run(started, progress)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TurnTimeout(f"the turn took longer than {limit_s:g} s") from error
        finally:
            pending = 0 if self._inputs is None else self._inputs.release()
        session_id = self._journal.conversation.session_id
        return replace(result, pending=pending, session_id=session_id)

    async def _run(self, started: TurnStarted, progress: Progress) -> TurnResult:
        await self._journal.tell(
            await self._journal.record([ConversationMessage.user(started.user_message.text)])
        )
        feed = InprocFeed().writer(self._admitted.turn_id, 1)
        try:
            turn = self._turn = self._host_turn(started, progress, feed)
            await turn.turn_memory.persist_message()
            ends = TurnEnds(
                tasks=turn.tasks,
                recorder=self,
                reactions=NoReactions(),
                flush=self._journal.flush,
                usage=lambda: self._usage,
            )
            return await guard_turn(partial(self._agent.use or _run_once, turn), ends)
        finally:
            feed.close()

    async def persist_reply(self, outcome: TurnOutcome) -> None:
        """Record the turn's one reply, if no step of the model said it."""
        turn = self._turn
        assert turn is not None, "only an open turn is guarded"
        self._usage = turn.cut_short()[1]
        await turn.turn_memory.persist_reply(outcome)

    def _host_turn(self, started: TurnStarted, progress: Progress, feed: TurnFeed) -> HostTurn:
        ref = TurnRef(
            self._journal.conversation.session_id,
            self._parts.owner,
            self._admitted.turn_id,
            self._admitted.run_id,
        )
        parts = LoopParts(
            turn=ref,
            agent=self._agent,
            model_name=self._agent.model or self._parts.default_model,
            model=self._parts.model,
            journal=self._journal,
            feed=feed,
            executor=self._parts.executor,
            failpoints=self._parts.failpoints,
            inputs=self._inputs,
        )
        return HostTurn(parts, TurnMemory(ref, started, progress, self._journal), self._admitted)


def _check_given(message: object, history: Sequence[object] | None) -> None:
    """Raise ``InvalidInput`` for what a caller without a type checker may pass: nothing is stored or asked then."""
    if not isinstance(message, str):
        raise InvalidInput("the message must be a text", field="message", bound="str")
    check_text(message, field="message")
    for place, one in enumerate(history or ()):
        if not isinstance(one, ConversationMessage):
            raise InvalidInput(
                "a history holds native messages",
                field=f"options.history/{place}",
                bound="ConversationMessage",
            )


async def _run_once(turn: Turn) -> TurnOutcome:
    result = await turn.run()
    return TurnOutcome(result.outcome, result.text)


def _admitted(started: TurnStarted, progress: Progress) -> AdmittedTurn:
    return AdmittedTurn(
        turn_id=TurnId(UUID(started.turn_id)),
        number=progress.number,
        run_id=RunId(started.run_id),
        origin="user",
        message=started.user_message.model_dump(exclude_none=True),
    )
