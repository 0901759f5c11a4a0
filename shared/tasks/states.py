"""Where a task stands: one pure rule over its turn's row and the records that may end it (TSK-22 to 26)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shared.tasks.port import TaskResult, TaskStatus
from shared.turns.queue import FINISHED, Outcome, Status

#: The kinds of a child's records of which the first ends its task (TSK-23).
TERMINAL: Final = ("task.result", "task.cancelled")
#: A task that ended without a result that anybody stored (TSK-22), one that its deadline ended, one cut by its closer.
LOST: Final = "task.lost"
LATE: Final = "task.deadline"
CUT: Final = "task.turn"

_DEADLINES: Final = frozenset({LATE, "turn.deadline"})


@dataclass(frozen=True, slots=True)
class TaskTurn:
    """What the row of a task's turn says; ``opened`` once it has a number."""

    status: Status
    opened: bool
    outcome: Outcome | None = None
    code: str | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A record of the child that says how its task ended: ``task.result``, ``task.cancelled``, or its ``turn.reply``."""

    kind: str
    data: Mapping[str, Any]


def state_of(turn: TaskTurn | None, records: Iterable[TaskRecord] = ()) -> TaskResult:
    """Return where a task stands, by the child's records in the order of its log, and its turn (None: removed).

    The first ``task.result`` or ``task.cancelled`` ends the task, whatever its turn says. Without one a stored reply of a
    turn that has ended is its result, and any other turn that ended tells what its row says; what nothing tells is lost.
    """
    found = list(records)
    terminal = next((record for record in found if record.kind in TERMINAL), None)
    if terminal is not None:
        return TaskResult("cancelled") if terminal.kind == "task.cancelled" else _stored(terminal.data)
    if turn is None:
        return TaskResult("interrupted", code=LOST)
    if turn.status not in FINISHED:
        return TaskResult(_unfinished(turn))
    reply = next((record for record in reversed(found) if record.kind == "turn.reply"), None)
    if reply is not None and turn.outcome in ("completed", "partial", "failed"):
        return _stored(reply.data)
    return _ended(turn)


def _unfinished(turn: TaskTurn) -> TaskStatus:
    return "running" if turn.opened or turn.status in ("running", "waiting") else "pending"


def _stored(data: Mapping[str, Any]) -> TaskResult:
    return TaskResult(
        data["outcome"], data.get("text"), data.get("code") or data.get("reason"), data.get("failure")
    )


def _ended(turn: TaskTurn) -> TaskResult:
    match turn.status:
        case "cancelled":
            return TaskResult("cancelled", code=turn.code)
        case "refused":
            return TaskResult("failed", code=turn.code, failure=turn.failure)
        case "expired":
            return TaskResult("interrupted", code=LATE)
    match turn.outcome:
        case "cancelled":
            return TaskResult("cancelled", code=turn.code)
        case "failed":
            return TaskResult("failed", code=turn.code or LOST, failure=turn.failure)
        case "interrupted" if turn.code in _DEADLINES:
            return TaskResult("interrupted", code=LATE)
        case "interrupted" if turn.code == CUT:
            return TaskResult("interrupted", code=CUT)
        case _:
            # It ended, by a lost worker or by a store that failed, and nobody stored what it answered.
            return TaskResult("interrupted", code=LOST)
