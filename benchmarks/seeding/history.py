"""What is seeded: turns as the product stores them, of one step or of a body that answers by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shared.sessions.records import Draft
from shared.sessions.vocabulary import (
    MemoryMessage,
    Payload,
    RequestPrepared,
    StepEnded,
    StepStarted,
    StepUsage,
    TurnEnded,
    TurnReply,
    TurnStarted,
    UserMessage,
    draft_of,
)

#: Stand in the texts for what differs from turn to turn.
TURN: Final = "~turn~"
RUN: Final = "~run~"
SESSION: Final = "~session~"

INSTRUCTIONS: Final = "Answer in one sentence."
MODEL: Final = "scripted"


@dataclass(frozen=True, slots=True)
class SeededTurn:
    """The records of each turn; the first ``opening`` of them were the commit that opened it."""

    drafts: Sequence[Draft]
    opening: int


def one_step_turn(text: str) -> SeededTurn:
    """Return a turn of one model call: eight records; ``text`` is the message and the answer."""
    payloads: list[Payload] = [
        _started(text),
        StepStarted(run=0, step=0),
        RequestPrepared(
            run_id=RUN,
            run=0,
            step=0,
            system=INSTRUCTIONS,
            tools=[],
            tool_choice="auto",
            model={"name": MODEL},
            cache_key=SESSION,
            call_policy={},
            recipe={"name": "window", "version": 1, "since": f"{RUN}:0"},
            through=f"{RUN}:0",
        ),
        MemoryMessage(entry=f"{RUN}:1", run_id=RUN, run=0, step=0, text=text),
        StepUsage(run=0, step=0, model=MODEL, usage={"input_tokens": 40, "output_tokens": 16}),
        StepEnded(run=0, step=0, status="completed"),
        TurnReply(outcome="completed", text=text, step=0),
        TurnEnded(reason="completed"),
    ]
    return SeededTurn([draft_of(payload) for payload in payloads], opening=3)


def brief_turn(text: str) -> SeededTurn:
    """Return a turn whose body answered without a model: the three records that no turn is without."""
    payloads = [_started(text), TurnReply(outcome="completed", text=text), TurnEnded(reason="completed")]
    return SeededTurn([draft_of(payload) for payload in payloads], opening=1)


def _started(text: str) -> TurnStarted:
    return TurnStarted(
        turn_id=TURN, run_id=RUN, entry=f"{RUN}:0", origin="user", user_message=UserMessage(text=text)
    )
