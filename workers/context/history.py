"""What of a session's earlier turns a turn shows: the newest whole turns that fit its budget, read backwards.

1. A turn is shown whole or not at all: calls and results stay together (law 11).
2. The cut depends on the log before the turn, the agent and the turn's message only: every attempt and every step of the
   turn shows the same.
3. What is read is bounded by the budget and by :data:`HISTORY_MAX_RECORDS`, never by the log's length.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from shared.agents import Agent
from shared.models.types import SystemMessage, UserMessage
from shared.sessions.records import Record
from shared.sessions.vocabulary import TurnStarted, read_stored
from workers.context.estimates import estimate_messages, estimate_tools
from workers.context.request import declared_tools
from workers.context.transcript import Transcript, fold

#: Memory records that one statement reads.
HISTORY_PAGE_RECORDS: Final = 256
#: Memory records that are read of earlier turns at most.
HISTORY_MAX_RECORDS: Final = 4 * HISTORY_PAGE_RECORDS

#: Gives the memory records before a seq (None: the newest), last first; fewer than a page where the log begins.
ReadBack = Callable[[int | None], Awaitable[Sequence[Record]]]


def room_for_history(agent: Agent, message: str) -> int:
    """Return the tokens that earlier turns may have: the budget less instructions, tools and the turn's own message."""
    own = estimate_messages([SystemMessage(agent.instructions), UserMessage(message)])
    return agent.budget_tokens - own - estimate_tools(declared_tools(agent))


async def read_history(
    read_back: ReadBack, *, room_tokens: int, before: int | None = None, without_turn: int | None = None
) -> Transcript:
    """Read the newest whole turns that fit, ``before`` a seq, and not the turn of a number.

    A record in them that does not decode fails (SES-160).
    """
    window = _Window(room_tokens)
    seen = 0
    while not window.is_full and seen < HISTORY_MAX_RECORDS:
        page = await read_back(before)
        for record in page:
            if without_turn is None or record.turn != without_turn:
                window.add(record)
        seen += len(page)
        if len(page) < HISTORY_PAGE_RECORDS:
            window.close()
            break
        before = page[-1].seq
    return window.transcript


class _Window:
    """Takes memory records, last first, and keeps whole turns while there is room."""

    def __init__(self, room_tokens: int) -> None:
        self.transcript = Transcript()
        self.is_full = room_tokens <= 0
        self._room = room_tokens
        self._turn: list[Record] = []

    def add(self, record: Record) -> None:
        """Take the record before the last one taken; nothing more once the window is full."""
        if self.is_full:
            return
        self._turn.append(record)
        if record.kind == "turn.started":
            self.close()

    def close(self) -> None:
        """Show the turn whose records were collected, if there is room for it."""
        if self.is_full or not self._turn:
            return
        records, self._turn = self._turn, []
        if not _is_kept(records):
            return
        turn = fold(reversed(records))
        self._room -= estimate_messages(turn.messages)
        self.is_full = self._room < 0
        if not self.is_full:
            self.transcript = turn.followed_by(self.transcript)


def _is_kept(turn: Sequence[Record]) -> bool:
    """Say whether a turn's records, last first, are remembered: a whole turn's without its reply are not (THR-58)."""
    if turn[-1].kind != "turn.started" or any(record.kind == "turn.reply" for record in turn):
        return True
    return read_stored(TurnStarted, turn[-1]).history != "whole-turn"
