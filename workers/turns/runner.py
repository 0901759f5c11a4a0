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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from shared.agents import Agent, App
from shared.domain.errors import (
    FenceLost,
    SessionBusy,
    TurnkeeperError,
    TurnTimeout,
    Unavailable,
    describe_error,
)
from shared.domain.failpoints import Failpoints
from shared.domain.ids import SessionId, TurnId
from shared.feed.port import ChangeHints, FeedWriter, TurnFeed
from shared.models.port import ChatModel
from shared.sessions.log import READ_MAX_RECORDS, TITLE_CHARS, SessionLog
from shared.sessions.records import Record
from shared.sessions.vocabulary import (
    MEMORY_KINDS,
    Payload,
    StepEnded,
    TurnEnded,
    TurnReply,
    TurnStarted,
    UserMessage,
)
from shared.turns.queue import CallEntry, Claim, Ended, Ending, Outcome, TurnQueue
from workers.context.transcript import fold
from workers.executor import BoundedExecutor
from workers.turns.holdings import Holding, Holdings
from workers.turns.loop import RUN, Closing, Progress, StepLoop, sum_usage
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


@dataclass(slots=True)
class RunnerCounts:
    """Figures of the process since its start."""

    ended: dict[str, int] = field(default_factory=dict)
    stale_writes_refused: int = 0
    handed_back: int = 0
    taken_over: int = 0


class _Standing(NamedTuple):
    """An open turn and where its log stands."""

    progress: Progress
    log: TurnLog
    ledger: dict[str, CallEntry]


