"""Reads of several sessions that come at about the same time, in one statement: a page of each (core 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from shared.database.gatherer import APART, Gatherer
from shared.database.pool import Database, Row
from shared.database.statements import Statement

#: Sessions of one statement: what they have to read is held at once.
SESSIONS_MAX: Final = 32
WAIT_S: Final = 0.002
#: Statements under way beside which no read waits.
AT_ONCE: Final = 2
#: Bounds and kinds of pages whose reads are gathered: a process has a handful, and a host may have any.
SHAPES_MAX: Final = 16

Rows = Sequence[Row]
_Asked = tuple[str, int | None]


class PageReads:
    """Reads pages of sessions, all by one statement. Belongs to one event loop.

    Reads that come in one turn of the event loop leave together; while ``AT_ONCE`` are under way others gather. The pages of one
    statement have the same bounds and kinds, and each its own session and cursor. Raises what ``Database.read`` does, for
    all that shared it alike.
    """

    def __init__(self, database: Database, statement: Statement) -> None:
        self._db = database
        self._statement = statement
        self._gatherers: dict[str, Gatherer[_Asked, Rows]] = {}

    async def read(
        self, session: str, cursor: int | None, bounds: Mapping[str, Any], *, shares: bool = True
    ) -> Rows:
        """Return the rows of a session's page from its cursor on; ``bounds`` are the statement's other parameters."""
        alone = partial(self._read_one, bounds, session, cursor)
        gatherer = self._gatherer(bounds) if shares else None
        if gatherer is None:
            return await alone()
        rows = await gatherer.join(session, (session, cursor))
        return await gatherer.apart(session, alone) if rows is APART else rows

    def _gatherer(self, bounds: Mapping[str, Any]) -> Gatherer[_Asked, Rows] | None:
        shape = repr(bounds)
        found = self._gatherers.get(shape)
        if found is None and len(self._gatherers) < SHAPES_MAX:
            found = self._gatherers[shape] = Gatherer(
                partial(self._read_each, bounds),
                members_max=SESSIONS_MAX,
                wait_s=WAIT_S,
                at_once=AT_ONCE,
                at_once_late=self._db.connections_max // 2,
            )
        return found

    async def _read_one(self, bounds: Mapping[str, Any], session: str, cursor: int | None) -> Rows:
        [rows] = await self._read_each(bounds, [(session, cursor)])
        return rows

    async def _read_each(self, bounds: Mapping[str, Any], asked: Sequence[_Asked]) -> Sequence[Rows]:
        sessions, cursors = [session for session, _ in asked], [cursor for _, cursor in asked]
        params = {"sessions": sessions, "cursors": cursors, **bounds}
        pages: dict[str, list[Row]] = {session: [] for session in sessions}
        for row in await self._db.read("session.read", self._statement, params):
            pages[row["session_id"]].append(row)
        return [pages[session] for session in sessions]
