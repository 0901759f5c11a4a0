"""What an attempt does next: one pure function over what the log says of the turn (core 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from shared.agents.turn import RunResult
from shared.domain.errors import TurnkeeperError, error_of
from shared.sessions.records import Record
from shared.sessions.vocabulary import (
    MemoryMessage,
    Payload,
    RequestPrepared,
    RunEnded,
    StepResponse,
    StepUsage,
    TurnEnded,
    TurnReply,
    TurnStarted,
    read_stored,
)
from shared.sessions.vocabulary_around import BackgroundTaskResult
from workers.turns.progress import sum_usage


@dataclass(frozen=True, slots=True)
class TurnLog:
    """A turn as its own records tell it.

    ``results`` are its runs that ended, in order: what each came to, or the error that it raised. ``run`` is the ordinal
    of the run after them; ``steps`` (whole ones), ``run_calls``, ``response`` and ``header`` are that run's. ``calls``,
    ``entries`` and ``contexts`` (context entries) count over the turn.
    """

    started: TurnStarted | None = None
    ended: TurnEnded | None = None
    reply: TurnReply | None = None
    result: BackgroundTaskResult | None = None
    run: int = 0
    steps: int = 0
    run_calls: int = 0
    calls: int = 0
    entries: int = 1
    contexts: int = 0
    response: StepResponse | None = None
    header: RequestPrepared | None = None
    usages: tuple[StepUsage, ...] = ()
    results: tuple[RunResult | TurnkeeperError, ...] = ()


@dataclass(frozen=True, slots=True)
class Open:
    """Nothing of the turn is stored: open it."""


@dataclass(frozen=True, slots=True)
class AskModel:
    """Call the model for this step; ``prepared`` says that its header is stored already."""

    step: int
    prepared: bool


@dataclass(frozen=True, slots=True)
class SettleCalls:
    """The step's response is stored: never ask again; settle its calls by the ledger."""

    response: StepResponse


@dataclass(frozen=True, slots=True)
class EndWithReply:
    """A reply is stored: end the turn with its outcome, nothing runs."""

    reply: TurnReply


@dataclass(frozen=True, slots=True)
class EndWithResult:
    """A task's result is stored: end the turn as it says, nothing runs (TSK-18)."""

    result: BackgroundTaskResult


@dataclass(frozen=True, slots=True)
class AlreadyEnded:
    """The log says that the turn ended: only its row is to be finished."""

    ended: TurnEnded


#: Kinds of which the last one counts, and where it is kept.
_WHOLE: Final[Mapping[str, tuple[str, type[Payload]]]] = {
    "turn.started": ("started", TurnStarted),
    "turn.ended": ("ended", TurnEnded),
    "turn.reply": ("reply", TurnReply),
    "task.result": ("result", BackgroundTaskResult),
    "request.prepared": ("header", RequestPrepared),
    "step.response": ("response", StepResponse),
}

NextAction = Open | AskModel | SettleCalls | EndWithReply | EndWithResult | AlreadyEnded


def read_turn(records: Iterable[Record]) -> TurnLog:
    """Fold a turn's own records, in seq order. Raises ``CorruptRecord`` for one that does not decode."""
    log, text = TurnLog(), ""
    for record in records:
        match record.kind:
            case kind if kind in _WHOLE:
                name, schema = _WHOLE[kind]
                last: dict[str, Any] = {name: read_stored(schema, record)}
                log = replace(log, **last)
            case "step.usage":
                log = replace(log, usages=(*log.usages, read_stored(StepUsage, record)))
            case "memory.section":
                log = replace(log, entries=log.entries + 1, contexts=log.contexts + 1)
            case "memory.message":
                message = read_stored(MemoryMessage, record)
                log, text = _after_step(log, message), message.text
            case "run.ended":
                log = _after_run(log, read_stored(RunEnded, record), text)
    return log


def is_unsettled(log: TurnLog) -> bool:
    """Say whether the run's last stored response has calls whose step is not whole yet."""
    return log.response is not None and log.response.step == log.steps


def next_action(log: TurnLog) -> NextAction:
    """Decide, in this order: ended; a task's result or a reply; a stored response; not started; the next step."""
    if log.ended is not None:
        return AlreadyEnded(log.ended)
    if log.result is not None:
        return EndWithResult(log.result)
    if log.reply is not None:
        return EndWithReply(log.reply)
    if log.response is not None and is_unsettled(log):
        return SettleCalls(log.response)
    if log.started is None:
        return Open()
    return AskModel(log.steps, prepared=log.header is not None and log.header.step == log.steps)


def _after_step(log: TurnLog, message: MemoryMessage) -> TurnLog:
    calls = len(message.calls)
    return replace(
        log,
        steps=message.step + 1,
        run_calls=log.run_calls + calls,
        calls=log.calls + calls,
        entries=log.entries + 1 + calls,
    )


def _after_run(log: TurnLog, ended: RunEnded, text: str) -> TurnLog:
    """Close a run: the next begins without steps. Calls of a step that never became whole keep their numbers."""
    unsettled = log.response.calls if is_unsettled(log) and log.response is not None else ()
    usage = sum_usage([u.usage for u in log.usages if u.run == ended.run])
    result: RunResult | TurnkeeperError
    if ended.outcome == "failed":
        result = error_of(ended.reason, ended.failure or "")
    else:
        result = RunResult(ended.outcome, ended.reason, text, ended.run, ended.step, usage)
    return replace(
        log,
        run=ended.run + 1,
        steps=0,
        run_calls=0,
        calls=log.calls + len(unsettled),
        response=None,
        header=None,
        results=(*log.results, result),
    )
