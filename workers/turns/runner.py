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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from shared.agents import Agent, App
from shared.domain.bounds import clean_text
from shared.domain.errors import (
    Broken,
    CorruptRecord,
    FenceLost,
    SessionBusy,
    TurnkeeperError,
    TurnTimeout,
    Unavailable,
    describe_error,
)
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, SessionId, TurnId
from shared.feed.port import ChangeHints, FeedWriter, TurnFeed
from shared.models.port import ChatModel
from shared.sessions.log import READ_MAX_RECORDS, TITLE_CHARS, SessionLog
from shared.sessions.records import Record
from shared.sessions.vocabulary import (
    MEMORY_KINDS,
    TurnEnded,
    TurnReply,
    TurnStarted,
    UserMessage,
)
from shared.turns.queue import CallEntry, Claim, Ended, Ending, Opened, Outcome, TurnQueue
from workers.cancellation import is_cancelled
from workers.context.transcript import fold
from workers.executor import BoundedExecutor
from workers.turns.holdings import Holding, Holdings
from workers.turns.loop import Closing, Progress, StepLoop, sum_usage
from workers.turns.next_action import (
    AlreadyEnded,
    AskModel,
    EndWithReply,
    Open,
    SettleCalls,
    TurnLog,
    next_action,
    read_turn,
)
from workers.turns.writer import TurnWriter

_log: Final = logging.getLogger(__name__)

DEFECT: Final = "turn.defect"
T = TypeVar("T")


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
    ``on_end`` is called after a turn's end was committed: its session is due for the activity processors.
    """

    queue: TurnQueue
    log: SessionLog
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
    counts: RunnerCounts = field(default_factory=RunnerCounts)

    async def run(self, holding: Holding) -> None:
        """Run a turn to its end, or until it is no longer ours, or until the process drains.

        Raises cancellation, and whatever kept even the turn's failure from being stored: its lease is then left to pass.
        """
        claim = holding.claim
        holding.task = asyncio.current_task()
        try:
            if holding.lost is None:
                await self.failpoints.hit("turn.claimed")
                await self._attempt(claim)
        except FenceLost as error:
            self.counts.stale_writes_refused += 1
            _log.info("a write was refused: %s", error, extra=_about(claim) | {"code": error.code})
        except SessionBusy as error:
            _log.error("another turn was open at opening: %s", error, extra=_about(claim))
        except asyncio.CancelledError:
            if holding.lost is None:
                await self._hand_back(claim)
            raise
        except Exception:
            self.holdings.give_up(holding)
            raise
        finally:
            self.holdings.drop(holding)

    # --- one attempt -----------------------------------------------------------------------------------------

    async def _attempt(self, claim: Claim) -> None:
        writer = self._writer(claim)
        feed = self.feed.writer(claim.turn_id, claim.fence.epoch)
        loop: StepLoop | None = None
        try:
            try:
                loop = self._loop(claim, self.app.agent(claim.agent), writer, feed)
                log = await self._open(claim, loop, writer)
                await self.failpoints.hit("turn.opened")
                closing = await self._steps(claim, loop, log)
                ended = await _end(writer, closing)
            except (FenceLost, SessionBusy):
                raise
            except (Exception, asyncio.CancelledError) as error:
                # Whatever escapes a turn is stored as its end (decision 3); a cancellation that is not ours too: taken for
                # ours, it would hand the turn back, uncounted, again and again.
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    raise
                closing = await self._failure(claim, writer, loop, error)
                ended = await _end(writer, closing)
            feed.close(ended=True)
        finally:
            feed.close()
        self._note_end(closing.ending.outcome)
        await self.failpoints.hit("turn.ended")
        self._ring_promoted(ended)

    def _writer(self, claim: Claim) -> TurnWriter:
        return TurnWriter(
            self.queue,
            claim,
            on_commit=lambda _seq: self.hints.publish_change(claim.session_id),
            on_step=lambda: self.holdings.note_step(claim),
        )

    def _loop(self, claim: Claim, agent: Agent, writer: TurnWriter, feed: TurnFeed) -> StepLoop:
        return StepLoop(
            claim=claim,
            agent=agent,
            model_name=agent.model or self.default_model,
            model=self.app.model or self.model,
            writer=writer,
            feed=feed,
            executor=self.executor,
            failpoints=self.failpoints,
        )

    async def _open(self, claim: Claim, loop: StepLoop, writer: TurnWriter) -> TurnLog:
        """Open the turn with the first request's header in one commit, or take over what an earlier attempt opened."""
        if claim.number is not None:
            return await self._stand(claim, loop, await writer.open([], title=None))
        started = _started(claim)
        history = fold(await self._read(claim.session_id, kinds=MEMORY_KINDS))
        # The number is given by the database as it opens; nothing in the first header depends on it.
        progress = Progress(history.with_user(started.entry, started.user_message.text), number=0)
        header = loop.step_header(progress)
        opened = await writer.open([started, *header], title=_title(started))
        if opened.result != "opened":
            return await self._stand(claim, loop, opened)
        loop.progress = replace(progress, number=opened.number)
        return TurnLog(started=started, header=loop.request_header(progress))

    async def _stand(self, claim: Claim, loop: StepLoop, opened: Opened) -> TurnLog:
        """Read where an open turn stands: after the takeover, so that nothing of the old holder can follow."""
        self.counts.taken_over += opened.result == "took-over"
        log = read_turn(await self._read(claim.session_id, kinds=(), turn=opened.number))
        earlier = await self._read(claim.session_id, kinds=MEMORY_KINDS)
        calls = await _known(lambda: self.queue.calls(claim.session_id, claim.turn_id))
        loop.ledger.update((c.invocation_id, c) for c in calls)
        loop.progress = Progress(
            fold(earlier),
            number=opened.number,
            step=log.steps,
            calls=log.calls,
            usages=tuple(u.usage for u in log.usages),
        )
        return log

    async def _steps(self, claim: Claim, loop: StepLoop, log: TurnLog) -> Closing:
        """Do what :func:`next_action` says, within the turn's time; return the closing commit."""
        assert loop.progress is not None, "an open turn stands somewhere"
        try:
            async with asyncio.timeout(_time_left(claim)) as limit:
                match next_action(log):
                    case AlreadyEnded(ended):
                        usage = sum_usage(loop.progress.usages)
                        return Closing((), Ending(ended.reason, ended.code, ended.failure, usage))
                    case EndWithReply(reply):
                        ending = Ending(reply.outcome, usage=sum_usage(loop.progress.usages))
                        return Closing((TurnEnded(reason=reply.outcome),), ending)
                    case SettleCalls(response):
                        loop.recalled = await self._recall(claim, log)
                        return await loop.run(loop.progress, response, prepared=True)
                    case AskModel(prepared=prepared):
                        loop.recalled = await self._recall(claim, log)
                        return await loop.run(loop.progress, None, prepared=prepared)
                    case Open():
                        raise CorruptRecord("an open turn has no turn.started", session=claim.session_id)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TurnTimeout(f"the turn took longer than {claim.max_duration_s:g} s") from error

    async def _recall(self, claim: Claim, log: TurnLog) -> str:
        """Return what memory adds to this turn's prompt; the empty text when it has nothing or cannot be asked."""
        if self.recall is None or log.started is None:
            return ""
        try:
            return await self.recall(claim.owner, log.started.user_message.text)
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
        self, claim: Claim, writer: TurnWriter, loop: StepLoop | None, error: BaseException
    ) -> Closing:
        """Return the closing commit of a failed turn: a reply without text, the stable code, calls left open unknown.

        A turn that failed before it could be opened is opened for it, so that its end has a place in the log.
        """
        code = error.code if isinstance(error, TurnkeeperError) else DEFECT
        if code == DEFECT:
            _log.error("a turn met a defect", extra=_about(claim), exc_info=error)
        if writer.opened is None:
            started = [] if claim.number is not None else [_started(claim)]
            await writer.open(started, title=_title(*started) if started else None)
        calls = await _known(lambda: self.queue.calls(claim.session_id, claim.turn_id))
        open_calls = tuple(
            CallEntry(c.invocation_id, c.step, c.ordinal, c.name, c.argument_digest, c.token, "unknown")
            for c in calls
            if c.state in ("planned", "started")
        )
        failure = clean_text(describe_error(error))[0]
        payloads, usage = ([], {}) if loop is None else loop.cut_short()
        payloads += [TurnReply(outcome="failed"), TurnEnded(reason="failed", code=code, failure=failure)]
        return Closing(tuple(payloads), Ending("failed", code, failure, usage), open_calls)

    # --- ends ------------------------------------------------------------------------------------------------

    def _note_end(self, outcome: Outcome) -> None:
        self.counts.ended[outcome] = self.counts.ended.get(outcome, 0) + 1
        self.on_end()

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
        end = TurnEnded(reason="interrupted", code="turn.interrupted")
        try:
            ended = await self._writer(claim).end([end], Ending("interrupted", "turn.interrupted"))
        except FenceLost:
            return False
        self._note_end("interrupted")
        self._ring_promoted(ended)
        return True

    async def _read(
        self, session_id: SessionId, *, kinds: Sequence[str], turn: int | None = None
    ) -> list[Record]:
        """Read all records of some kinds, or all of one turn, page by page."""
        records: list[Record] = []
        full = True
        while full:
            after = records[-1].seq if records else 0
            page = await _known(partial(self.log.read, session_id, after=after, kinds=kinds, turn=turn))
            records.extend(page)
            full = len(page) == READ_MAX_RECORDS
        return records


