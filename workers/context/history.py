"""What of a session's earlier turns a turn shows: the newest whole turns that fit its budget, read backwards.

1. A turn is shown whole or not at all: calls and results stay together (law 11).
2. The cut depends on the log before the turn, the agent and the turn's message only: every attempt and every step of the
   turn shows the same.
3. What is read is bounded by the budget and by :data:`HISTORY_MAX_RECORDS`, never by the log's length.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Final

from shared.agents import Agent
from shared.models.types import AssistantMessage, Message, SystemMessage, UserMessage
from shared.sessions.records import Record
from shared.sessions.vocabulary import TurnStarted, read_stored
from workers.context.estimates import estimate_messages, estimate_tools
from workers.context.request import declared_tools
from workers.context.transcript import Transcript, fold

#: Memory records that one statement reads.
HISTORY_PAGE_RECORDS: Final = 256
#: Memory records that are read of earlier turns at most.
HISTORY_MAX_RECORDS: Final = 4 * HISTORY_PAGE_RECORDS
#: What a turn, and a message or call, take of memory beside their text.
_TURN_BYTES: Final = 512
_MESSAGE_BYTES: Final = 256

#: Gives the memory records before a seq (None: the newest), last first; fewer than a page where the log begins.
ReadBack = Callable[[int | None], Awaitable[Sequence[Record]]]


def room_for_history(agent: Agent, message: str) -> int:
    """Return the tokens that earlier turns may have: the budget less instructions, tools and the turn's own message."""
    own = estimate_messages([SystemMessage(agent.instructions), UserMessage(message)])
    return agent.budget_tokens - own - estimate_tools(declared_tools(agent))


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A turn as later ones show it: its messages, the tokens that they take, and how many memory records it is made of.

    ``size_bytes`` is an estimate of what it holds of this process's memory, and not below that.
    """

    transcript: Transcript
    tokens: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class History:
    """The newest turns of a log, newest first. ``is_complete``: no turn before them is shown, whatever the room."""

    turns: tuple[PastTurn, ...] = ()
    is_complete: bool = False

    def shown(self, room_tokens: int) -> Transcript | None:
        """Return the newest whole turns that fit; None where turns before these would have to be looked at."""
        fitting = self._fitting(room_tokens)
        if fitting is None and not self.is_complete:
            return None
        return _joined(self.turns[:fitting])

    def followed_by(self, turn: PastTurn, *, room_tokens: int) -> History:
        """Return the history behind one more turn, without those that are not looked at where there is so much room."""
        longer = History((turn, *self.turns), self.is_complete)
        fitting = longer._fitting(room_tokens)
        # The first that does not fit stays: it says that nothing before it is shown.
        kept = longer.turns if fitting is None else longer.turns[: fitting + 1]
        return History(kept, self.is_complete and len(kept) == len(longer.turns))

    def _fitting(self, room_tokens: int) -> int | None:
        """Return how many turns fit; None when all of them do, so that the next one may."""
        if room_tokens <= 0:
            return 0
        tokens, records = room_tokens, HISTORY_MAX_RECORDS
        for n, turn in enumerate(self.turns):
            tokens -= turn.tokens
            records -= turn.records
            if tokens < 0 or records < 0:
                return n
        return None


async def read_history(
    read_back: ReadBack, *, room_tokens: int, before: int | None = None, without_turn: int | None = None
) -> Transcript:
    """Read the newest whole turns that fit, ``before`` a seq, and not the turn of a number.

    A record in them that does not decode fails (SES-160).
    """
    history = await read_turns(read_back, room_tokens=room_tokens, before=before, without_turn=without_turn)
    return history.shown(room_tokens) or Transcript()


async def read_turns(
    read_back: ReadBack, *, room_tokens: int, before: int | None = None, without_turn: int | None = None
) -> History:
    """Read the newest turns back to the first that does not fit, as :func:`read_history` shows them: that is known then."""
    reading = _Reading(room_tokens)
    seen = 0
    while not reading.is_full and seen < HISTORY_MAX_RECORDS:
        page = await read_back(before)
        for record in page:
            if without_turn is None or record.turn != without_turn:
                reading.add(record)
        seen += len(page)
        if len(page) < HISTORY_PAGE_RECORDS:
            reading.close()
            break
        before = page[-1].seq
    return History(tuple(reading.turns), is_complete=not reading.is_full)


def past_turn(records: Sequence[Record]) -> PastTurn:
    """Return the turn that memory records make, in the log's order."""
    transcript = fold(records) if _is_kept(records) else Transcript()
    messages = transcript.messages
    size_bytes = _TURN_BYTES + sum(map(_message_bytes, messages))
    return PastTurn(transcript, estimate_messages(messages), len(records), size_bytes)


class _Reading:
    """Takes memory records, last first, and makes whole turns of them while there is room."""

    def __init__(self, room_tokens: int) -> None:
        self.turns: list[PastTurn] = []
        self.is_full = room_tokens <= 0
        self._room = room_tokens
        self._turn: list[Record] = []

    def add(self, record: Record) -> None:
        """Take the record before the last one taken; nothing more behind the first turn that does not fit."""
        if self.is_full:
            return
        self._turn.append(record)
        if record.kind == "turn.started":
            self.close()

    def close(self) -> None:
        """Make a turn of the records that were collected."""
        if self.is_full or not self._turn:
            return
        turn = past_turn(self._turn[::-1])
        self._turn = []
        self.turns.append(turn)
        self._room -= turn.tokens
        self.is_full = self._room < 0


def _message_bytes(message: Message) -> int:
    calls = message.calls if isinstance(message, AssistantMessage) else ()
    called = sum(_MESSAGE_BYTES + getsizeof(call.arguments) for call in calls)
    return _MESSAGE_BYTES + getsizeof(message.text) + called


def _joined(turns: Sequence[PastTurn]) -> Transcript:
    """Return turns, newest first, as one transcript."""
    shown = [turn.transcript for turn in turns]
    return Transcript(
        tuple(message for transcript in reversed(shown) for message in transcript.messages),
        through=next((transcript.through for transcript in shown if transcript.through), ""),
        since=next((transcript.since for transcript in reversed(shown) if transcript.since), ""),
    )


def _is_kept(turn: Sequence[Record]) -> bool:
    """Say whether a turn's records are remembered: a whole turn's without its reply are not (THR-58)."""
    if turn[0].kind != "turn.started" or any(record.kind == "turn.reply" for record in turn):
        return True
    return read_stored(TurnStarted, turn[0]).history != "whole-turn"