@dataclass(slots=True, kw_only=True)
class TurnRunner:
    """Runs claimed turns; one instance a process. Parts come by argument.

    ``ring`` is called with ids that became ready. Followers are told of every commit through ``hints``.
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
    counts: RunnerCounts = field(default_factory=RunnerCounts)

    async def run(self, holding: Holding) -> None:
        """Run a turn to its end, or until it is no longer ours, or until the process drains. Raises nothing but cancellation."""
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
        finally:
            self.holdings.drop(holding)

    # --- one attempt -----------------------------------------------------------------------------------------

    async def _attempt(self, claim: Claim) -> None:
        agent = self.app.agent(claim.agent) if self._knows(claim.agent) else None
        writer = self._writer(claim)
        feed = self.feed.writer(claim.turn_id, claim.fence.epoch)
        try:
            loop = self._loop(claim, agent or self.app.agent(), writer, feed)
            standing = await self._open(claim, loop, writer)
            await self.failpoints.hit("turn.opened")
            closing = await self._steps(claim, agent, loop, standing)
            if closing is not None:
                await self._end(claim, writer, closing)
                feed.close(ended=True)
        finally:
            feed.close()

    def _writer(self, claim: Claim) -> TurnWriter:
        return TurnWriter(self.queue, claim, lambda _seq: self.hints.publish_change(claim.session_id))

    def _knows(self, name: str) -> bool:
        return not name or any(a.name == name for a in self.app.agents)

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

    async def _open(self, claim: Claim, loop: StepLoop, writer: TurnWriter) -> _Standing:
        """Open the turn with the first request's header in one commit, or take over what an earlier attempt opened."""
        if claim.number is not None:
            opened = await writer.open([], title=None)
            self.counts.taken_over += opened.result == "took-over"
            return await self._stand(claim, opened.number)
        message = UserMessage.model_validate(claim.message or {"text": ""})
        entry = f"{claim.run_id}:0"
        history = fold(await self._read(claim.session_id, kinds=MEMORY_KINDS))
        # The number is given by the database as it opens; nothing in the first header depends on it.
        progress = Progress(history.with_user(entry, message.text), number=0)
        started = TurnStarted(
            turn_id=str(claim.turn_id),
            run_id=claim.run_id,
            entry=entry,
            origin="user",
            key=claim.key,
            user_message=message,
            command=None if claim.command is None else dict(claim.command),
            meta=None if claim.meta is None else dict(claim.meta),
        )
        opened = await writer.open(
            [started, *loop.step_header(progress)], title=message.text[:TITLE_CHARS] or None
        )
        if opened.result != "opened":
            self.counts.taken_over += opened.result == "took-over"
            return await self._stand(claim, opened.number)
        log = TurnLog(started=started)
        return _Standing(Progress(progress.transcript, number=opened.number), log, {})

    async def _stand(self, claim: Claim, number: int) -> _Standing:
        """Read where an open turn stands: after the takeover, so that nothing of the old holder can follow."""
        log = read_turn(await self._read(claim.session_id, kinds=(), turn=number))
        earlier = await self._read(claim.session_id, kinds=MEMORY_KINDS)
        calls = await _known(lambda: self.queue.calls(claim.session_id, claim.turn_id))
        progress = Progress(
            fold(earlier),
            number=number,
            step=log.steps,
            calls=log.calls,
            usages=tuple(u.usage for u in log.usages),
        )
        return _Standing(progress, log, {c.invocation_id: c for c in calls})

    async def _steps(
        self, claim: Claim, agent: Agent | None, loop: StepLoop, standing: _Standing
    ) -> Closing | None:
        """Do what :func:`next_action` says, within the turn's time; return the closing commit."""
        progress, log, ledger = standing
        loop.ledger.update(ledger)
        try:
            if agent is None:
                raise TurnkeeperError(f"this worker has no agent {claim.agent!r}")
            async with asyncio.timeout(_time_left(claim)) as limit:
                match next_action(log):
                    case AlreadyEnded() | Open():
                        return None
                    case EndWithReply(reply):
                        ending = Ending(reply.outcome, usage=sum_usage(progress.usages))
                        return Closing((TurnEnded(reason=reply.outcome),), ending)
                    case SettleCalls(response):
                        return await loop.run(progress, response, prepared=True)
                    case AskModel(prepared=prepared):
                        return await loop.run(progress, None, prepared=prepared or log.header is None)
        except FenceLost:
            raise
        except TimeoutError as error:
            if limit.expired():
                late = TurnTimeout(f"the turn took longer than {claim.max_duration_s:g} s")
                return await self._failure(claim, progress, late)
            return await self._failure(claim, progress, error)
        except Exception as error:  # whatever escapes a turn is stored as its end (decision 3)
            return await self._failure(claim, progress, error)

    async def _failure(self, claim: Claim, progress: Progress, error: Exception) -> Closing:
        """Return the closing commit of a failed turn: a reply without text, the stable code, calls left open unknown."""
        code = error.code if isinstance(error, TurnkeeperError) else DEFECT
        if code == DEFECT:
            _log.exception("a turn met a defect", extra=_about(claim))
        failure = describe_error(error)
        calls = await _known(lambda: self.queue.calls(claim.session_id, claim.turn_id))
        open_calls = tuple(
            CallEntry(c.invocation_id, c.step, c.ordinal, c.name, c.argument_digest, c.token, "unknown")
            for c in calls
            if c.state in ("planned", "started")
        )
        step = max((c.step for c in calls), default=progress.step)
        payloads: tuple[Payload, ...] = (
            StepEnded(run=RUN, step=step, status="failed"),
            TurnReply(outcome="failed"),
            TurnEnded(reason="failed", code=code, failure=failure),
        )
        return Closing(payloads, Ending("failed", code, failure, sum_usage(progress.usages)), open_calls)

    # --- ends ------------------------------------------------------------------------------------------------

    async def _end(self, claim: Claim, writer: TurnWriter, closing: Closing) -> None:
        ended: Ended = await writer.end(closing.payloads, closing.ending, calls=closing.calls)
        self._count_end(closing.ending.outcome)
        await self.failpoints.hit("turn.ended")
        if ended.promoted is not None:
            self.ring([ended.promoted])

    def _count_end(self, outcome: Outcome) -> None:
        self.counts.ended[outcome] = self.counts.ended.get(outcome, 0) + 1

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
        end = TurnEnded(reason="interrupted", code="turn.interrupted")
        try:
            ended = await writer.end([end], Ending("interrupted", "turn.interrupted"))
        except FenceLost:
            return False
        self._count_end("interrupted")
        if ended.promoted is not None:
            self.ring([ended.promoted])
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
