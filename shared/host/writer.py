"""The turn's one way to write: an ordered write-behind queue over the fenced commits of one claim.

::

    append, write, transact, flush ──▶ queue (bounded) ──▶ one writer task ──▶ commits under the claim's fence
    end ─────────────────────────────▶ the same order    ╰─▶ first failure latched: nothing after it is stored
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar, Unpack, get_args

from shared.domain.errors import (
    FenceLost,
    InvalidInput,
    RevisionConflict,
    SessionDefect,
    SessionMissing,
    TurnClosed,
    TurnkeeperError,
    describe_error,
)
from shared.host.commits import FencedCommits, Opening, WriterEars, WriterRules
from shared.host.port import AdmittedTurn, CloseReason, Decide, Origin, SessionAddress
from shared.host.transacting import Transaction
from shared.host.write_queue import Answer, Append, Close, Flush, Item, Run, WriteQueue, split
from shared.sessions.log import SessionLog
from shared.sessions.records import Draft, check_commit_size
from shared.sessions.vocabulary import TurnEnded, draft_of, refuse_reserved
from shared.turns.queue import CallEntry, Claim, Ended, Ending, Opened, TurnQueue

_logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

CAPACITY_DEFAULT: Final = 1_024
CAPACITY_MAX: Final = 100_000
RETRIES_DEFAULT: Final = 8
#: How long a closing scope waits for its closing commit; then the turn is left to its lease.
CLOSING_S: Final = 5.0
_RETRY_FIRST_S: Final = 0.05
_RETRY_MAX_S: Final = 2.0
_REASONS: Final = frozenset(get_args(CloseReason))


class QueuedTurnWriter:
    """Implements :class:`shared.host.port.TurnWriter` for a claim, whoever made it. Belongs to one event loop.

    A commit whose answer was lost is repeated under the same id, so nothing is stored twice. ``opened`` is the answer of
    :meth:`open`, once there is one, ``claimed`` the inbox items that it took. Whoever holds the lease calls :meth:`lose` when it is no longer ours.
    """

    def __init__(
        self,
        queue: TurnQueue,
        log: SessionLog,
        claim: Claim,
        *,
        rules: WriterRules | None = None,
        ears: WriterEars | None = None,
        opened: Opened | None = None,
        claimed: Sequence[str] = (),
    ) -> None:
        self.opened = opened
        self._claimed = tuple(claimed)
        self._wrote = False
        self._log = log
        self._claim = claim
        self._rules = rules if rules is not None else WriterRules()
        self._ears = ears if ears is not None else WriterEars()
        self._commits = FencedCommits(queue, claim, self._rules, self._ears)
        self._queue = WriteQueue(self._rules.capacity)
        self._task: asyncio.Task[None] | None = None
        self._commits.seq = 0 if opened is None else opened.seq
        self._failure: TurnkeeperError | None = None
        self._end_failure: TurnkeeperError | None = None
        self._closing = False
        self._tried: tuple[Ending, tuple[Draft, ...]] | None = None
        self._carried: tuple[Append, ...] = ()
        self._closed: asyncio.Future[CloseReason] = asyncio.get_running_loop().create_future()

    # --- the turn ----------------------------------------------------------------------------------------------

    @property
    def session(self) -> SessionAddress:
        """The session that is written, and whose it is."""
        return SessionAddress(self._claim.session_id, self._claim.owner)

    @property
    def admitted(self) -> AdmittedTurn:
        """The turn as it was admitted; it must be open."""
        return _admitted(self._claim, self.opened, self._claimed)

    @property
    def reason(self) -> CloseReason | None:
        """Why the turn takes no more writes; None while it does."""
        return self._closed.result() if self._closed.done() else None

    async def open(
        self, drafts: Sequence[Draft], *, claims: Sequence[str] = (), **how: Unpack[Opening]
    ) -> Opened:
        """Open the claimed turn, or take it over; see :meth:`shared.turns.queue.TurnQueue.open`. Comes before all else."""
        self.opened = opened = await self._commits.open(drafts, claims=claims, **how)
        self._claimed = tuple(claims)
        return opened

    # --- writing -----------------------------------------------------------------------------------------------

    async def append(self, drafts: Sequence[Draft], *, framework: bool = False) -> None:
        """See the port."""
        drafts = tuple(drafts)
        if not framework:
            refuse_reserved([d.kind for d in drafts])
        items = [Append(part) for part in split(drafts)]
        self._wrote = self._wrote or bool(items)
        if self._is_inside():
            self._require_open()
            self._queue.put_at_once(items)
        else:
            await self._put(*items)

    async def commit(
        self, drafts: Sequence[Draft], *, stepped: bool = False, calls: Sequence[CallEntry] = ()
    ) -> int:
        """Store framework records and ledger lines in one commit, at its place in the order; return the log's seq.

        Appends queued just before share the commit. ``stepped`` marks a whole step (core 7).
        """
        drafts = tuple(drafts)
        check_commit_size(drafts)
        self._wrote = True
        answer: Answer[int] = Answer()
        await self._put(Append(drafts, stepped, tuple(calls), answer))
        return await answer.wait()

    async def write(self, op: Callable[[], Awaitable[T]]) -> T:
        """See the port. What ``op`` raises is its caller's alone: it fails no other write."""
        self._wrote = True
        answer: Answer[T] = Answer()
        await self._put(Run(op, answer))
        return await answer.wait()

    async def transact(self, decide: Decide, *, after: int = 0, kinds: Sequence[str] | None = None) -> Any:
        """See the port."""
        return await self.write(partial(self._transact, decide, after, kinds))

    async def flush(self) -> int:
        """See the port."""
        answer: Answer[int] = Answer()
        await self._put(Flush(answer))
        return await answer.wait()

    # --- ending ------------------------------------------------------------------------------------------------

    async def end(
        self, ending: Ending, drafts: Sequence[Draft] = (), *, calls: Sequence[CallEntry] = ()
    ) -> Ended:
        """See the port. The closing record is written here, after ``drafts``."""
        ending = _counting(ending) if self._wrote else ending
        self._tried = (ending, tuple(drafts))
        last = TurnEnded(reason=ending.outcome, code=ending.code, failure=ending.failure)
        return await self.close([*drafts, draft_of(last)], ending, calls=calls)

    async def close(
        self, drafts: Sequence[Draft], ending: Ending, *, calls: Sequence[CallEntry] = ()
    ) -> Ended:
        """Write the closing commit with exactly these records.

        Everything queued before is stored first, or with it. After records were lost the turn cannot end as completed
        or partial: that raises the latched failure.
        """
        drafts = tuple(drafts)
        check_commit_size(drafts)
        if self._failure is not None and _says_that_all_is_stored(ending):
            raise self._failure
        self._refuse_inside()
        self._require_writable()
        if self._closing:
            raise closed_error(self._claim, "ended")
        self._closing = True
        answer: Answer[Ended] = Answer()
        try:
            await self._queue.put([Close(drafts, ending, tuple(calls), answer)], self._require_writable)
        except BaseException:
            self._closing = False
            raise
        self._start()
        return await answer.wait()

    async def close_scope(self, error: BaseException | None, *, closing_s: float = CLOSING_S) -> bool:
        """Leave the turn's scope: what is queued is stored; what was not ended ends as unended, or interrupted if cancelled.

        An end that could not be stored is tried again as it was (TRN-62). Raises nothing of the store: what cannot be
        ended is logged, and False is answered: let go of it then.
        """
        try:
            async with asyncio.timeout(closing_s):
                if self._closing and self._task is not None:
                    await asyncio.wait([self._task])  # whoever ended it left before the answer
                if not self._closed.done():
                    tried = None if self._failure is not None else self._tried
                    await self.end(*(tried or (_scope_ending(error), ())))
        except (TurnkeeperError, TimeoutError) as failure:
            about = _about(self._claim, failure)
            _logger.warning("a turn could not be ended: %s", describe_error(failure), extra=about)
        is_closed = self._closed.done()
        await self.stop()
        return is_closed

    async def stop(self) -> None:
        """Take no more writes, and drop what is queued; nothing of it is stored later."""
        self._close("ended")
        task = self._task
        if task is not None and not self._is_inside():
            task.cancel()
            await asyncio.wait([task])

    def lose(self, reason: CloseReason) -> None:
        """Someone else closed the turn, or its lease is trusted no longer: nothing more is sent. The first reason stays."""
        if self._closed.done() or (reason == "ended" and self._closing):
            return  # our own end, whose answer is still on its way
        self._close(reason)
        if self._task is not None:
            self._task.cancel()

    async def closed(self) -> CloseReason:
        """See the port."""
        return await asyncio.shield(self._closed)

    # --- the writer task ---------------------------------------------------------------------------------------

    async def _put(self, *items: Item) -> None:
        self._refuse_inside()
        await self._queue.put(items, self._require_open)
        self._start()

    def _start(self) -> None:
        if self._task is None and len(self._queue):
            self._task = asyncio.create_task(self._run(), name=f"turn-writer:{self._claim.turn_id}")

    async def _run(self) -> None:
        try:
            while batch := self._queue.take():
                await self._store(batch)
        finally:
            self._task = None

    async def _store(self, batch: Sequence[Item]) -> None:
        try:
            match batch[-1]:
                case Append():
                    await self._store_records([item for item in batch if isinstance(item, Append)])
                case Close() as closing:
                    self._carried += tuple(item for item in batch if isinstance(item, Append))
                    await self._store_end(closing)
                case Flush(answer):
                    answer.give(self._commits.seq)
                case Run() as run:
                    await _perform(run)
        except asyncio.CancelledError:
            self._close("interrupted")  # unless there is a reason already
            _fail_items(batch, closed_error(self._claim, self._closed.result()))
            raise
        except Exception as error:
            _fail_items(batch, self._latch(error, is_end=isinstance(batch[-1], Close)))

    async def _store_records(self, items: Sequence[Append]) -> None:
        drafts = [draft for item in items for draft in item.drafts]
        last = items[-1]
        seq = await self._append(drafts, stepped=last.stepped, calls=last.calls)
        _answer_appends(items, seq)

    async def _append(self, drafts: Sequence[Draft], **how: Any) -> int:
        try:
            return await self._commits.append(drafts, **how)
        except RevisionConflict:
            raise
        except Exception as error:
            raise self._latch(error) from error

    async def _store_end(self, closing: Close) -> None:
        drafts = [*(draft for item in self._carried for draft in item.drafts), *closing.drafts]
        ended = await self._commits.end(drafts, closing.ending, closing.calls)
        _answer_appends(self._carried, ended.seq)
        closing.answer.give(ended)
        self._close("ended")

    async def _transact(self, decide: Decide, after: int, kinds: Sequence[str] | None) -> Any:
        until_known, address = self._commits.until_known, self.session
        read = partial(self._log.read, address.id, kinds=kinds)
        transaction = Transaction(
            head=lambda: until_known(partial(self._log.head, address.id, address.owner)),
            read=lambda after: until_known(partial(read, after=after)),
            append=lambda drafts, revision: self._append(drafts, expect=revision),
        )
        try:
            return await transaction.run(decide, after=after, retries=self._rules.retries)
        except SessionMissing as error:
            raise self._latch(closed_error(self._claim, "removed", error)) from error

    # --- failures ----------------------------------------------------------------------------------------------

    def _latch(self, error: Exception, *, is_end: bool = False) -> TurnkeeperError:
        """Keep the first failure, and store nothing that was queued after it; return what the callers are told.

        A failed end loses no records: they are stored with the end that is tried again, and nothing comes between.
        """
        if isinstance(error, FenceLost):
            reason: CloseReason = error.fields.get("reason", "interrupted")
            self._close(reason if reason in _REASONS else "interrupted")
            return closed_error(self._claim, self._closed.result(), error)
        failure = error if isinstance(error, TurnkeeperError) else _defect(self._claim, error)
        if is_end:
            self._closing, self._end_failure = False, failure
        elif self._failure is None:
            self._failure = failure
        for item in self._queue.drain():
            if isinstance(item, Close) and not _says_that_all_is_stored(item.ending):
                self._queue.put_at_once([item])
                continue
            self._closing = self._closing and not isinstance(item, Close)
            _fail_items([item], failure)
        return failure

    def _close(self, reason: CloseReason) -> None:
        if not self._closed.done():
            self._closed.set_result(reason)
            _fail_items(self._queue.drain(), closed_error(self._claim, reason))
            self._ears.on_close(reason)

    def _require_open(self) -> None:
        self._require_writable()
        if self._closing:
            raise closed_error(self._claim, "ended")
        if (failure := self._failure or self._end_failure) is not None:
            raise failure

    def _require_writable(self) -> None:
        if self._closed.done():
            raise closed_error(self._claim, self._closed.result())

    def _is_inside(self) -> bool:
        return self._task is not None and asyncio.current_task() is self._task

    def _refuse_inside(self) -> None:
        """A write that waits for its own place in the order would wait for ever."""
        if self._is_inside():
            raise InvalidInput(
                "a write waits for another of the same writer", field="op", bound="append only inside a write"
            )


