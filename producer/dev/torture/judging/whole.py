"""The whole judgement of a run whose processes have all ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from producer.dev.torture.judging.effects import judge_effects, read_journal
from producer.dev.torture.judging.judgement import Judgement
from producer.dev.torture.judging.results import ToldItems, judge_items, judge_tasks, read_items
from producer.dev.torture.judging.turns import judge_records, judge_turns
from producer.dev.torture.load.notes import Notes
from producer.dev.torture.postgres import PostgresTables
from shared.domain.errors import TurnkeeperError
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.log import READ_MAX_RECORDS, SessionLog
from shared.sessions.records import Record, verify_log


async def judge(tables: PostgresTables, log: SessionLog, notes: Notes, journal: Path) -> Judgement:
    """Judge a run whose processes have all ended."""
    found = Judgement()
    turns = {str(row["id"]): row for row in await tables.read("turns")}
    effects = read_journal(journal)
    judge_turns(found, notes, turns)
    found.lost += [
        f"the result of call {row['invocation_id']} of turn {row['turn_id']} ({row['state']})"
        for row in await tables.read("unsettled_calls")
    ]
    [owed] = await tables.read("owed")
    found.lost += [f"{count} {what}" for what, count in owed.items() if count]
    judge_effects(found, notes.orders, effects)
    applied = {(effect.turn, effect.token) for effect in effects}
    found.missing_effects += [
        f"call {row['token']} of turn {row['turn_id']} has a result and no effect"
        for row in await tables.read("done_calls")
        if (str(row["turn_id"]), row["token"]) not in applied
    ]
    judge_followers(found, notes)
    told = {str(row["id"]): await _judge_log(found, log, row, turns) for row in await tables.read("sessions")}
    judge_items(found, notes, told)
    judge_tasks(found, notes, told, turns.values())
    return found


def judge_followers(found: Judgement, notes: Notes) -> None:
    """Take what followers met that no reader may meet, and those that never came to an end."""
    for follower in notes.followers:
        found.follow_errors += follower.errors
        if not follower.ended:
            found.follow_errors.append(f"a follower of turn {follower.turn} never saw its end")


async def _judge_log(
    found: Judgement, log: SessionLog, row: Mapping[str, Any], turns: Mapping[str, Mapping[str, Any]]
) -> ToldItems:
    session = SessionId(row["id"])
    head = await log.head(session, OwnerId(row["owner"]))
    records: list[Record] = []
    while page := await log.read(session, after=records[-1].seq if records else 0):
        records.extend(page)
        if len(page) < READ_MAX_RECORDS:
            break
    found.records += len(records)
    try:
        verify_log(session, records, seq=head.seq, tail=head.tail)
    except TurnkeeperError as error:
        found.log_errors.append(f"{session}: {error.message}")
    if head.open is not None:
        found.log_errors.append(f"{session}: turn {head.open.turn_id} is still open")
    numbered = {
        one["number"]: one
        for one in turns.values()
        if one["session_id"] == session and one["number"] is not None
    }
    judge_records(found, session, records, numbered)
    return read_items(session, records)
