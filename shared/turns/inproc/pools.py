"""The twin's pools: what worker processes say of themselves, and what is owed to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from shared.domain.ids import WorkerId
from shared.sessions.inproc import InprocStore
from shared.turns.inproc.rows import TurnTables, WorkerRow
from shared.turns.queue import Backlog, WorkerSeen


class InprocPools:
    """The part of :class:`shared.turns.queue.TurnQueue` that looks at processes and pools, not at one turn."""

    def __init__(self, store: InprocStore) -> None:
        self._store = store
        self._tables = store.part(TurnTables)

    async def seen(self, worker: WorkerSeen) -> None:
        """See the port."""
        await self._store.reached()
        now, known = self._store.now(), self._tables.workers.get(worker.worker)
        started_at = now if known is None else known.started_at
        self._tables.workers[worker.worker] = WorkerRow(worker, started_at, now)

    async def gone(self, worker: WorkerId) -> None:
        """See the port."""
        await self._store.reached()
        self._tables.workers.pop(worker, None)

    async def forget_silent(self, older_than_s: float) -> int:
        """See the port."""
        await self._store.reached()
        heard_after = self._store.now() - timedelta(seconds=older_than_s)
        silent = [worker for worker, row in self._tables.workers.items() if row.last_seen < heard_after]
        for worker in silent:
            del self._tables.workers[worker]
        return len(silent)

    async def workers(self) -> Sequence[Mapping[str, Any]]:
        """See the port."""
        await self._store.reached()
        now = self._store.now()
        return [_worker(self._tables.workers[worker], now=now) for worker in sorted(self._tables.workers)]

    async def backlog(self, pool: str, revisions: Sequence[str] = ()) -> Backlog:
        """See the port."""
        await self._store.reached()
        now, count = self._store.now(), self._tables.count
        ready = [row for row in self._tables.turns.values() if row.status == "ready" and row.pool == pool]
        unserved: dict[str, int] = {}
        for row in ready:
            if revisions and row.agent_revision not in revisions:
                unserved[row.agent_revision] = unserved.get(row.agent_revision, 0) + 1
        oldest_s = max([(now - row.due_at).total_seconds() for row in ready], default=0.0)
        return Backlog(len(ready), count("queued"), count("running"), max(0.0, oldest_s), unserved)

    async def move_revision(self, old: str, new: str, *, limit: int = 1_000) -> int:
        """See the port."""
        await self._store.reached()
        waiting = [
            row
            for row in self._tables.turns.values()
            if row.status in ("queued", "ready") and row.agent_revision == old
        ][:limit]
        for row in waiting:
            row.agent_revision = new
        return len(waiting)

    async def count_waiting(self, limit: int) -> int:
        """See the port."""
        await self._store.reached()
        return min(limit, self._tables.count("queued", "ready"))

    async def has_overdue(self, pool: str, older_than_s: float) -> bool:
        """See the port."""
        await self._store.reached()
        edge = self._store.now() - timedelta(seconds=older_than_s)
        return any(
            row.status == "ready" and row.pool == pool and row.due_at < edge
            for row in self._tables.turns.values()
        )


def _worker(row: WorkerRow, *, now: datetime) -> Mapping[str, Any]:
    said = row.said
    return {
        "id": said.worker,
        "host": said.host,
        "pid": said.pid,
        "queues": list(said.queues),
        "revisions": list(said.revisions),
        "capacity": said.capacity,
        "held": said.held,
        "version": said.version,
        "draining": said.draining,
        "lag_s": said.lag_s,
        "overloaded": said.overloaded,
        "started_at": row.started_at,
        "silent_s": (now - row.last_seen).total_seconds(),
    }
