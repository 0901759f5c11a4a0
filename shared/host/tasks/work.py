"""The work of one task in the host's own process: its turn, its result, the delivery, the parent's reaction (TSK-16 to 37).

::

    take ──▶ open ──▶ executor.turn ──▶ task.result + turn.ended ──▶ deliver ──▶ executor.react
              │            │ cutoff: interrupted, task.deadline         │            │ cutoff: partial once answered,
              └ refused: the row ends so, and is owed like any end      │            └ else interrupted, waits again
                                                                        └ undelivered: stays owed, for a reconcile
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from shared.domain.bounds import clean_text
from shared.domain.errors import (
    NothingPending,
    SessionBusy,
    SessionMissing,
    TurnBeginError,
    TurnClosed,
    TurnkeeperError,
    TurnRefused,
    code_of,
    describe_error,
)
from shared.domain.failpoints import Failpoints
from shared.domain.ids import SessionId
from shared.host.endings import TurnOutcome, call_host, turn_ending_of
from shared.host.port import InboxTurn, SessionAddress, TurnWriter
from shared.host.sessions import HostSessions
from shared.host.tasks.deadlines import CLOSING_RESERVE_MS, Deadline, deadline_after
from shared.host.tasks.delivering import deliver_owed
from shared.host.tasks.port import HandedTask, TaskExecutor
from shared.host.writer import QueuedTurnWriter
from shared.sessions.vocabulary import TurnStarted, UserMessage, draft_of
from shared.sessions.vocabulary_around import BackgroundTaskResult
from shared.tasks.port import TaskStore
from shared.tasks.states import LATE
from shared.turns.queue import Claim, Ending

_logger: Final = logging.getLogger(__name__)

#: The outcomes of a reply that answers a turn; a failed one only says that there is no answer.
_ANSWERS: Final = ("completed", "partial")


@dataclass(slots=True, kw_only=True)
class InProcessWork:
    """Runs tasks over a host's sessions; one instance a ``Tasks``. Parts come by argument.

    ``writers`` are the open turns of the tasks that run here.
    """

    sessions: HostSessions
    store: TaskStore
    executor: TaskExecutor
    failpoints: Failpoints
    closing_reserve_ms: int = CLOSING_RESERVE_MS
    writers: dict[SessionId, QueuedTurnWriter] = field(default_factory=dict)

    async def run(self, task: HandedTask, deadline: Deadline) -> None:
        """Run a task's turn if it waits for one, deliver what the task owes, and let the parent react.

        Raises what keeps the result from being delivered; it is owed then, and a reconcile delivers it (TSK-37).
        """
        if deadline.is_cut(_now()):
            _logger.info("a task waits: no time is left to run it", extra=_about(task))
            return
        meta = await self._turn(task, deadline)
        await self.failpoints.hit("task.owed")
        delivered = await deliver_owed(self.store, task.parent, only=task.task_id)
        await self.failpoints.hit("task.told")
        if delivered:
            await self.react(task.parent, deadline, meta)

    # --- the task's turn -----------------------------------------------------------------------------------------

    async def _turn(self, task: HandedTask, deadline: Deadline) -> Mapping[str, Any] | None:
        """Run the turn if it is to be had; return the task's meta. Whatever ended it, it is owed now."""
        sent_at = _now()
        claim = await self.store.take(
            task.task_id, task.parent.owner, self.sessions.holder, lease_s=self.sessions.lease_s
        )
        if claim is None:  # it ended, or another runs it
            return None
        own = deadline.earlier(
            deadline_after(claim.deadline_in_s, now=sent_at, closing_reserve_ms=self.closing_reserve_ms)
        )
        try:
            async with self.sessions.open_claimed(
                claim, [draft_of(started_of(claim))], sent_at=sent_at
            ) as writer:
                self.writers[task.task_id] = writer
                try:
                    await self._run_open(task, writer, own)
                finally:
                    del self.writers[task.task_id]
        except (TurnBeginError, TurnClosed) as error:
            _logger.info(
                "a task's turn ended before it ran: %s",
                describe_error(error),
                extra=_about(task) | {"code": code_of(error)},
            )
        return claim.meta

    async def _run_open(self, task: HandedTask, writer: QueuedTurnWriter, own: Deadline) -> None:
        ending, result = await self._execute(task, writer, own)
        try:
            await writer.end(ending, [draft_of(result)])
        except TurnkeeperError as error:
            if isinstance(error, TurnClosed) and error.fields.get("reason") != "interrupted":
                raise  # cancelled, removed, or ended by another
            # The closing scope tries once more; if that fails too the task reads as lost (TSK-22).
            _logger.warning(
                "the result of a task could not be stored: %s",
                describe_error(error),
                extra=_about(task) | {"code": error.code},
            )

    async def _execute(
        self, task: HandedTask, writer: QueuedTurnWriter, own: Deadline
    ) -> tuple[Ending, BackgroundTaskResult]:
        try:
            async with _until(own) as limit:
                outcome = await _until_closed(writer, self.executor.turn(writer))
        except TimeoutError as error:
            if not limit.expired():
                return _failed(task, error)
            ending = Ending("interrupted", LATE)
            return ending, BackgroundTaskResult(task=task.task_id, outcome="interrupted", code=LATE)
        except TurnClosed:
            raise
        except (Exception, BaseExceptionGroup) as error:
            return _failed(task, error)
        text = None if outcome.reply is None else clean_text(outcome.reply)[0]
        return turn_ending_of(outcome), BackgroundTaskResult(
            task=task.task_id, outcome=outcome.outcome, text=text
        )

    # --- the parent's reaction -----------------------------------------------------------------------------------

    async def react(
        self, parent: SessionAddress, deadline: Deadline, meta: Mapping[str, Any] | None = None
    ) -> None:
        """Answer what waits in a parent's inbox: until nothing does, or one turn of a runner whose time is bounded (TSK-32).

        What cannot begin waits in the inbox (TSK-36): behind a turn in flight, whose end counts it, or for an admission.
        """
        if not deadline.is_finite:
            await self.sessions.drain(parent, self.executor.react, meta=meta)
            return
        if deadline.is_cut(_now()):
            return
        try:
            async with self.sessions.begin(parent, InboxTurn(meta=meta)) as writer:
                await self._react_once(writer, deadline)
        except (NothingPending, SessionBusy, TurnRefused, SessionMissing, TurnClosed) as error:
            _logger.info(
                "a notice waits in the inbox: %s",
                describe_error(error),
                extra={"parent": parent.id, "code": error.code},
            )

    async def _react_once(self, writer: TurnWriter, deadline: Deadline) -> None:
        if deadline.is_cut(_now()):  # the admission took too long: nothing was tried (TSK-35)
            await writer.end(Ending("interrupted", LATE, counts_attempt=False))
            return
        after = await writer.flush()
        try:
            async with _until(deadline) as limit:
                outcome = await _until_closed(writer, self.executor.react(writer))
        except TimeoutError as error:
            if not limit.expired():
                await writer.end(turn_ending_of(error))
                return
            await writer.end(await self._cut_short(writer, after))
        except TurnClosed:
            raise
        except (Exception, BaseExceptionGroup) as error:
            await writer.end(turn_ending_of(error))
        else:
            await writer.end(turn_ending_of(outcome))

    async def _cut_short(self, writer: TurnWriter, after: int) -> Ending:
        """Return how a reaction that was cut ends: once it recorded its answer its notices are done (TSK-33, 34)."""
        await writer.flush()
        replies = await self.sessions.read(writer.session, after=after, kinds=["turn.reply"])
        own = [r for r in replies if r.turn == writer.admitted.number and r.data["outcome"] in _ANSWERS]
        return Ending("partial" if own else "interrupted", LATE)


