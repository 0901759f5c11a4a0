"""Turns: receipts against rows, and each session's log against its rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from producer.dev.torture.judging.judgement import Judgement
from producer.dev.torture.load.notes import Notes
from shared.sessions.records import Record
from shared.turns.queue import FINISHED

#: Outcomes that a turn reaches with a reply in its log; any other may have one or none.
REPLIED: Final = frozenset({"completed", "partial", "failed"})


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
