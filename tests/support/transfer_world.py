"""A database with sessions to move and to age: long logs, finished turns, and everything of them long ago."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psycopg

from shared.database.pool import Database
from shared.domain.ids import OwnerId, SessionId, new_session_id
from shared.sessions.log import NewSession
from shared.sessions.postgres import PostgresSessionLog
from shared.sessions.records import Record, draft
from shared.transfer.export import stream_export
from shared.transfer.postgres import PostgresArchives, PostgresTransferStore
from shared.transfer.verify import Verified, verify_session

OWNER: Final = OwnerId("ann")
ALWAYS: Final = datetime.max.replace(tzinfo=UTC)

#: A log as long as wanted, of small records, whose head and chain fit: made by the database alone.
FILL: Final = """
DO $$
DECLARE v_tail bytea; v_n int; v_digest bytea; v_text text;
BEGIN
  SELECT tail INTO v_tail FROM sessions WHERE id = {session};
  FOR v_n IN 1 .. {records} LOOP
    v_text := '{{"n":' || v_n || ',"text":"' || repeat('word ', {words}) || '"}}';
    v_digest := record_digest_v1('note', v_text);
    INSERT INTO records VALUES ({session}, v_n, NULL, 'note', clock_timestamp(), v_text, v_digest);
    v_tail := sha256(v_tail || int8send(v_n) || int4send(0) || v_digest);
  END LOOP;
  UPDATE sessions SET seq = {records}, revision = {records}, tail = v_tail WHERE id = {session};
END $$
"""
#: Everything of a database happened this long ago.
AGES: Final = (
    "UPDATE sessions SET created_at = created_at - {by}, updated_at = updated_at - {by}, active_at = active_at - {by}",
    "UPDATE turns SET admitted_at = admitted_at - {by}, due_at = due_at - {by}, ended_at = ended_at - {by}",
    "UPDATE session_keys SET created_at = created_at - {by}",
    "UPDATE records SET at = at - {by}",
    "UPDATE memory_receipts SET created_at = created_at - {by}",
    "UPDATE memory_intents SET created_at = created_at - {by}, completed_at = completed_at - {by}",
)


def fill(url: str, session: str, records: int, *, words: int = 20) -> None:
    """Give an empty session a log of this many records."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(FILL.format(session=f"'{session}'", records=records, words=words).encode())


def age(url: str, days: int) -> None:
    """Let everything have happened this many days earlier."""
    with psycopg.connect(url) as connection:
        for statement in AGES:
            connection.execute(statement.format(by=f"interval '{days} days'").encode())


def count(url: str, table: str, where: str = "true") -> int:
    """Count the rows of a table."""
    with psycopg.connect(url) as connection:
        row = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}".encode()).fetchone()
        assert row is not None
        return int(row[0])


@dataclass(slots=True)
class TransferWorld:
    """The adapters over one database."""

    url: str
    database: Database
    log: PostgresSessionLog
    store: PostgresTransferStore
    archives: PostgresArchives

    async def session(self, *, notes: int = 0, owner: OwnerId = OWNER) -> SessionId:
        """Make a session with this many commits of one note."""
        session = new_session_id()
        await self.log.create(NewSession(session, owner, key=f"key of {session}"))
        for n in range(notes):
            await self.log.commit(session, owner, [draft("note", {"n": n, "text": 'ä "'})], commit_id=f"c{n}")
        return session

    async def records(self, session: SessionId) -> Sequence[Record]:
        """Read a whole log, in pages."""
        found: list[Record] = []
        while page := await self.log.read(session, after=len(found)):
            found += page
        return found

    async def export(self, session: SessionId, path: Path) -> Path:
        """Export a session to a file."""
        with path.open("wb") as file:
            async for page in stream_export(self.log, self.store, session):
                file.write(page.lines)
        return path

    async def verify(self, session: SessionId) -> Verified:
        """Verify a stored session."""
        return await verify_session(self.log, self.store, self.archives, session)


@asynccontextmanager
async def transfer_world(url: str) -> AsyncIterator[TransferWorld]:
    """Open the adapters over a migrated database."""
    database = Database(url, connections=4)
    await database.open()
    try:
        yield TransferWorld(
            url,
            database,
            PostgresSessionLog(database),
            PostgresTransferStore(database),
            PostgresArchives(database),
        )
    finally:
        await database.close()