async def _end(writer: TurnWriter, closing: Closing) -> Ended:
    return await writer.end(closing.payloads, closing.ending, calls=closing.calls)


def _started(claim: Claim) -> TurnStarted:
    return TurnStarted(
        turn_id=str(claim.turn_id),
        run_id=claim.run_id,
        entry=f"{claim.run_id}:0",
        origin="user",
        key=claim.key,
        user_message=UserMessage.model_validate(claim.message or {"text": ""}),
        command=None if claim.command is None else dict(claim.command),
        meta=None if claim.meta is None else dict(claim.meta),
    )


def _title(started: TurnStarted) -> str | None:
    return started.user_message.text[:TITLE_CHARS] or None


async def _known(read: Callable[[], Awaitable[T]]) -> T:
    """Return what a read answers, asked again while the database is away; the lease's watchdog ends that."""
    tries = AsyncRetrying(
        retry=retry_if_exception_type(Unavailable),
        wait=wait_random_exponential(multiplier=0.05, max=2.0),
        reraise=True,
    )
    async for attempt in tries:
        with attempt:
            return await read()
    raise AssertionError("unreachable: the tries have no end")


def _time_left(claim: Claim) -> float | None:
    """Seconds that the turn may still take, counted from its first open by the database's clock."""
    if claim.max_duration_s is None:
        return None
    return max(0.0, claim.max_duration_s - (claim.open_for_s or 0.0))


def _about(claim: Claim) -> dict[str, object]:
    return {"turn": str(claim.turn_id), "session": claim.session_id, "epoch": claim.fence.epoch}
