"""The steps of a turn's end, as functions over its parts: settle, finish, guard (TRN-139 to TRN-144)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from shared.agents import TurnOutcome, TurnResult, TurnTasks
from shared.domain.errors import code_of
from shared.host.endings import HostFailure, call_host

_log: Final = logging.getLogger(__name__)

#: How long a failed turn waits for background reactions to its reply (TRN-26).
FAILED_DRAIN_S: Final = 10.0


class Reactions(Protocol):
    """Background reactions to the turn's events: the bus's place."""

    @property
    def pending(self) -> int:
        """Reactions that wait or are under way."""
        ...

    async def drain(self) -> None:
        """Wait until all that are pending now are done. Raises the first failure of one."""
        ...


class NoReactions:
    """Nobody reacts to the turn."""

    @property
    def pending(self) -> int:
        """See the port."""
        return 0

    async def drain(self) -> None:
        """See the port."""


class Recorder(Protocol):
    """Where the one reply goes; :class:`workers.turns.body.memory.TurnMemory`."""

    async def persist_reply(self, outcome: TurnOutcome) -> None:
        """Record the reply, once."""
        ...


Flush = Callable[[], Awaitable[object]]


async def settle_turn(tasks: TurnTasks, reactions: Reactions) -> None:
    """Join the tasks and drain the reactions until both are quiet: either may bring about the other.

    Raises what a task or a reaction raised, as the host's.
    """
    while tasks.pending or reactions.pending:
        await call_host(tasks.join)
        await call_host(reactions.drain)


async def run_body(
    body: Callable[[], Awaitable[TurnOutcome]], tasks: TurnTasks, reactions: Reactions
) -> tuple[TurnOutcome, bool]:
    """Run a body and settle what it left; return its outcome, and whether this task was cancelled after it returned.

    Such a cancellation cuts the settling, not the outcome: what the body returned is recorded all the same (TRN-24).
    """
    outcome: object = await call_host(body)
    if not isinstance(outcome, TurnOutcome):
        wrong = TypeError(f"a turn's body must return a TurnOutcome, not {type(outcome).__name__}")
        raise HostFailure(wrong)
    try:
        await settle_turn(tasks, reactions)
    except asyncio.CancelledError:
        return outcome, True
    return outcome, False


async def finish_turn(
    outcome: TurnOutcome,
    recorder: Recorder,
    reactions: Reactions,
    flush: Flush,
    *,
    drain: bool = True,
    drain_s: float | None = None,
) -> None:
    """Record the reply, drain the reactions to it, flush.

    Reply and flush happen even when this task is cancelled meanwhile: only the drain is cut, and the cancellation is
    raised in the end. ``drain_s`` bounds the drain in seconds.
    """
    cancelled = await _whole(recorder.persist_reply(outcome))
    try:
        if drain and not cancelled:
            async with asyncio.timeout(drain_s):
                await call_host(reactions.drain)
    except TimeoutError:
        _log.warning("reactions to a turn's reply were left after %g s", drain_s)
    except asyncio.CancelledError:
        cancelled = True
    finally:
        cancelled = await _whole(flush()) or cancelled
    if cancelled:
        raise asyncio.CancelledError


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnds:
    """What the end of a turn needs; parts come by argument."""

    tasks: TurnTasks
    recorder: Recorder
    reactions: Reactions
    flush: Flush
    usage: Callable[[], Mapping[str, int]]


async def guard_turn(body: Callable[[], Awaitable[TurnOutcome]], ends: TurnEnds) -> TurnResult:
    """Run a body, settle what it left, and record its one reply: as returned, or failed with the cause kept.

    Once the body returned, its reply is recorded also when this task is cancelled then; the cancellation is raised
    after. A cancelled turn waits for no reaction to its failed reply, a failed one ten seconds at most; a failure of
    finishing is logged only. Tasks that still run are cancelled before this returns.
    """
    try:
        outcome, cancelled = await run_body(body, ends.tasks, ends.reactions)
    except BaseException as error:
        await ends.tasks.cancel()
        await _finish_failed(ends, drain=not isinstance(error, asyncio.CancelledError))
        raise
    try:
        await finish_turn(outcome, ends.recorder, ends.reactions, ends.flush, drain=not cancelled)
    finally:
        await ends.tasks.cancel()
    if cancelled:
        raise asyncio.CancelledError
    return TurnResult(outcome.outcome, outcome.reply, ends.usage())


async def _finish_failed(ends: TurnEnds, *, drain: bool) -> None:
    failed = TurnOutcome("failed")
    try:
        await finish_turn(
            failed, ends.recorder, ends.reactions, ends.flush, drain=drain, drain_s=FAILED_DRAIN_S
        )
    except (Exception, asyncio.CancelledError) as error:  # the turn has its own cause, which is raised
        _log.warning("a failed turn could not be finished: %s", error, extra={"code": code_of(error)})


async def _whole(work: Awaitable[object]) -> bool:
    """Await work to its end, also when this task is cancelled meanwhile; say whether it was. Raises what the work raised."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = cancelled or not task.cancelled()
    task.result()
    return cancelled
