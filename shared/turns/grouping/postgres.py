"""Group commit on Postgres: one statement for several sessions, or each member's own where that cannot be had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from psycopg_pool import PoolTimeout

from shared.database.gatherer import APART, Apart, Gatherer
from shared.database.pool import Database, Row
from shared.database.statements import Statement, load_statements
from shared.domain.errors import TurnkeeperError
from shared.domain.failpoints import Failpoints

#: The units of work that may share a statement: each locks the rows of one session only (decision 0022).
GroupUnit = Literal["admit", "open", "append", "end"]
#: By default; the setting takes up to 64.
MEMBERS_MAX: Final = 16
WAIT_S: Final = 0.002
#: Statements under way beside which nobody waits: the next one runs while one commits (decision 0022).
AT_ONCE: Final = 2
#: A member of more bytes goes by itself: to carry it costs more than a shared commit saves, and others would wait for it.
MEMBER_BYTES_MAX: Final = 64 * 1024

_SQL = load_statements(Path(__file__).with_name("queries.sql"))
_NUL: Final = b"\\u0000"


@dataclass(frozen=True, slots=True)
class _Member:
    """A unit of work as a statement of its own would be given it, and as the group's is."""

    unit: GroupUnit
    statement: Statement
    params: Mapping[str, Any]
    encoded: bytes


class TurnGroups:
    """Sends units of work of a process's turns in groups. Belongs to one event loop; ``close`` before the database.

    At most ``members_max`` share a statement (1: none does), and nobody waits longer than ``wait_s`` seconds for others, or longer
    than the event loop's turn while fewer than ``AT_ONCE`` statements are under way. A group of fewer than ``least`` members goes by its members' own
    statements; that is 2 but in tests of the group's.
    """

    def __init__(
        self,
        database: Database,
        *,
        members_max: int = MEMBERS_MAX,
        wait_s: float = WAIT_S,
        failpoints: Failpoints | None = None,
        least: int = 2,
    ) -> None:
        self._db = database
        self._failpoints = failpoints or Failpoints()
        self._is_on = members_max > 1
        self._least = least
        self._gatherer = Gatherer[_Member, Row](
            self._send_all,
            members_max=members_max,
            wait_s=wait_s,
            at_once=AT_ONCE,
            at_once_late=max(AT_ONCE, database.connections_max // 2),
        )

    @property
    def waiting(self) -> int:
        """How many units of work wait for a group to leave."""
        return self._gatherer.waiting

    async def close(self) -> None:
        """Wait for the groups that were sent."""
        await self._gatherer.close()

    async def send(self, unit: GroupUnit, statement: Statement, params: Mapping[str, Any]) -> Row:
        """Do one unit of work of the session that ``params`` names, and return its row; raises as ``Database.call``.

        It has committed when this returns. What it carries must be safe to send again.
        """
        session = params["session"]
        call = partial(self._send_one, unit, statement, params)
        if not self._is_on:
            return await call()
        encoded = _encoded(unit, params)
        if encoded is None:
            return await self._gatherer.apart(session, call)
        answer = await self._gatherer.join(session, _Member(unit, statement, params, encoded))
        return await self._gatherer.apart(session, call) if answer is APART else answer

    async def _send_one(self, unit: GroupUnit, statement: Statement, params: Mapping[str, Any]) -> Row:
        [row] = await self._db.call(f"turn.{unit}", statement, params, repeatable=True)
        return row

    async def _send_all(self, members: Sequence[_Member]) -> Sequence[Row | Literal[Apart.APART]]:
        """Send a group; its members go apart when nothing was stored of it, or nobody knows: each is repeated by its id."""
        if len(members) < self._least:
            return [await self._send_one(m.unit, m.statement, m.params) for m in members]
        await self._failpoints.hit("group.gathered")
        try:
            rows = await self._db.call("turn.group", _SQL["group"], _group_params(members))
        except TurnkeeperError as error:
            if isinstance(error.__cause__, PoolTimeout):
                raise  # it was not sent; a statement of its own would wait as long once more
            return [APART] * len(members)
        await self._failpoints.hit("group.committed")
        answers: list[Row | Literal[Apart.APART]] = [APART] * len(members)
        for row in rows:
            if row["result"] != "skipped":
                answers[row["member"]] = row
                self._db.counters.add_member(f"turn.{members[row['member']].unit}")
        return answers


def _encoded(unit: GroupUnit, params: Mapping[str, Any]) -> bytes | None:
    """Return a unit of work as JSON; None for one that a group cannot carry, or should not."""
    values: dict[str, Any] = {**params, "what": unit}
    if "digests" in values:
        values["digests"] = ["\\x" + digest.hex() for digest in values["digests"]]
    try:
        encoded = orjson.dumps(values)
    except TypeError:
        # Text that is no Unicode, a number of more than 64 bits: its own statement says what is wrong.
        return None
    return None if len(encoded) > MEMBER_BYTES_MAX or _NUL in encoded else encoded


def _group_params(members: Sequence[_Member]) -> dict[str, Any]:
    return {
        "sessions": [m.params["session"] for m in members],
        "owners": [m.params.get("owner") for m in members],
        "members": (b"[" + b",".join([m.encoded for m in members]) + b"]").decode(),
    }
