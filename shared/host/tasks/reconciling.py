"""The tasks of a session that wait for a runner (TSK-41)."""

from __future__ import annotations

from collections.abc import Sequence

from shared.host.port import SessionAddress
from shared.host.tasks.port import HandedTask
from shared.tasks.port import LIST_MAX_TASKS, TaskStore


async def waiting_tasks(store: TaskStore, parent: SessionAddress) -> Sequence[HandedTask]:
    """Return the tasks whose turns wait to be claimed, to be handed to a runner again."""
    wanted = set(await store.waiting(parent.id, parent.owner))
    found: list[HandedTask] = []
    before: str | None = None
    while wanted:
        page = await store.list(parent.id, parent.owner, limit=LIST_MAX_TASKS, before=before)
        for view in page:
            if view.turn_id is not None and view.turn_id in wanted:
                wanted.discard(view.turn_id)
                found.append(HandedTask(parent, view.task_id, view.turn_id))
        if len(page) < LIST_MAX_TASKS:
            break
        before = page[-1].task_id
    return found
