"""What one turn in a caller's own process may be given beside its message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.agents.input import TurnInputHook
from shared.conversations import ConversationMessage, OnHistory
from shared.domain.ids import SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """Options of a turn; what an application does not carry it refuses, before any model or tool runs.

    ``history`` begins a new session with these messages, or extends the recorded ones (THR-80); an empty one begins a
    session under an id of the caller's. ``on_history`` observes each update after it is recorded. ``input`` lets
    steering and follow-ups in while the turn runs. ``durability``, ``subagent``, ``resume`` and ``resume_usage`` belong
    to hosts with a journal.
    """

    session_id: SessionId | None = None
    history: Sequence[ConversationMessage] | None = None
    on_history: OnHistory | None = None
    input: TurnInputHook | None = None
    durability: Any = None
    subagent: Any = None
    resume: Any = None
    resume_usage: Any = None

    def given(self, *names: str) -> tuple[str, ...]:
        """Return those of these options that were given, in this order."""
        return tuple(name for name in names if getattr(self, name) is not None)
