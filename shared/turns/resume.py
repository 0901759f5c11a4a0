"""Which turn a new user's turn may continue: one pure rule over a session's turns (RSM-02 to 15).

The twin judges with it; ``turn_resume_refusal_v1`` of migration 0003 says the same from the last turns alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeGuard

from shared.domain.errors import NotResumable
from shared.domain.ids import SessionId
from shared.sessions.records import Record
from shared.turns.queue import Admission, Outcome

#: Why a turn cannot be resumed.
ResumeRefusal = Literal["missing", "inbox", "superseded", "finished"]

#: A turn's number is an ``int`` of 32 bits wherever it is stored.
NUMBER_MAX: Final = 2**31 - 1
#: How a turn must have ended to be resumed.
CONTINUABLE: Final = frozenset({"cancelled", "interrupted"})
#: How a resume ended that leaves the turn it continued to be resumed again.
WITHOUT_ANSWER: Final = CONTINUABLE | {"failed"}


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A turn that opened in a session's own log. ``outcome`` is None until it ended; ``resumes`` is a turn's number."""

    number: int
    origin: str = "user"
    outcome: Outcome | None = None
    resumes: int | None = None


def is_turn_number(value: object) -> TypeGuard[int]:
    """Say whether a value could be a turn's number: a whole number of at least 1, no bool, no float, no text."""
    return type(value) is int and 1 <= value <= NUMBER_MAX


def resume_refusal(n: object, turns: Iterable[PastTurn]) -> ResumeRefusal | None:
    """Say why turn ``n`` cannot be resumed after these turns of its session's own log, or None when it can.

    ``turns`` may come in any order. What is unfinished stands in nobody's way here, turn ``n`` included, unless it is
    another user's turn that began after it: a begin beside an unfinished turn is ``SessionBusy`` whatever this says.
    """
    opened = list(turns)
    named = next((turn for turn in opened if is_turn_number(n) and turn.number == n), None)
    if named is None:
        return "missing"
    if named.origin != "user":
        return "inbox"
    later = [turn for turn in opened if turn.origin == "user" and turn.number > named.number]
    if not all(_leaves_open(turn, named) for turn in later):
        return "superseded"
    return None if named.outcome is None or named.outcome in CONTINUABLE else "finished"


def require_turn_number(n: object, session: SessionId) -> None:
    """Raise ``NotResumable`` (``missing``) for a value that names no turn; None names none on purpose (RSM-13)."""
    if n is not None and not is_turn_number(n):
        raise not_resumable(session, n, "missing")


def require_nameable(admission: Admission) -> None:
    """Do so for an admission: adapters ask before they look at anything else."""
    require_turn_number(admission.resumes, admission.session_id)


def not_resumable(session: SessionId, turn: object, reason: str) -> NotResumable:
    """Return the refusal; ``turn`` is what was asked for, as it was given."""
    shown = turn if is_turn_number(turn) else str(turn)
    return NotResumable(f"the turn cannot be resumed: {reason}", session=session, turn=shown, reason=reason)


def resume_key(n: int) -> str:
    """Return the key of a resume whose host gives none (RSM-38)."""
    return f"resume:{n}"


def past_turns(records: Iterable[Record]) -> Sequence[PastTurn]:
    """Return the turns of a session's own log; only its ``turn.started`` and ``turn.ended`` are looked at."""
    turns: dict[int, PastTurn] = {}
    for record in records:
        if record.turn is None:
            continue
        if record.kind == "turn.started":
            origin, resumes = record.data.get("origin", "user"), record.data.get("resumes")
            turns[record.turn] = PastTurn(record.turn, origin, resumes=resumes)
        elif record.kind == "turn.ended" and record.turn in turns:
            turns[record.turn] = replace(turns[record.turn], outcome=record.data["reason"])
    return list(turns.values())


def _leaves_open(turn: PastTurn, named: PastTurn) -> bool:
    return turn.resumes == named.number and (turn.outcome is None or turn.outcome in WITHOUT_ANSWER)
