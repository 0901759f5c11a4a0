"""Delivering what a session's tasks owe it: each result once, whoever else delivers at the same time (TSK-19)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shared.domain.ids import SessionId
from shared.host.port import SessionAddress
from shared.tasks.port import DeliveredTask, TaskStore

#: How often what is owed is read again when a debt was not what had been read.
_READS_MAX: Final = 3


async def deliver_owed(
    store: TaskStore, parent: SessionAddress, *, only: SessionId | None = None
) -> Sequence[DeliveredTask]:
    """Deliver what the tasks of a session owe it, or one task; return what was delivered here.

    A result that another delivered meanwhile is not among it. Raises a store's error; what was not delivered stays owed.
    """
    delivered: list[DeliveredTask] = []
    for _ in range(_READS_MAX):
        debts = [
            debt
            for debt in await store.owed(parent=parent.id)
            if debt.owner == parent.owner and only in (None, debt.task_id)
        ]
        if not debts:
            break
        for debt in debts:
            done = await store.deliver(debt)
            if done is not None:
                delivered.append(done)
        if only is not None and delivered:
            break  # a task owes once
    return delivered
