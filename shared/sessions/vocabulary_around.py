"""What the records that surround a turn hold: deliveries to a session's inbox, and background tasks."""

from __future__ import annotations

from typing import Final, Literal

from shared.sessions.payloads import Payload

TaskMode = Literal["fork", "spawn"]
TaskOutcome = Literal["completed", "partial", "failed", "interrupted"]


class InboxQueued(Payload):
    """``inbox.queued``: an item was delivered; it waits for the session's next inbox turn (INB-04)."""

    id: str
    source: str
    content: str


class InboxDropped(Payload):
    """``inbox.dropped``: an item was given up after so many claims that failed (INB-14)."""

    id: str
    attempts: int


class BackgroundTaskStarted(Payload):
    """``task.started``, in the parent: a background task is owed. ``run_id`` is the run that asked for it, if one did."""

    task: str
    mode: TaskMode
    instructions: str
    run_id: str | None = None


class BackgroundTaskResult(Payload):
    """``task.result``, in the child: how the task ended, and the reply that its parent is told (TSK-18)."""

    task: str
    outcome: TaskOutcome
    text: str | None = None
    code: str | None = None
    failure: str | None = None


class BackgroundTaskCancelled(Payload):
    """``task.cancelled``, in the child: nothing of it is delivered (TSK-40)."""

    task: str


SCHEMAS_AROUND: Final[dict[str, type[Payload]]] = {
    "inbox.queued": InboxQueued,
    "inbox.dropped": InboxDropped,
    "task.started": BackgroundTaskStarted,
    "task.result": BackgroundTaskResult,
    "task.cancelled": BackgroundTaskCancelled,
}
