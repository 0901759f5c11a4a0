"""A whole turn as it is kept: its value, its three records, and the bounds of each part (THR-50, THR-61, THR-97)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from shared.conversations.messages import ConversationMessage, check_whole
from shared.domain.bounds import check_json
from shared.domain.canonical import canonical_json
from shared.domain.errors import HistoryEncoding, HistoryFull, InputTooLarge, InvalidInput
from shared.domain.ids import RunId, TurnId
from shared.sessions.records import Draft
from shared.sessions.vocabulary import draft_of
from shared.sessions.vocabulary_whole import ModelCompleted, TurnCompleted, UserInputRecorded

#: The most that the input, the output, the messages and the context of a turn may have, each, as canonical JSON.
WHOLE_TURN_MAX_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTurn:
    """A turn that succeeded. ``messages`` are those it added after its input, every call followed by its result.

    ``context`` is what the model is shown next; None: what it was shown before, then ``message`` and ``messages``.
    """

    turn_id: TurnId
    run_id: RunId
    instructions: str
    message: ConversationMessage
    model: str
    messages: Sequence[ConversationMessage]
    tools: Sequence[Mapping[str, Any]] = ()
    outcome: Literal["completed", "partial"] = "completed"
    output: str | None = None
    usage: Mapping[str, int]
    context: Sequence[ConversationMessage] | None = None


def drafts_of(
    turn: WholeTurn, context: Sequence[ConversationMessage], *, is_snapshot: bool
) -> tuple[Draft, ...]:
    """Return the turn's three records, ``context`` being what the model is shown next; a snapshot holds it.

    Raises ``HistoryFull`` that names the part over its bound, ``HistoryEncoding`` for what cannot be stored, or for calls
    without their results.
    """
    check_whole(turn.messages)
    check_whole(context)
    check_message("input", turn.message)
    check_size("output", encoded_bytes(turn.output, field="output"))
    check_messages("messages", turn.messages)
    check_messages("context", context)
    payloads = (
        UserInputRecorded(
            turn_id=str(turn.turn_id),
            run_id=turn.run_id,
            instructions=turn.instructions,
            message=encode_message(turn.message),
        ),
        ModelCompleted(
            turn_id=str(turn.turn_id),
            model=turn.model,
            tools=[dict(tool) for tool in turn.tools],
            messages=[encode_message(message) for message in turn.messages],
        ),
        TurnCompleted(
            turn_id=str(turn.turn_id),
            outcome=turn.outcome,
            output=turn.output,
            usage=dict(turn.usage),
            context=[encode_message(message) for message in context] if is_snapshot else None,
        ),
    )
    try:
        return tuple(draft_of(payload) for payload in payloads)
    except InputTooLarge as error:
        raise HistoryFull(error.message, **error.fields) from error
    except InvalidInput as error:
        raise HistoryEncoding(error.message, **error.fields) from error


def check_message(name: str, message: ConversationMessage) -> None:
    """Raise ``HistoryFull`` when a message is over its bound, ``HistoryEncoding`` when it cannot be stored."""
    check_size(name, len(message.encoded))


def check_messages(name: str, messages: Sequence[ConversationMessage]) -> None:
    """Raise ``HistoryFull`` when messages, as one JSON array, are over their bound."""
    check_size(name, messages_bytes(messages))


def messages_bytes(messages: Sequence[ConversationMessage]) -> int:
    """Return the bytes of messages as one canonical JSON array."""
    return 2 + sum(len(message.encoded) for message in messages) + max(0, len(messages) - 1)


def check_size(name: str, size: int) -> None:
    """Raise ``HistoryFull`` for a part of a turn that is over its bound."""
    if size > WHOLE_TURN_MAX_BYTES:
        raise HistoryFull(
            f"the turn's {name} of {size} bytes is larger than {WHOLE_TURN_MAX_BYTES}",
            field=name,
            bound=f"<= {WHOLE_TURN_MAX_BYTES} bytes",
        )


def encoded_bytes(value: Any, *, field: str) -> int:
    """Return the bytes of a value's canonical JSON; raises ``HistoryEncoding`` when it is no storable JSON."""
    try:
        check_json(value, field=field)
    except InputTooLarge as error:
        raise HistoryFull(error.message, **error.fields) from error
    except InvalidInput as error:
        raise HistoryEncoding(error.message, **error.fields) from error
    return len(canonical_json(value).encode())


def encode_message(message: ConversationMessage) -> dict[str, Any]:
    """Return a message as a record holds it."""
    return message.model_dump(mode="json")
