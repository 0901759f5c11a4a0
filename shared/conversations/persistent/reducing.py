"""Folding the records of whole turns into what was kept. Pure: load, replay and check all see the same state (THR-93)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from shared.conversations.messages import ConversationMessage
from shared.domain.errors import CorruptRecord
from shared.domain.ids import TurnId
from shared.sessions.records import Record
from shared.sessions.vocabulary import read_stored
from shared.sessions.vocabulary_whole import ModelCompleted, TurnCompleted, UserInputRecorded


@dataclass(frozen=True, slots=True)
class SourceTurn:
    """A turn as it was kept: its source messages, whatever later turns are shown of it (THR-54)."""

    turn_id: TurnId
    instructions: str
    message: ConversationMessage
    model: str
    tools: Sequence[Mapping[str, Any]]
    messages: Sequence[ConversationMessage]
    outcome: str
    output: str | None
    usage: Mapping[str, int]
    seq: int

    @property
    def source(self) -> tuple[ConversationMessage, ...]:
        """The input and the messages, in order."""
        return (self.message, *self.messages)


@dataclass(frozen=True, slots=True)
class RetainedHistory:
    """What a reader has folded: the context that the model is shown next, and the turns it has read.

    ``since_snapshot`` counts the turns behind the last snapshot of the context. The other fields are a turn whose
    records are not all read yet; a log is never cut there, because a turn is appended whole.
    """

    context: tuple[ConversationMessage, ...] = ()
    turns: tuple[SourceTurn, ...] = ()
    since_snapshot: int = 0
    input: UserInputRecorded | None = field(default=None, repr=False)
    model: ModelCompleted | None = field(default=None, repr=False)


def reduce_record(state: RetainedHistory, record: Record) -> RetainedHistory:
    """Return the state after one record; records of other kinds change nothing.

    Raises ``CorruptRecord`` that names session and seq for one that does not decode, or stands where it cannot.
    """
    match record.kind:
        case "history.user-input":
            _require(state.input is None and state.model is None, record)
            return replace(state, input=read_stored(UserInputRecorded, record))
        case "history.model-completed":
            model = read_stored(ModelCompleted, record)
            _require(state.model is None and _is_of(state.input, model.turn_id), record)
            return replace(state, model=model)
        case "history.turn-completed":
            end = read_stored(TurnCompleted, record)
            _require(_is_of(state.input, end.turn_id) and _is_of(state.model, end.turn_id), record)
            return _completed(state, end, record)
        case _:
            return state


def fold_records(records: Iterable[Record], start: RetainedHistory | None = None) -> RetainedHistory:
    """Fold records, in seq order, onto ``start``."""
    state = start if start is not None else RetainedHistory()
    for record in records:
        state = reduce_record(state, record)
    return state


def _completed(state: RetainedHistory, end: TurnCompleted, record: Record) -> RetainedHistory:
    asked, said = state.input, state.model
    assert asked is not None and said is not None, "the caller has checked both"
    turn = SourceTurn(
        turn_id=TurnId(UUID(end.turn_id)),
        instructions=asked.instructions,
        message=_decoded(asked.message, record),
        model=said.model,
        tools=tuple(said.tools),
        messages=tuple(_decoded(message, record) for message in said.messages),
        outcome=end.outcome,
        output=end.output,
        usage=end.usage,
        seq=record.seq,
    )
    turns = (*state.turns, turn)
    if end.context is None:
        return RetainedHistory((*state.context, *turn.source), turns, state.since_snapshot + 1)
    return RetainedHistory(tuple(_decoded(message, record) for message in end.context), turns)


def _decoded(message: Mapping[str, Any], record: Record) -> ConversationMessage:
    try:
        return ConversationMessage.model_validate_json(json.dumps(message))
    except ValidationError as error:
        where = {"session": record.session_id, "seq": record.seq, "kind": record.kind}
        raise CorruptRecord("a message of a whole turn does not decode", **where) from error


def _is_of(payload: UserInputRecorded | ModelCompleted | None, turn_id: str) -> bool:
    return payload is not None and payload.turn_id == turn_id


def _require(fits: bool, record: Record) -> None:
    if not fits:
        raise CorruptRecord(
            "a record of a whole turn stands alone",
            session=record.session_id,
            seq=record.seq,
            kind=record.kind,
        )
