"""What the records of a whole turn hold: input, messages and end, appended together once the turn succeeded (THR-97).

Such a turn is no turn of the queue: its records have no turn number, and nothing of one that failed is in the log.
A message is the JSON object of one native message, as the model was shown it or said it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from shared.sessions.payloads import Payload


class UserInputRecorded(Payload):
    """``history.user-input``: what a turn was asked, and the instructions as they were evaluated for it (THR-53)."""

    turn_id: str
    run_id: str
    instructions: str
    message: dict[str, Any]


class ModelCompleted(Payload):
    """``history.model-completed``: the messages that the turn added to the conversation, in order, calls with results.

    ``tools`` are the declarations that its calls were made under.
    """

    turn_id: str
    model: str
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]


class TurnCompleted(Payload):
    """``history.turn-completed``: how the turn ended, and what the model is shown next.

    ``context`` None: what it was shown before, then the turn's input and messages. A list is that context as it stands
    (THR-63): a snapshot, which no older record is needed for.
    """

    turn_id: str
    outcome: Literal["completed", "partial"]
    output: str | None = None
    usage: dict[str, int]
    context: list[dict[str, Any]] | None = None


SCHEMAS_WHOLE: Final[dict[str, type[Payload]]] = {
    "history.user-input": UserInputRecorded,
    "history.model-completed": ModelCompleted,
    "history.turn-completed": TurnCompleted,
}
#: The three records of each whole turn, in the order in which they stand.
WHOLE_TURN_KINDS: Final = tuple(SCHEMAS_WHOLE)
