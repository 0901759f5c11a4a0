"""Reads what waits in all inboxes of a database."""

from __future__ import annotations

from pathlib import Path

from shared.database.pool import Database
from shared.database.statements import load_statements
from shared.inbox.backlog import InboxBacklog

_SQL = load_statements(Path(__file__).with_name("queries.sql"))


async def read_backlog(database: Database) -> InboxBacklog:
    """Read what :meth:`shared.inbox.port.Inbox.backlog` answers."""
    [row] = await database.read("inbox.backlog", _SQL["backlog"], {})
    return InboxBacklog(row["waiting"], row["oldest_s"])