def _counting(ending: Ending) -> Ending:
    """Return the ending of a turn that wrote: interrupted, its items were tried (INB-15)."""
    is_told = ending.outcome != "interrupted" or ending.counts_attempt is not None
    return ending if is_told else replace(ending, counts_attempt=True)


def closed_error(claim: Claim, reason: CloseReason, cause: BaseException | None = None) -> TurnClosed:
    """Return what a writer says once the turn takes no more writes."""
    turn, epoch = str(claim.turn_id), claim.fence.epoch
    error = TurnClosed(f"the turn was closed: {reason}", turn=turn, reason=reason, epoch=epoch)
    error.__cause__ = cause
    return error


async def _perform(run: Run) -> None:
    try:
        run.answer.give(await run.op())
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        run.answer.fail(error)  # its own doing, not ours
    except Exception as error:
        run.answer.fail(error)


def _answer_appends(items: Sequence[Append], seq: int) -> None:
    for item in items:
        if item.answer is not None:
            item.answer.give(seq)


def _fail_items(items: Sequence[Item], failure: TurnkeeperError) -> None:
    for item in items:
        if item.answer is not None:
            item.answer.fail(failure)


def _says_that_all_is_stored(ending: Ending) -> bool:
    return ending.outcome in ("completed", "partial")


