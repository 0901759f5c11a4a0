"""What the turn queue on Postgres says of worker processes and of what each pool owes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.database.pool import Database
from shared.database.statements import load_statements
from shared.domain.ids import WorkerId
from shared.turns.processes import Backlog, WorkerSeen

_SQL = load_statements(Path(__file__).with_name("queries.sql"))


class PostgresPools:
    """The part of :class:`~shared.turns.postgres.PostgresTurnQueue` that looks at pools, not at single turns."""

    def __init__(self, database: Database, polls: Database) -> None:
        self._db = database
        self._polls = polls

    async def seen(self, worker: WorkerSeen) -> None:
        """See the port."""
        params = {
            "id": worker.worker,
            "host": worker.host,
            "pid": worker.pid,
            "queues": list(worker.queues),
            "revisions": list(worker.revisions),
            "capacity": worker.capacity,
            "held": worker.held,
            "version": worker.version,
            "draining": worker.draining,
            "lag_s": worker.lag_s,
            "overloaded": worker.overloaded,
        }
        await self._polls.call("worker.seen", _SQL["seen"], params, repeatable=True)

    async def gone(self, worker: WorkerId) -> None:
        """See the port."""
        await self._polls.call("worker.gone", _SQL["gone"], {"id": worker}, repeatable=True)

    async def forget_silent(self, older_than_s: float) -> int:
        """See the port."""
        params = {"older_s": older_than_s}
        return len(await self._db.call("worker.forget", _SQL["forget_silent"], params, repeatable=True))

    async def workers(self) -> Sequence[Mapping[str, Any]]:
        """See the port."""
        return await self._db.read("worker.list", _SQL["workers"], {})

    async def backlog(self, pool: str, revisions: Sequence[str] = ()) -> Backlog:
        """See the port."""
        [row] = await self._db.read("turn.backlog", _SQL["backlog"], {"pool": pool})
        unserved: dict[str, int] = {}
        if revisions:
            rows = await self._db.read("turn.unserved", _SQL["unserved"], {"pool": pool})
            unserved = {r["revision"]: r["ready"] for r in rows if r["revision"] not in revisions}
        return Backlog(row["ready"], row["queued"], row["running"], float(row["oldest_due_s"]), unserved)

    async def move_revision(self, old: str, new: str, *, limit: int = 1_000) -> int:
        """See the port."""
        params = {"old": old, "new": new, "limit": limit}
        [row] = await self._db.call("turn.move_revision", _SQL["move_revision"], params, repeatable=True)
        return int(row["moved"])

    async def count_waiting(self, limit: int) -> int:
        """See the port."""
        [row] = await self._db.read("turn.waiting", _SQL["waiting"], {"limit": limit})
        return int(row["waiting"])

    async def has_overdue(self, pool: str, older_than_s: float) -> bool:
        """See the port."""
        params = {"pool": pool, "older_s": older_than_s}
        [row] = await self._db.read("turn.overdue", _SQL["overdue"], params)
        return bool(row["overdue"])
