"""Inbox items and background tasks: whatever was delivered is answered once or dropped, and a task is told of once.

An item is settled when a turn that claimed it ends completed, partial or cancelled, or when ``inbox.dropped`` names it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from producer.dev.torture.judging.judgement import Judgement
from producer.dev.torture.load.notes import Notes
from producer.dev.torture.load.tasks import StartedTask
from shared.sessions.records import Record
from shared.turns.queue import FINISHED

#: How a claim ends that settles its items; any other gives them back.
SETTLES: Final = frozenset({"completed", "partial", "cancelled"})
TASK_PREFIX: Final = "task:"


@dataclass(slots=True)
class ToldItems:
    """What one session's log tells of its inbox. ``queued``, ``answered`` and ``dropped`` count records and claims by item."""

    queued: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def settled(self, item: str) -> int:
        """Return how often an item came to its end."""
        return self.answered[item] + self.dropped[item]


def read_items(session: str, records: Iterable[Record]) -> ToldItems:
    """Read a session's log, in its order; ``errors`` names claims of items that do not wait."""
    told = ToldItems()
    claimed: dict[int, list[str]] = defaultdict(list)
    for record in records:
        match record.kind:
            case "inbox.queued":
                told.queued[str(record.data["id"])] += 1
            case "inbox.dropped":
                told.dropped[str(record.data["id"])] += 1
            case "turn.started" if record.turn is not None:
                claimed[record.turn] = [str(item) for item in record.data.get("claimed", ())]
                for item in claimed[record.turn]:
                    if not told.queued[item]:
                        told.errors.append(
                            f"{session}: turn {record.turn} claims {item}, which nobody delivered"
                        )
                    if told.settled(item):
                        told.errors.append(
                            f"{session}: turn {record.turn} claims {item}, which was settled before"
                        )
            case "turn.ended" if record.turn is not None and record.data["reason"] in SETTLES:
                told.answered.update(claimed[record.turn])
    return told


def judge_items(found: Judgement, notes: Notes, told: Mapping[str, ToldItems]) -> None:
    """Hold what clients delivered, and what tasks did, against what the logs tell."""
    for session, items in told.items():
        found.log_errors += items.errors
        found.answered += items.answered.total()
        found.dropped += items.dropped.total()
        for item, count in items.queued.items():
            about = f"{session}: item {item}"
            if count > 1:
                found.doubled_items.append(f"{about} was queued {count} times")
            if items.settled(item) == 0:
                found.lost.append(f"{about} was neither answered nor dropped")
            if items.settled(item) > 1:
                found.doubled_items.append(
                    f"{about} was answered {items.answered[item]} and dropped {items.dropped[item]} times"
                )
    for wanted in notes.items.values():
        if not wanted.is_acknowledged:
            continue
        found.delivered += 1
        if wanted.session not in told or not told[wanted.session].queued[wanted.name]:
            found.lost.append(f"{wanted.session}: item {wanted.name} is not stored")


def judge_tasks(
    found: Judgement, notes: Notes, told: Mapping[str, ToldItems], turns: Iterable[Mapping[str, Any]]
) -> None:
    """Hold every task that a client started against its turn and its parent's inbox: one turn, finished; one notice.

    A task whose cancel was acknowledged has no notice; one whose cancel got no answer may have one.
    """
    rows: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in turns:
        if row["origin"] == "task":
            rows[str(row["session_id"])].append(row)
    for task in notes.tasks.values():
        if len(task.ids) > 1:
            found.doubled_tasks.append(f"key {task.name} was answered with {len(task.ids)} tasks")
        for child in task.ids:
            found.tasks += 1
            own = rows[child]
            if len(own) > 1:
                found.doubled_tasks.append(f"task {child} has {len(own)} turns")
            notices = told[task.session].queued[f"{TASK_PREFIX}{child}"] if task.session in told else 0
            _judge_task(found, task, str(own[0]["status"]) if own else None, notices)


def _judge_task(found: Judgement, task: StartedTask, status: str | None, notices: int) -> None:
    if status not in FINISHED:
        found.lost.append(f"task {task.name} is {status or 'not stored'}")
    elif task.cancel == "cancelled":
        found.tasks_cancelled += 1
        if notices:
            found.doubled_tasks.append(f"task {task.name} was cancelled and told of all the same")
    elif not notices and task.cancel != "asked":
        found.lost.append(f"task {task.name} ended and its parent was never told")
