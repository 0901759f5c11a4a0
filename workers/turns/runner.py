"""Runs one claimed turn: open or take over, the steps, exactly one end; or hand it back.

::

    claimed ──open──▶ opened | took over | adopted ──next_action──▶ steps ──▶ end ──▶ (promoted: ring)
       │                          │
       └─ cancelled, expired      ├─ lease lost, cancelled elsewhere: stop, store nothing
                                  └─ drain: flush, release uncounted, ring
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from shared.agents import Agent, App
from shared.domain.errors import (
    Broken,
    CorruptRecord,
    Defect,
    FenceLost,
    NothingPending,
    NotResumable,
    SessionBusy,
    TurnClosed,
    TurnkeeperError,
    TurnRefused,
    Unavailable,
    describe_error,
)
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, TurnId
from shared.feed.port import ChangeHints, FeedWriter, TurnFeed
from shared.host.commits import WriterEars
from shared.host.endings import INTERRUPTED_CODE, HostFailure, turn_ending_of
from shared.host.writer import QueuedTurnWriter, closed_error
from shared.inbox.port import Inbox
from shared.models.port import ChatModel
from shared.sessions.log import SessionLog
from shared.sessions.vocabulary import TurnEnded, TurnReply, draft_of
from shared.turns.queue import Claim, Ended, Ending, Opened, Outcome, TurnQueue
from workers.cancellation import is_cancelled
from workers.context.history import History
from workers.context.history_cache import HistoryCache
from workers.executor import BoundedExecutor
from workers.tasks.delivery import ResultDelivery
from workers.tasks.results import time_to_execute, with_result
from workers.tasks.tools import ModelTasks
from workers.turns.body.lifecycle import NoReactions, run_body
from workers.turns.body.turn import HostTurn
from workers.turns.holdings import Holding, Holdings
from workers.turns.journal import WholeTurnJournal, journal_of
from workers.turns.loop import LoopParts
from workers.turns.next_action import AlreadyEnded, EndWithReply, EndWithResult
from workers.turns.opening import Opener, OpenTurn
from workers.turns.own_records import OwnRecords
from workers.turns.progress import Closing, TurnRef
from workers.turns.step_records import closing_of

_log: Final = logging.getLogger(__name__)

#: What the queue refuses to open a turn with: its row has been seen to.
_NOT_OPENED: Final = (SessionBusy, NothingPending, NotResumable, TurnRefused)

#: How long a drain that began while a turn's end was being written waits for it.
END_WHEN_CANCELLED_S: Final = 3.0


#: Gives the transient context of a turn: (owner, the user's text) → text for the model, or "".
Recall = Callable[[OwnerId, str], Awaitable[str]]


@dataclass(slots=True)
class RunnerCounts:
    """Figures of the process since its start."""

    ended: dict[str, int] = field(default_factory=dict)
    stale_writes_refused: int = 0
    handed_back: int = 0
    taken_over: int = 0


@dataclass(slots=True, kw_only=True)
class TurnRunner:
    """Runs claimed turns; one instance a process. Parts come by argument.

    ``ring`` is called with ids that became ready. Followers are told of every commit through ``hints``. ``recall`` gives
    the transient context of a turn from its owner and message; what it cannot give is left out, it fails no turn.
    ``on_end`` is called after a turn's end was committed: its session is due for the activity processors. ``deliver``
    tells a parent what its task came to, once the task's turn ended; ``model_tasks`` gives agents their tools for tasks.
    """

    queue: TurnQueue
    log: SessionLog
    inbox: Inbox
    app: App
    model: ChatModel
    default_model: str
    holdings: Holdings
    executor: BoundedExecutor
    failpoints: Failpoints
    feed: FeedWriter
    hints: ChangeHints
    ring: Callable[[Sequence[TurnId]], None]
    recall: Recall | None = None
    on_end: Callable[[], None] = lambda: None
    deliver: ResultDelivery | None = None
    model_tasks: ModelTasks | None = None
    histories: HistoryCache = field(default_factory=HistoryCache)
    counts: RunnerCounts = field(default_factory=RunnerCounts)

    async def run(self, holding: Holding) -> None:
        """Run a turn to its end, or until it is no longer ours, or until the process drains.

        Raises cancellation, and whatever kept even the turn's failure from being stored: its lease is then left to pass.
        """
        claim = holding.claim
        holding.task = asyncio.current_task()
        has_ended = False
        try:
            if holding.lost is None:
                await self.failpoints.hit("turn.claimed")
                await self._attempt(holding)
                has_ended = True
        except FenceLost as error:
            self.counts.stale_writes_refused += 1
            _log.info("a write was refused: %s", error, extra=_about(claim) | {"code": error.code})
            has_ended = isinstance(error, TurnClosed)
        except SessionBusy as error:
            _log.error("another turn was open at opening: %s", error, extra=_about(claim))
        except (NothingPending, NotResumable, TurnRefused) as error:
            _log.info("a turn was refused at opening: %s", error, extra=_about(claim) | {"code": error.code})
            self.ring([])  # what waited behind it may be ready now
            has_ended = True
        except asyncio.CancelledError:
            if holding.lost is None:
                await self._hand_back(claim)
            raise
        except Exception:
            self.holdings.give_up(holding)
            raise
        finally:
            self.holdings.drop(holding)
        if has_ended and self.deliver is not None:
            await self.deliver.after_end(claim)

    # --- one attempt -----------------------------------------------------------------------------------------

    async def _attempt(self, holding: Holding) -> None:
        claim = holding.claim
        own = OwnRecords()
        writer = self._writer(claim, own)
        feed = self.feed.writer(claim.turn_id, claim.fence.epoch)
        opened: OpenTurn | None = None
        whole: WholeTurnJournal | None = None
        try:
            try:
                parts = self._parts(claim, self._agent(claim), writer, feed)
                whole = parts.journal if isinstance(parts.journal, WholeTurnJournal) else None
                opened = await self._opener.open(claim, parts, writer)
                self.counts.taken_over += opened.taken_over
                await self.failpoints.hit("turn.opened")
                closing = await self._close(holding, opened, parts)
                if whole is not None:
                    closing = closing.kept_whole(whole.collected)
                ended = await self._end(holding, writer, closing)
            except (Exception, BaseExceptionGroup, asyncio.CancelledError) as error:
                # Whatever escapes a turn is stored as its end (decision 3); a cancellation that is not ours too: taken for
                # ours, it would hand the turn back, uncounted, again and again.
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    raise
                if writer.reason is not None:  # whatever a body made of it
                    raise closed_error(claim, writer.reason) from error
                if writer.opened is None and isinstance(error, _NOT_OPENED):
                    raise
                turn = None if opened is None else opened.turn
                closing = await self._failure(claim, writer, turn, error, whole=whole is not None)
                ended = await self._end(holding, writer, closing)
            feed.close(ended=True)
        finally:
            feed.close()
            if opened is not None:
                await opened.turn.tasks.cancel()
            await writer.stop()
        self._note_end(closing.ending.outcome)
        if opened is not None and opened.history is not None:
            self._remember(claim, opened.history, own, writer.opened)
        await self.failpoints.hit("turn.ended")
        self._ring_promoted(ended)

    @property
    def _opener(self) -> Opener:
        return Opener(
            queue=self.queue,
            log=self.log,
            inbox=self.inbox,
            failpoints=self.failpoints,
            histories=self.histories,
            admission=self.app.admission,
        )

    def _writer(self, claim: Claim, own: OwnRecords | None = None) -> QueuedTurnWriter:
        ears = WriterEars(
            on_commit=lambda _seq, _sent_at: self.hints.publish_change(claim.session_id),
            on_stored=(own or OwnRecords()).note,
            on_step=lambda: self.holdings.note_step(claim),
        )
        return QueuedTurnWriter(self.queue, self.log, claim, ears=ears)

    def _agent(self, claim: Claim) -> Agent:
        agent = self.app.agent(claim.agent)
        return agent if self.model_tasks is None else self.model_tasks.equip(agent, claim)

    def _parts(self, claim: Claim, agent: Agent, writer: QueuedTurnWriter, feed: TurnFeed) -> LoopParts:
        return LoopParts(
            turn=TurnRef(claim.session_id, claim.owner, claim.turn_id, claim.run_id),
            agent=agent,
            model_name=agent.model or self.default_model,
            model=self.app.model or self.model,
            journal=journal_of(agent, claim, writer),
            feed=feed,
            executor=self.executor,
            failpoints=self.failpoints,
        )

    async def _close(self, holding: Holding, opened: OpenTurn, parts: LoopParts) -> Closing:
        """Do what :func:`next_action` says, within the turn's time; return the closing commit."""
        claim, turn = holding.claim, opened.turn
        left_s, late = time_to_execute(claim, parts.agent.policy, held_for_s=holding.held_for_s)
        try:
            async with asyncio.timeout(left_s) as limit:
                match opened.action:
                    case AlreadyEnded(ended):
                        return Closing((), Ending(ended.reason, ended.code, ended.failure, turn.usage))
                    case EndWithReply(reply):
                        ending = Ending(reply.outcome, usage=turn.usage)
                        return with_result(
                            Closing((TurnEnded(reason=reply.outcome),), ending), claim, reply=reply
                        )
                    case EndWithResult(result):
                        ending = Ending(result.outcome, result.code, result.failure, turn.usage)
                        end = TurnEnded(reason=result.outcome, code=result.code, failure=result.failure)
                        return Closing((end,), ending)
                parts.recalled = await self._recall(claim, turn.user_message.text)
                await turn.turn_memory.persist_message()
                if parts.agent.use is None:
                    return with_result(closing_of(await turn.run_once()), claim)
                outcome, _ = await run_body(partial(parts.agent.use, turn), turn.tasks, NoReactions())
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise late from error
        await self.failpoints.hit("turn.reply-ready")
        reply = turn.turn_memory.reply_of(outcome)
        ending = Ending(reply.outcome, usage=turn.usage)
        return with_result(Closing((reply, TurnEnded(reason=reply.outcome)), ending), claim)

    async def _recall(self, claim: Claim, text: str) -> str:
        """Return what memory adds to this turn's prompt; the empty text when it has nothing or cannot be asked."""
        if self.recall is None:
            return ""
        try:
            return await self.recall(claim.owner, text)
        except TurnkeeperError as error:
            _log.warning(
                "a turn runs without recall: %s", error.code, extra=_about(claim) | {"code": error.code}
            )
        except Exception as error:  # a defect of memory costs a turn its memory, never its answer
            # Not its text: that may hold what is remembered, or whose it is.
            where = traceback.extract_tb(error.__traceback__)[-1]
            _log.error(
                "a turn runs without recall: %s at %s:%s",
                type(error).__name__,
                where.filename,
                where.lineno,
                extra=_about(claim) | {"code": Broken.code},
            )
        return ""

    async def _failure(
        self,
        claim: Claim,
        writer: QueuedTurnWriter,
        turn: HostTurn | None,
        error: BaseException,
        *,
        whole: bool,
    ) -> Closing:
        """Return the closing commit of a failed turn: a reply without text, the stable code, calls left open unknown.

        A turn that failed before it could be opened is opened for it, so that its end has a place in the log. Of a turn
        that would have been kept as a whole its end alone is kept.
        """
        payloads, usage = ([], {}) if turn is None else turn.cut_short()
        ending = turn_ending_of(_as_ours(error), usage)
        if not isinstance(error, TurnkeeperError):
            _log.error("a turn failed: %s", ending.code, extra=_about(claim), exc_info=error)
        if writer.opened is None:
            await self._opener.open_bare(claim, writer, whole=whole)
        open_calls = await self._opener.open_calls(claim)
        end = TurnEnded(reason=ending.outcome, code=ending.code, failure=ending.failure)
        reply = TurnReply(outcome="failed")
        closing = with_result(Closing((*payloads, reply, end), ending, tuple(open_calls)), claim)
        return closing.kept_whole(()) if whole else closing

    # --- ends ------------------------------------------------------------------------------------------------

    def _note_end(self, outcome: Outcome) -> None:
        self.counts.ended[outcome] = self.counts.ended.get(outcome, 0) + 1
        self.on_end()

    def _remember(self, claim: Claim, before: History, own: OwnRecords, opened: Opened | None) -> None:
        """Keep what the session's next turn shows, for the tail that its log has if nobody wrote to it but this turn."""
        if opened is None or claim.tail is None or claim.inherits is not False:
            return
        with suppress(CorruptRecord):  # told by the next turn, which reads it
            turn = own.as_past_turn(claim.session_id, opened)
            history = before.followed_by(turn, room_tokens=self.app.agent(claim.agent).budget_tokens)
            self.histories.keep(claim.session_id, own.tail_after(claim.tail, opened), history)

    async def _end(self, holding: Holding, writer: QueuedTurnWriter, closing: Closing) -> Ended:
        """Write the closing commit. A drain that begins meanwhile waits for it: what a body returned is stored (TRN-24)."""
        drafts = [draft_of(p) for p in closing.payloads]
        ending = asyncio.create_task(writer.close(drafts, closing.ending, calls=closing.calls))
        try:
            return await asyncio.shield(ending)
        except asyncio.CancelledError:
            if holding.lost is None and not ending.done():
                await asyncio.wait({ending}, timeout=END_WHEN_CANCELLED_S)
            if not ending.done() or ending.cancelled():
                raise
            return ending.result()
        finally:
            ending.cancel()

    def _ring_promoted(self, ended: Ended) -> None:
        if ended.promoted is not None:
            self.ring([ended.promoted])

    async def _hand_back(self, claim: Claim) -> None:
        """The process drains: a turn that may go on elsewhere is given back uncounted, any other ends interrupted."""
        try:
            if claim.on_worker_loss == "continue" or not await self._interrupt(claim):
                await self._release(claim)
        except (Unavailable, FenceLost) as error:
            # Nothing is lost: the lease runs out and the sweep or another worker finds the row.
            _log.warning("a turn could not be handed back: %s", error, extra=_about(claim))

    async def _release(self, claim: Claim) -> None:
        if await self.queue.release(claim.turn_id, claim.fence):
            self.counts.handed_back += 1
            self.ring([claim.turn_id])

    async def _interrupt(self, claim: Claim) -> bool:
        """End an open turn as interrupted; False when it is not open, so that nothing of it is in the log."""
        writer = self._writer(claim)
        try:
            ended = await writer.end(Ending("interrupted", INTERRUPTED_CODE))
        except FenceLost:
            return False
        finally:
            await writer.stop()
        self._note_end("interrupted")
        self._ring_promoted(ended)
        return True


def _as_ours(error: BaseException) -> BaseException:
    """Return what a turn failed with: what is neither typed nor a host's own is our defect (decision 3)."""
    if isinstance(error, TurnkeeperError | HostFailure):
        return error
    return Defect(describe_error(error))


def _about(claim: Claim) -> dict[str, object]:
    return {"turn": str(claim.turn_id), "session": claim.session_id, "epoch": claim.fence.epoch}
