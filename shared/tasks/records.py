"""What a task writes: the parent's ``task.started``, the child's ``task.cancelled``, the parent's notice, and their prints.

Both adapters store these; what a runner writes of a task's end (``task.result``) is its own.
"""

from __future__ import annotations

from typing import Any, Final

from shared.domain.canonical import canonical_json, digest_of
from shared.inbox.port import Delivery
from shared.sessions.records import Draft
from shared.sessions.vocabulary import draft_of
from shared.sessions.vocabulary_around import BackgroundTaskCancelled, BackgroundTaskStarted, InboxQueued
from shared.tasks.notice import notice_of
from shared.tasks.port import Debt, NewTask, item_id
from shared.turns.fingerprint import fingerprint_of
from shared.turns.queue import PRIORITIES, Admission

#: Who an inbox item of a task is from.
SOURCE: Final = "task"
#: How much one read of tasks or debts takes in, in bytes of stored records: then it ends with the one that passed it.
PAGE_BYTES: Final = 8 * 1024 * 1024


def print_of(task: NewTask) -> str:
    """Return what makes two starts of one id the same: instructions and mode (TSK-12)."""
    return digest_of({"instructions": task.instructions, "mode": task.mode})


def create_print() -> str:
    """Return the print of a child session's creation: that of any fork."""
    return digest_of({"meta": {}, "title": None})


def started_draft(task: NewTask) -> Draft:
    """Return the parent's record of a start."""
    return draft_of(
        BackgroundTaskStarted(
            task=task.task_id, mode=task.mode, instructions=task.instructions, run_id=task.started_by
        )
    )


def cancelled_draft(task_id: str) -> Draft:
    """Return the child's record of a cancel."""
    return draft_of(BackgroundTaskCancelled(task=task_id))


def admission_of(task: NewTask) -> Admission:
    """Return the child's turn as an admission: its key is the task's, its message the instructions (TSK-16)."""
    return Admission(
        turn_id=task.turn_id,
        run_id=task.run_id,
        session_id=task.task_id,
        owner=task.owner,
        message={"text": task.instructions},
        key=task.task_id,
        meta=task.meta,
        agent=task.agent,
        agent_revision=task.agent_revision,
        on_worker_loss=task.on_worker_loss,
        priority=PRIORITIES["background"],
        max_duration_s=task.max_duration_s,
    )


def start_params(task: NewTask) -> dict[str, Any]:
    """Return a task as the parameters of its start."""
    record, admission = started_draft(task), admission_of(task)
    return {
        "task": task.task_id,
        "turn": task.turn_id,
        "parent": task.parent,
        "owner": task.owner,
        "print": print_of(task),
        "text": record.text,
        "digest": record.digest,
        "inherit": task.mode == "fork",
        "create_print": create_print(),
        "run": task.run_id,
        "turn_print": fingerprint_of(admission),
        "message": canonical_json(dict(admission.message)),
        "meta": None if task.meta is None else canonical_json(dict(task.meta)),
        "agent": task.agent,
        "revision": task.agent_revision,
        "on_worker_loss": task.on_worker_loss,
        "deadline_s": task.deadline_in_s,
        "max_duration_s": task.max_duration_s,
    }


def notice_delivery(debt: Debt, *, notice_chars: int) -> tuple[Delivery, Draft]:
    """Return the inbox item that a debt becomes, and its record."""
    content = notice_of(debt.task_id, debt.result, max_chars=notice_chars)
    delivery = Delivery(debt.parent, debt.owner, item_id(debt.task_id), SOURCE, content)
    return delivery, draft_of(InboxQueued(id=delivery.id, source=delivery.source, content=content))
