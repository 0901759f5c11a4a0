"""The session log on Postgres."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from shared.database.pool import Database, Row
from shared.database.statements import load_statements
from shared.domain.bounds import check_json
from shared.domain.canonical import canonical_json, digest_of, first_tail
from shared.domain.errors import (
    CommitTooLate,
    HistoryConflict,
    HistoryModeConflict,
    KeyConflict,
    RevisionConflict,
    SessionExists,
    SessionMissing,
    StoreDefect,
)
from shared.domain.ids import OwnerId, SessionId, TurnId
from shared.sessions.log import LIST_MAX_SESSIONS, READ_MAX_RECORDS, Committed, Created, NewSession
from shared.sessions.postgres_reads import PageReads
from shared.sessions.records import Draft, Head, OpenTurn, Record, check_commit_size
from shared.sessions.vocabulary import refuse_reserved

_SQL = load_statements(Path(__file__).with_name("queries.sql"))


class PostgresSessionLog:
    """Implements :class:`shared.sessions.log.SessionLog`; one statement and one transaction an operation."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._pages = PageReads(database, _SQL["read_pages"])
        self._pages_back = PageReads(database, _SQL["read_pages_back"])

    async def create(self, new: NewSession) -> Created:
        """See the port."""
        meta = dict(new.meta or {})
        check_json(meta, field="meta")
        text = canonical_json(meta)
        [row] = await self._db.call(
            "session.create",
            _SQL["create_session"],
            {
                "id": new.id,
                "owner": new.owner,
                "key": new.key,
                "print": digest_of({"meta": meta, "title": new.title}),
                "title": new.title,
                "meta": text,
                "tail": first_tail(new.id),
            },
            repeatable=True,
        )
        if row["result"] == "exists":
            raise SessionExists("the creation key was used with other content", key=new.key)
        found = SessionId(row["session_id"])
        return Created(found, duplicate=row["result"] == "duplicate" and found != new.id)

    async def head(self, session_id: SessionId, owner: OwnerId) -> Head:
        """See the port."""
        rows = await self._db.read("session.head", _SQL["read_head"], {"id": session_id, "owner": owner})
        if not rows:
            raise SessionMissing("no such session", session=session_id)
        return _head(rows[0])

    async def list(
        self, owner: OwnerId, *, limit: int = 50, before: tuple[datetime, SessionId] | None = None
    ) -> Sequence[Head]:
        """See the port."""
        at, last = before if before is not None else (None, None)
        rows = await self._db.read(
            "session.list",
            _SQL["list_heads"],
            {"owner": owner, "before_at": at, "before_id": last, "limit": min(limit, LIST_MAX_SESSIONS)},
        )
        return [_head(row) for row in rows]

    async def read(
        self,
        session_id: SessionId,
        *,
        after: int = 0,
        limit: int = READ_MAX_RECORDS,
        kinds: Sequence[str] | None = None,
        turn: int | None = None,
        max_bytes: int | None = None,
    ) -> Sequence[Record]:
        """See the port."""
        params: dict[str, Any] = {"id": session_id, "after": after, "limit": min(limit, READ_MAX_RECORDS)}
        rows: Sequence[Row]
        if max_bytes is not None:
            bounds = {
                "limit": params["limit"],
                "kinds": list(kinds or ()),
                "turn": turn,
                "max_bytes": max_bytes,
            }
            # A number of a turn is one session's own.
            rows = await self._pages.read(session_id, after, bounds, shares=turn is None)
        elif kinds is None and turn is None:
            rows = await self._db.read("session.read", _SQL["read_records"], params)
        else:
            params |= {"kinds": list(kinds or ()), "turn": turn}
            rows = await self._db.read("session.read", _SQL["read_records_of_kinds"], params)
        return [record_of(row) for row in rows]

    async def read_back(
        self,
        session_id: SessionId,
        *,
        before: int | None = None,
        limit: int = READ_MAX_RECORDS,
        kinds: Sequence[str] | None = None,
    ) -> Sequence[Record]:
        """See the port."""
        bounds = {"limit": min(limit, READ_MAX_RECORDS), "kinds": list(kinds or ())}
        rows = await self._pages_back.read(session_id, before, bounds)
        return [record_of(row) for row in rows]

    async def commit(
        self,
        session_id: SessionId,
        owner: OwnerId,
        drafts: Sequence[Draft],
        *,
        commit_id: str | None = None,
        expect: int | None = None,
        not_after: datetime | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> Committed:
        """See the port."""
        refuse_reserved([d.kind for d in drafts])
        check_commit_size(drafts)
        state_text = None if state is None else canonical_json(state)
        [row] = await self._db.call(
            "session.commit",
            _SQL["commit_records"],
            {
                "id": session_id,
                "owner": owner,
                "commit": commit_id,
                "print": digest_of([state_text, *([d.kind, d.digest.hex()] for d in drafts)]),
                "expect": expect,
                "not_after": not_after,
                "kinds": [d.kind for d in drafts],
                "texts": [d.text for d in drafts],
                "digests": [d.digest for d in drafts],
                "state": state_text,
            },
            repeatable=commit_id is not None,
        )
        match row["result"]:
            case "committed":
                return Committed(row["seq"], row["revision"], row["now"])
            case "missing":
                raise SessionMissing("no such session", session=session_id)
            case "revision":
                raise RevisionConflict("the session moved on", expected=expect, actual=row["revision"])
            case "late":
                raise CommitTooLate("the commit came after its time", session=session_id)
            case "key-conflict":
                raise KeyConflict("the commit id was used with other content", key=commit_id)
            case other:
                raise StoreDefect("unknown answer of a commit", answer=other)

    async def retain(
        self, new: NewSession, drafts: Sequence[Draft], *, tail: bytes, commit_id: str
    ) -> Committed:
        """See the port."""
        check_commit_size(drafts)
        params = {
            "id": new.id,
            "owner": new.owner,
            "create_print": digest_of({"meta": {}, "title": new.title}),
            "first_tail": first_tail(new.id),
            "title": new.title,
            "tail": tail,
            "commit": commit_id,
            "print": digest_of([[d.kind, d.digest.hex()] for d in drafts]),
            "kinds": [d.kind for d in drafts],
            "texts": [d.text for d in drafts],
            "digests": [d.digest for d in drafts],
        }
        [row] = await self._db.call("session.retain", _SQL["retain_records"], params, repeatable=True)
        match row["result"]:
            case "committed":
                return Committed(row["seq"], row["revision"], row["now"])
            case "missing":
                raise SessionMissing("no such session", session=new.id)
            case "tail":
                raise HistoryConflict("another turn was kept first", session=new.id)
            case "queued":
                raise HistoryModeConflict("the session has turns of the queue", session=new.id)
            case "key-conflict":
                raise KeyConflict("the commit id was used with other content", key=commit_id)
            case other:
                raise StoreDefect("unknown answer of a whole turn", answer=other)

    async def remove(self, session_id: SessionId, owner: OwnerId) -> Sequence[SessionId]:
        """See the port."""
        rows = await self._db.call(
            "session.remove", _SQL["remove_session"], {"id": session_id, "owner": owner}, repeatable=True
        )
        return [SessionId(row["id"]) for row in rows]

    async def fork(self, child: NewSession, parent: SessionId, *, inherit: bool) -> None:
        """See the port."""
        params = {
            "id": child.id,
            "parent": parent,
            "owner": child.owner,
            "print": digest_of({"meta": {}, "title": None}),
            "tail": first_tail(child.id),
            "inherit": inherit,
        }
        [row] = await self._db.call("session.fork", _SQL["fork_session"], params, repeatable=True)
        if row["result"] == "missing":
            raise SessionMissing("no such session", session=parent)
        if row["result"] == "exists":
            raise SessionExists("another session has this id", session=child.id)

    async def find_turn(self, session_id: SessionId, owner: OwnerId, key: str) -> TurnId | None:
        """See the port."""
        params = {"id": session_id, "owner": owner, "key": key}
        rows = await self._db.read("session.find-turn", _SQL["find_turn"], params)
        if not rows:
            raise SessionMissing("no such session", session=session_id)
        return None if rows[0]["turn"] is None else TurnId(UUID(rows[0]["turn"]))

    async def seqs(self, session_ids: Sequence[SessionId]) -> Mapping[SessionId, int]:
        """See the port."""
        rows = await self._db.read("session.seqs", _SQL["read_seqs"], {"ids": list(session_ids)})
        return {SessionId(row["id"]): row["seq"] for row in rows}


def record_of(row: Row) -> Record:
    """Return the record of a stored row."""
    return Record(
        SessionId(row["session_id"]),
        row["seq"],
        row["turn"],
        row["kind"],
        row["at"],
        row["data"],
        bytes(row["digest"]),
    )


def _head(row: Row) -> Head:
    is_open = row["open_turn"] is not None
    return Head(
        id=SessionId(row["id"]),
        owner=OwnerId(row["owner"]),
        parent=None if row["parent"] is None else SessionId(row["parent"]),
        inherited=row["parent_through"],
        title=row["title"],
        meta=json.loads(row["meta"]),
        state=json.loads(row["state"]),
        seq=row["seq"],
        revision=row["revision"],
        tail=bytes(row["tail"]),
        turns=row["turns"],
        open=OpenTurn(row["open_turn"], row["open_epoch"], row["open_token"]) if is_open else None,
        inbox_waiting=row["inbox_waiting"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        now=row["now"],
        admitted=row["admitted"],
    )
