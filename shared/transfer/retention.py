"""Retention: what is old and owed to nobody leaves, in bounded batches beside live traffic (OPS-12)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from shared.database.pool import Database
from shared.database.statements import load_statements
from shared.domain.errors import InvalidInput
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, SessionId

_SQL = load_statements(Path(__file__).with_name("queries.sql"))

#: How many rows one transaction takes away at most; removing a session is one transaction of its own.
BATCH_ROWS: Final = 500
OWNERS_PAGE: Final = 200
KEY_WINDOW_DAYS: Final = 90.0
_BEGIN: Final = (datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))

#: Told after each batch how much is gone by now.
Progress = Callable[["Pruned"], None]


@dataclass(frozen=True, slots=True)
class Policy:
    """What may leave. ``rows_after``: finished turns, keys, receipts and completed intents of that age, the window in which a
    repeat still finds its first answer; None keeps them. ``sessions_after``: whole sessions that were idle that long; None keeps them all.
    ``owner`` narrows both to one owner. Without ``memory`` its receipts and intents stay.
    """

    rows_after: timedelta | None = timedelta(days=KEY_WINDOW_DAYS)
    sessions_after: timedelta | None = None
    owner: OwnerId | None = None
    memory: bool = True

    def __post_init__(self) -> None:
        for name, age in (("rows_after", self.rows_after), ("sessions_after", self.sessions_after)):
            if age is not None and age < timedelta(0):
                raise InvalidInput(f"{name} is negative", field=name, bound=">= 0")


@dataclass(frozen=True, slots=True)
class Pruned:
    """How much left, or would leave."""

    turns: int = 0
    keys: int = 0
    receipts: int = 0
    intents: int = 0
    sessions: int = 0

    @property
    def all(self) -> int:
        """Everything together."""
        return self.turns + self.keys + self.receipts + self.intents + self.sessions


@dataclass(slots=True)
class Retention:
    """Applies a policy to one database. A pass that is stopped anywhere leaves nothing half done; the next goes on."""

    database: Database
    failpoints: Failpoints = field(default_factory=Failpoints)
    batch_rows: int = BATCH_ROWS

    async def prune(self, policy: Policy, *, dry: bool = False, progress: Progress | None = None) -> Pruned:
        """Apply the policy once, as of now by the database's clock; with ``dry`` only count what it would take.

        Sessions go first, so that their rows are not counted twice. A session that somebody works with at this moment, and
        whatever is still owed, is passed over.
        """
        total = Pruned()
        async for part in self.batches(policy, dry=dry):
            total = _sum(total, part)
            if progress is not None:
                progress(total)
            if not dry and part.all:
                await self.failpoints.hit("prune.batch-done")
        return total

    async def batches(self, policy: Policy, *, dry: bool = False) -> AsyncGenerator[Pruned]:
        """Yield what each batch took; each is a transaction, and nothing is locked between two."""
        now = await self.now()
        if policy.sessions_after is not None:
            async for sessions in self._sessions(now - policy.sessions_after, policy.owner, dry=dry):
                yield Pruned(sessions=sessions)
        if policy.rows_after is None:
            return
        rows_before = now - policy.rows_after
        async for turns in self._turns(rows_before, policy.owner, dry=dry):
            yield Pruned(turns=turns)
        at = {"before": rows_before, "owner": policy.owner}
        async for keys in self._emptied("keys", at, dry=dry):
            yield Pruned(keys=keys)
        if not policy.memory:
            return
        async for receipts in self._emptied("receipts", at, dry=dry):
            yield Pruned(receipts=receipts)
        async for owner in self._owners(policy.owner):
            async for intents in self._emptied("intents", at | {"owner": owner}, dry=dry):
                yield Pruned(intents=intents)

    async def now(self) -> datetime:
        """Read the database's clock."""
        [row] = await self.database.read("prune.now", _SQL["now"], {})
        found: datetime = row["now"]
        return found

    async def _turns(self, before: datetime, owner: OwnerId | None, *, dry: bool) -> AsyncIterator[int]:
        at, turn_id = _BEGIN
        while True:
            params = {"before": before, "owner": owner, "limit": self.batch_rows, "dry": dry}
            [row] = await self.database.call(
                "prune.turns", _SQL["prune_turns"], params | {"after_at": at, "after_id": turn_id}
            )
            yield row["gone"]
            if row["next_at"] is None:
                return
            at, turn_id = row["next_at"], row["next_id"]

    async def _emptied(self, what: str, params: Mapping[str, Any], *, dry: bool) -> AsyncIterator[int]:
        """Take batches of one kind until one finds nothing more that it may take."""
        if dry:
            [row] = await self.database.read(f"prune.{what}", _SQL[f"count_{what}"], params)
            yield row["gone"]
            return
        while True:
            [row] = await self.database.call(
                f"prune.{what}", _SQL[f"prune_{what}"], {**params, "limit": self.batch_rows}
            )
            yield row["gone"]
            if row["gone"] == 0:
                return

    async def _sessions(self, before: datetime, owner: OwnerId | None, *, dry: bool) -> AsyncIterator[int]:
        async for one in self._owners(owner):
            async for session_id in self._old_sessions(one, before):
                params = {"id": session_id, "owner": one, "before": before, "dry": dry}
                [row] = await self.database.call("prune.session", _SQL["prune_session"], params)
                yield row["gone"]

    async def _old_sessions(self, owner: OwnerId, before: datetime) -> AsyncIterator[SessionId]:
        at, session_id = _BEGIN[0], ""
        while True:
            params = {"owner": owner, "before": before, "after_at": at, "after_id": session_id}
            rows = await self.database.read(
                "prune.sessions", _SQL["old_sessions"], params | {"limit": self.batch_rows}
            )
            for row in rows:
                yield SessionId(row["id"])
            if len(rows) < self.batch_rows:
                return
            at, session_id = rows[-1]["active_at"], rows[-1]["id"]

    async def _owners(self, only: OwnerId | None) -> AsyncIterator[OwnerId]:
        if only is not None:
            yield only
            return
        after = ""
        while rows := await self.database.read(
            "prune.owners", _SQL["owners_behind"], {"after": after, "limit": OWNERS_PAGE}
        ):
            for row in rows:
                yield OwnerId(row["id"])
            after = rows[-1]["id"]


def _sum(one: Pruned, other: Pruned) -> Pruned:
    return replace(
        one,
        turns=one.turns + other.turns,
        keys=one.keys + other.keys,
        receipts=one.receipts + other.receipts,
        intents=one.intents + other.intents,
        sessions=one.sessions + other.sessions,
    )