def _scope_ending(error: BaseException | None) -> Ending:
    if isinstance(error, asyncio.CancelledError):
        return Ending("interrupted", "turn.interrupted")
    return Ending("failed", "turn.unended", None if error is None else describe_error(error))


def _defect(claim: Claim, error: Exception) -> SessionDefect:
    _logger.error("a write of a turn met a defect", extra=_about(claim, error), exc_info=error)
    defect = SessionDefect(describe_error(error), turn=str(claim.turn_id))
    defect.__cause__ = error
    return defect


def _about(claim: Claim, error: BaseException) -> Mapping[str, object]:
    code = error.code if isinstance(error, TurnkeeperError) else SessionDefect.code
    return {"turn": str(claim.turn_id), "session": claim.session_id, "code": code}


def _admitted(claim: Claim, opened: Opened | None, claimed: Sequence[str]) -> AdmittedTurn:
    number = claim.number if opened is None else opened.number
    if number is None:
        raise InvalidInput(
            "the turn is not open", field="turn", bound="an open turn", turn=str(claim.turn_id)
        )
    return AdmittedTurn(
        turn_id=claim.turn_id,
        number=number,
        run_id=claim.run_id,
        origin=origin_of(claim.origin),
        message=claim.message or {},
        key=claim.key,
        command=claim.command,
        claimed=claimed,
        meta=claim.meta or {},
        resumes=claim.resumes,
    )


def origin_of(origin: str) -> Origin:
    """Return a claim's origin as a record says it; raise ``SessionDefect`` for one that no record knows."""
    match origin:
        case "user" | "inbox" | "task":
            return origin
        case other:
            raise SessionDefect("a turn has an unknown origin", origin=other)