def started_of(claim: Claim) -> TurnStarted:
    """Return the record that opens a task's turn: its message is the task's instructions."""
    return TurnStarted(
        turn_id=str(claim.turn_id),
        run_id=claim.run_id,
        entry=f"{claim.run_id}:0",
        origin="task",
        key=claim.key,
        user_message=UserMessage.model_validate(claim.message or {"text": ""}),
        meta=None if claim.meta is None else dict(claim.meta),
    )


def _failed(task: HandedTask, error: BaseException) -> tuple[Ending, BackgroundTaskResult]:
    ending = turn_ending_of(error)
    outcome: Literal["interrupted", "failed"] = "interrupted" if ending.outcome == "interrupted" else "failed"
    _logger.warning(
        "a task's turn failed: %s", ending.code, extra=_about(task) | {"code": ending.code}, exc_info=error
    )
    return ending, BackgroundTaskResult(
        task=task.task_id, outcome=outcome, code=ending.code, failure=ending.failure
    )


def _until(deadline: Deadline) -> asyncio.Timeout:
    return asyncio.timeout_at(deadline.cutoff if deadline.is_finite else None)


async def _until_closed(writer: TurnWriter, work: Awaitable[TurnOutcome]) -> TurnOutcome:
    """Run the host's code until it is done; when someone else closes its turn, cancel it and raise ``TurnClosed``."""

    async def run() -> TurnOutcome:
        return await call_host(_awaiting, work)

    running = asyncio.create_task(run(), name="task-executor")
    closed = asyncio.ensure_future(writer.closed())
    try:
        await asyncio.wait({running, closed}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        raise TurnClosed("the turn was closed", turn=str(writer.admitted.turn_id), reason=closed.result())
    finally:
        closed.cancel()
        running.cancel()
        # Whoever is cancelled meanwhile waits too: the host's code finishes what it records.
        while not running.done():
            try:
                await asyncio.wait({running})
            except asyncio.CancelledError:
                continue


async def _awaiting(work: Awaitable[TurnOutcome]) -> TurnOutcome:
    return await work


def _now() -> float:
    return asyncio.get_running_loop().time()


def _about(task: HandedTask) -> dict[str, object]:
    return {"task": task.task_id, "parent": task.parent.id}
