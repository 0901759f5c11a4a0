"""Turns that were given up because workers were lost with them: what an operator is shown as parked (DST-13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from shared.database.pool import Database
from shared.database.statements import load_statements
from shared.domain.ids import TurnId

_SQL = load_statements(Path(__file__).with_name("queries.sql"))


@dataclass(frozen=True, slots=True)
class LostTurn:
    """A turn that ended ``interrupted`` with ``turn.lease``, after so many counted losses of workers."""

    turn_id: TurnId
    attempts: int
    ended_at: datetime


async def read_lost_turns(database: Database, *, limit: int) -> Sequence[LostTurn]:
    """Read the turns that were lost last, newest first; whose they are is not told."""
    rows = await database.read("turn.lost", _SQL["lost"], {"limit": limit})
    return [LostTurn(TurnId(row["id"]), row["attempts"], row["ended_at"]) for row in rows]
