"""What an attempt does next: one pure function over what the log says of the turn (core 7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.sessions.records import Record
from shared.sessions.vocabulary import (
    MemoryMessage,
    RequestPrepared,
    StepResponse,
    StepUsage,
    TurnEnded,
    TurnReply,
    TurnStarted,
    read_stored,
)


@dataclass(frozen=True, slots=True)
class TurnLog:
    """A turn as its own records tell it. ``steps`` are whole ones; ``calls`` counts the calls of those."""

    started: TurnStarted | None = None
    ended: TurnEnded | None = None
    reply: TurnReply | None = None
    steps: int = 0
    calls: int = 0
    response: StepResponse | None = None
    header: RequestPrepared | None = None
    usages: tuple[StepUsage, ...] = field(default=())


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
class AlreadyEnded:
    """The log says that the turn ended: only its row is to be finished."""

    ended: TurnEnded


NextAction = Open | AskModel | SettleCalls | EndWithReply | AlreadyEnded


def read_turn(records: Iterable[Record]) -> TurnLog:
    """Fold a turn's own records, in seq order. Raises ``CorruptRecord`` for one that does not decode."""
    started = ended = reply = response = header = None
    steps = calls = 0
    usages: list[StepUsage] = []
    for record in records:
        match record.kind:
            case "turn.started":
                started = read_stored(TurnStarted, record)
            case "turn.ended":
                ended = read_stored(TurnEnded, record)
            case "turn.reply":
                reply = read_stored(TurnReply, record)
            case "request.prepared":
                header = read_stored(RequestPrepared, record)
            case "step.response":
                response = read_stored(StepResponse, record)
            case "step.usage":
                usages.append(read_stored(StepUsage, record))
            case "memory.message":
                message = read_stored(MemoryMessage, record)
                steps, calls = message.step + 1, calls + len(message.calls)
            case _:
                continue
    return TurnLog(started, ended, reply, steps, calls, response, header, tuple(usages))


def next_action(log: TurnLog) -> NextAction:
    """Decide, in this order: ended; replied; a stored response; not started; the next step."""
    if log.ended is not None:
        return AlreadyEnded(log.ended)
    if log.reply is not None:
        return EndWithReply(log.reply)
    if log.response is not None and log.response.step == log.steps:
        return SettleCalls(log.response)
    if log.started is None:
        return Open()
    return AskModel(log.steps, prepared=log.header is not None and log.header.step == log.steps)
