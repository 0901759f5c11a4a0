"""Transfer and archives on Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import orjson

from shared.database.pool import Database, Row
from shared.database.statements import load_statements
from shared.database.transactions import Transaction
from shared.domain.errors import ArchiveRefused, SessionCorrupt, SessionExists, SessionMissing, StoreDefect
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.records import Record
from shared.transfer.port import ANCHORS_PAGE, RANGE_MAX_BYTES, RANGE_MAX_RECORDS, Anchor, Import
from shared.transfer.values import (
    FACTS,
    PAGE_MAX_RECORDS,
    AnyFact,
    CallFact,
    Counts,
    KeyFact,
    Obligations,
    Section,
    SessionFact,
    Snapshot,
    TurnFact,
)

_SQL = load_statements(Path(__file__).with_name("queries.sql"))
_NO_UUID: Final = UUID(int=0)


class PostgresTransferStore:
    """Implements :class:`shared.transfer.port.TransferStore`.

    A read is one statement and its own transaction. An import is one transaction, whatever its size: a process or server
    that dies undoes it, and nobody waits for it but who makes the same session.
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    async def capture(self, session_id: SessionId, owner: OwnerId | None = None) -> Snapshot:
        """See the port."""
        rows = await self._db.read("transfer.capture", _SQL["capture"], {"id": session_id, "owner": owner})
        if not rows:
            raise SessionMissing("no such session", session=session_id)
        row = rows[0]
        return Snapshot(
            session=SessionFact(**{name: row[name] for name in SessionFact.model_fields}),
            seq=row["seq"],
            tail=bytes(row["tail"]).hex(),
            at=row["at"],
            counts=Counts(records=row["last_seq"], turns=row["turns"], keys=row["keys"], calls=row["calls"]),
            obligations=Obligations(**{name: row[name] for name in Obligations.model_fields}),
        )

    async def facts(
        self, captured: Snapshot, section: Section, after: AnyFact | None, *, max_bytes: int
    ) -> Sequence[AnyFact]:
        """See the port."""
        params = {
            "id": captured.session.id,
            "at": captured.at,
            "limit": PAGE_MAX_RECORDS,
            "max_bytes": max_bytes,
        }
        kind = FACTS[section]
        rows = await self._db.read(
            "transfer.facts", _SQL[f"{section[:-1]}_facts"], params | dict(_behind(section, after))
        )
        return [kind(**{name: row[name] for name in kind.model_fields}) for row in rows]

    @asynccontextmanager
    async def importing(
        self, session: SessionFact, *, seq: int, tail: bytes, mark: str
    ) -> AsyncIterator[Import | None]:
        """See the port."""
        # Apart and first: an owner's row that waits for a long transaction would keep others from making it.
        await self._db.call("transfer.owner", _SQL["make_owner"], {"owner": session.owner}, repeatable=True)
        async with self._db.transaction("transfer.import") as opened:
            head = session.model_dump() | {"seq": seq, "tail": tail, "mark": mark}
            [row] = await opened.run(_SQL["begin_import"], head)
            if row["result"] == "exists":
                raise SessionExists("a session of this id or creation key is there", session=session.id)
            yield None if row["result"] == "duplicate" else _PostgresImport(opened, session)


class _PostgresImport:
    """Implements :class:`shared.transfer.port.Import` inside one transaction."""

    def __init__(self, opened: Transaction, session: SessionFact) -> None:
        self._opened = opened
        self._session = session

    async def add_records(self, records: Sequence[Record]) -> None:
        """See the port."""
        params = {
            "id": self._session.id,
            "seqs": [one.seq for one in records],
            "turns": [one.turn for one in records],
            "kinds": [one.kind for one in records],
            "ats": [one.at for one in records],
            "texts": [one.text for one in records],
            "digests": [one.digest for one in records],
        }
        await self._opened.run(_SQL["import_records"], params)

    async def add_facts(self, section: Section, facts: Sequence[AnyFact]) -> None:
        """See the port."""
        text = orjson.dumps([fact.model_dump() for fact in facts]).decode()
        params = {"id": self._session.id, "owner": self._session.owner, "facts": text}
        made = await self._opened.run(_SQL[f"import_{section}"], params)
        if len(made) != len(facts):
            raise SessionExists(f"one of the file's {section} is there already", session=self._session.id)


class PostgresArchives:
    """Implements :class:`shared.transfer.port.Archives`: ranges are rows of ``record_archives``, one transaction each."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def anchors(self, session_id: SessionId, *, after: int = 0) -> Sequence[Anchor]:
        """See the port."""
        params = {"id": session_id, "after": after, "limit": ANCHORS_PAGE}
        rows = await self._db.read("archive.anchors", _SQL["anchors"], params)
        return [
            Anchor(row["first_seq"], row["last_seq"], bytes(row["tail_before"]), bytes(row["tail_after"]))
            for row in rows
        ]

    async def archive(self, session_id: SessionId, owner: OwnerId, anchor: Anchor) -> None:
        """See the port."""
        params = {
            "id": session_id,
            "owner": owner,
            "first": anchor.first_seq,
            "last": anchor.last_seq,
            "before": anchor.tail_before,
            "after": anchor.tail_after,
            "max_records": RANGE_MAX_RECORDS,
            "max_bytes": RANGE_MAX_BYTES,
        }
        [row] = await self._db.call("archive.range", _SQL["archive_range"], params)
        match row["result"]:
            case "archived":
                return
            case "missing":
                raise SessionMissing("no such session", session=session_id)
            case "corrupt":
                raise SessionCorrupt(
                    f"the records of a range do not verify: session {session_id}, seq {anchor.first_seq}",
                    session=session_id,
                    seq=anchor.first_seq,
                    field="range",
                )
            case "moved" | "open" | "large" as reason:
                raise ArchiveRefused("the range cannot be archived now", session=session_id, reason=reason)
            case other:
                raise StoreDefect("unknown answer of an archive", answer=other)

    async def limit(self, session_id: SessionId, owner: OwnerId) -> int:
        """See the port."""
        rows = await self._db.read("archive.limit", _SQL["archive_limit"], {"id": session_id, "owner": owner})
        if not rows:
            raise SessionMissing("no such session", session=session_id)
        return max(int(rows[0]["seq"]), 0)

    async def created_before(
        self,
        moment: datetime,
        *,
        owner: OwnerId | None = None,
        after: SessionId | None = None,
        limit: int = 100,
    ) -> Sequence[tuple[SessionId, OwnerId]]:
        """See the port."""
        params = {"moment": moment, "owner": owner, "after": after or "", "limit": limit}
        rows: Sequence[Row] = await self._db.read("archive.sessions", _SQL["sessions_created_before"], params)
        return [(SessionId(row["id"]), OwnerId(row["owner"])) for row in rows]


def _behind(section: Section, after: AnyFact | None) -> Mapping[str, Any]:
    """The place to go on from; before the first one when there is none."""
    match section, after:
        case "turns", TurnFact(position=position):
            return {"after": position}
        case "turns", _:
            return {"after": 0}
        case "keys", KeyFact(space=space, key=key):
            return {"space": space, "key": key}
        case "keys", _:
            return {"space": "", "key": ""}
        case _, CallFact(turn_id=turn_id, invocation_id=invocation_id):
            return {"turn": turn_id, "invocation": invocation_id}
        case _:
            return {"turn": _NO_UUID, "invocation": ""}
