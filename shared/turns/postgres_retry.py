"""Putting turns back that were given up because workers were lost with them, for an operator (core 7, DST-13)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.database.pool import Database, Row
from shared.database.statements import load_statements
from shared.domain.errors import InvalidInput
from shared.domain.ids import OwnerId, SessionId, TurnId, new_run_id, new_turn_id
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits
from shared.turns.resume import resume_key

_SQL = load_statements(Path(__file__).with_name("queries.sql"))


@dataclass(frozen=True, slots=True)
class Retried:
    """What became of a turn: ``turn_id`` will run; it is the turn itself, or one that ``resumes`` it.

    ``repeated``: an earlier retry had admitted that one; however it ended, nothing was admitted now.
    """

    turn_id: TurnId
    resumes: int | None = None
    repeated: bool = False


async def retry_turn(database: Database, turn_id: TurnId) -> Retried:
    """Run a turn again that ended with ``turn.lease``: one that opened is resumed with its own message.

    The resume has the key ``resume:<n>``, so that a repeat finds it. A turn that never opened waits again, behind what
    waits now. Raises ``InvalidInput`` for any other turn, and what :meth:`TurnQueue.admit` does: ``NotResumable`` once
    the session went on, ``KeyConflict`` when its user resumed it with other words.
    """
    rows = await database.read("turn.parked", _SQL["parked"], {"id": turn_id})
    if not rows:
        raise _not_parked(turn_id)
    if rows[0]["number"] is not None:
        admission = _resume_of(rows[0])
        receipt = await PostgresTurnQueue(database).admit(admission, AdmissionLimits())
        return Retried(receipt.turn_id, admission.resumes, receipt.duplicate)
    [row] = await database.call("turn.retry", _SQL["retry"], {"id": turn_id}, repeatable=True)
    if row["result"] != "ready":
        raise _not_parked(turn_id)
    return Retried(turn_id)


def _resume_of(row: Row) -> Admission:
    return Admission(
        turn_id=new_turn_id(),
        run_id=new_run_id(),
        session_id=SessionId(row["session_id"]),
        owner=OwnerId(row["owner"]),
        message=_parsed(row["message"]) or {"text": ""},
        key=resume_key(row["number"]),
        command=_parsed(row["command"]),
        meta=_parsed(row["meta"]),
        agent=row["agent"],
        agent_revision=row["agent_revision"],
        on_worker_loss=row["on_worker_loss"],
        priority=row["priority"],
        max_duration_s=row["max_duration_s"],
        resumes=row["number"],
    )


def _not_parked(turn_id: TurnId) -> InvalidInput:
    bound = "a user's turn that ended with turn.lease"
    return InvalidInput("the turn was not given up", field="turn", bound=bound, turn=str(turn_id))


def _parsed(text: str | None) -> Mapping[str, Any] | None:
    return None if text is None else json.loads(text)
