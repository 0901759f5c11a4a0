"""The judgement: what the clients were told and what happened outside, held against what is stored."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from producer.dev.torture.app import KEYED_TOOLS
from producer.dev.torture.load import Notes, Order
from producer.dev.torture.postgres import PostgresTables
from shared.domain.errors import TurnkeeperError
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.log import READ_MAX_RECORDS, SessionLog
from shared.sessions.records import Record, verify_log
from shared.turns.queue import FINISHED

#: Outcomes that a turn reaches with a reply in its log; any other may have one or none.
REPLIED = frozenset({"completed", "partial", "failed"})


@dataclass(frozen=True, slots=True)
class Effect:
    """One line of the tools' journal."""

    tool: str
    order: str
    token: str
    turn: str


@dataclass(slots=True)
class Judgement:
    """What was found. Every list names what is wrong, for a person to look at; the figures are their lengths."""

    admitted: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    doubled_turns: list[str] = field(default_factory=list)
    doubled_replies: list[str] = field(default_factory=list)
    doubled_effects: list[str] = field(default_factory=list)
    missing_effects: list[str] = field(default_factory=list)
    log_errors: list[str] = field(default_factory=list)
    follow_errors: list[str] = field(default_factory=list)
    records: int = 0
    effects: int = 0


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
    for row in await tables.read("sessions"):
        await _judge_log(found, log, row, turns)
    return found


def judge_turns(found: Judgement, notes: Notes, turns: Mapping[str, Mapping[str, Any]]) -> None:
    """Hold every receipt against its row: it is there, it has finished, and one key has one turn."""
    acknowledged = notes.acknowledged
    found.admitted = len(acknowledged)
    for turn in sorted(acknowledged):
        row = turns.get(turn)
        if row is None:
            found.lost.append(f"turn {turn} is not stored")
        elif row["status"] not in FINISHED:
            found.lost.append(f"turn {turn} is still {row['status']}")
        else:
            found.outcomes[str(row["outcome"] or row["status"])] += 1
    keys = Counter((row["session_id"], row["key"]) for row in turns.values() if row["key"] is not None)
    found.doubled_turns += [f"key {key} has {count} turns" for (_, key), count in keys.items() if count > 1]
    found.doubled_turns += [
        f"key {order.name} was answered with {len(order.turns)} turns"
        for order in notes.orders.values()
        if len(order.turns) > 1
    ]


def judge_followers(found: Judgement, notes: Notes) -> None:
    """Take what followers met that no reader may meet, and those that never came to an end."""
    for follower in notes.followers:
        found.follow_errors += follower.errors
        if not follower.ended:
            found.follow_errors.append(f"a follower of turn {follower.turn} never saw its end")


def judge_effects(found: Judgement, orders: Mapping[str, Order], effects: Sequence[Effect]) -> None:
    """Count what happened outside more often than its order's calls allow.

    A tool whose effects the outside keeps by token may meet a token twice; any other may not. No order may have effects under
    more tokens than it has calls, whatever the tool.
    """
    found.effects = len(effects)
    by_order: dict[str, list[Effect]] = defaultdict(list)
    for effect in effects:
        by_order[effect.order].append(effect)
    for name, lines in by_order.items():
        allowed = orders[name].effects if name in orders else 0
        tokens = Counter(effect.token for effect in lines)
        surplus = max(0, len(tokens) - allowed)
        if lines[0].tool not in KEYED_TOOLS:
            surplus += sum(count - 1 for count in tokens.values())
        found.doubled_effects += [f"{name}: {dict(tokens)}, {allowed} allowed"] * surplus


def judge_records(
    found: Judgement, session: str, records: Iterable[Record], turns: Mapping[int, Mapping[str, Any]]
) -> None:
    """Hold a session's log against its rows: each opened turn begins once, replies at most once, and closes once, last."""
    kinds: dict[int, list[str]] = defaultdict(list)
    reasons: dict[int, str] = {}
    for record in records:
        if record.turn is None:
            continue
        if "turn.ended" in kinds[record.turn]:
            found.log_errors.append(f"{session}: record {record.seq} after the end of turn {record.turn}")
        kinds[record.turn].append(record.kind)
        if record.kind == "turn.ended":
            reasons[record.turn] = str(record.data.get("reason"))
    for number in sorted(kinds.keys() | turns.keys()):
        counts = Counter(kinds[number])
        surplus = counts["turn.reply"] - 1
        found.doubled_replies += [f"{session}: turn {number} has {counts['turn.reply']} replies"] * max(
            0, surplus
        )
        if (counts["turn.started"], counts["turn.ended"]) != (1, 1):
            found.log_errors.append(f"{session}: turn {number} has {dict(counts)}")
        outcome = turns[number]["outcome"] if number in turns else None
        if reasons.get(number) != outcome:
            found.log_errors.append(
                f"{session}: turn {number} ended {reasons.get(number)}, its row {outcome}"
            )
        if outcome in REPLIED and counts["turn.reply"] == 0:
            found.log_errors.append(f"{session}: turn {number} is {outcome} without a reply")


def read_journal(path: Path) -> list[Effect]:
    """Return every effect that happened, in order; none when no tool ever ran."""
    if not path.exists():
        return []
    return [Effect(**json.loads(line)) for line in path.read_text().splitlines()]


async def _judge_log(
    found: Judgement, log: SessionLog, row: Mapping[str, Any], turns: Mapping[str, Mapping[str, Any]]
) -> None:
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
