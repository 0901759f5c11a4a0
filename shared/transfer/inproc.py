"""Transfer and archives in this process's memory: the twins, over the store that the session log and the turns share.

They show results and refusals. An archived range stays where it is, as there is no other form to move it to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from shared.domain.canonical import chain_tail, first_tail, record_digest
from shared.domain.errors import ArchiveRefused, SessionCorrupt, SessionExists, SessionMissing
from shared.domain.ids import OwnerId, RunId, SessionId, TurnId
from shared.sessions.inproc import InprocStore, KeySpace, StoredKey, StoredSession
from shared.sessions.records import Record
from shared.tasks.inproc import TaskTables
from shared.transfer.port import ANCHORS_PAGE, RANGE_MAX_BYTES, RANGE_MAX_RECORDS, Anchor, Import
from shared.transfer.values import (
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
    place_of,
)
from shared.turns.inproc.rows import TurnRow, TurnTables
from shared.turns.queue import FINISHED, CallEntry


@dataclass(slots=True)
class ArchiveTable:
    """The archived ranges of a store."""

    ranges: dict[SessionId, list[Anchor]] = field(default_factory=dict)

    def forget(self, sessions: Collection[SessionId]) -> None:
        """Drop the ranges of removed sessions."""
        for session_id in sessions:
            self.ranges.pop(session_id, None)


class InprocTransferStore:
    """Implements :class:`shared.transfer.port.TransferStore` over an :class:`InprocStore`."""

    def __init__(self, store: InprocStore) -> None:
        self._store = store

    async def capture(self, session_id: SessionId, owner: OwnerId | None = None) -> Snapshot:
        """See the port."""
        await self._store.reached()
        session = self._store.sessions.get(session_id)
        if session is None or (owner is not None and session.owner != owner):
            raise SessionMissing("no such session", session=session_id)
        counts = {section: len(self._facts(session_id, section)) for section in ("turns", "keys", "calls")}
        rows = list(self._store.part(TurnTables).of_session(session_id))
        children = [one.id for one in self._store.sessions.values() if one.parent == session_id]
        tasks = [row for row in self._store.part(TurnTables).turns.values() if row.session_id in children]
        unfinished = sum(row.origin == "task" and row.status not in FINISHED for row in tasks)
        owed = sum(not kept.is_settled for kept in self._store.part(TaskTables).of(session_id))
        return Snapshot(
            session=SessionFact(
                id=session.id,
                owner=session.owner,
                parent=session.parent,
                create_key=session.key,
                create_print=session.fingerprint,
                title=session.title,
                meta=session.meta,
                state=session.state,
                revision=session.revision,
                next_position=session.next_position,
                next_number=session.next_number,
                retained=session.retained,
                created_at=session.created_at,
                updated_at=session.updated_at,
                active_at=session.active_at,
            ),
            seq=session.seq,
            tail=session.tail.hex(),
            at=self._store.now(),
            counts=Counts(records=len(session.records), **counts),
            obligations=Obligations(
                unfinished_turns=sum(row.status not in FINISHED for row in rows),
                waiting_items=session.inbox_waiting,
                unfinished_tasks=unfinished,
                owed_deliveries=max(owed - unfinished, 0),
                inherited=session.parent_through or 0,
            ),
        )

    async def facts(
        self, captured: Snapshot, section: Section, after: AnyFact | None, *, max_bytes: int
    ) -> Sequence[AnyFact]:
        """See the port."""
        await self._store.reached()
        found = [
            fact for fact in self._facts(SessionId(captured.session.id), section) if _is_as_of(fact, captured)
        ]
        if after is not None:
            found = [fact for fact in found if place_of(fact) > place_of(after)]
        return found[:PAGE_MAX_RECORDS]

    def _facts(self, session_id: SessionId, section: Section) -> list[AnyFact]:
        tables = self._store.part(TurnTables)
        rows = [row for row in tables.of_session(session_id) if row.status in FINISHED]
        found: list[AnyFact]
        match section:
            case "turns":
                found = [_turn_fact(row) for row in rows]
            case "keys":
                created = self._store.sessions[session_id].created_at
                found = [
                    _key_fact(place[1], place[2], key, created)
                    for place, key in self._store.keys.items()
                    if place[0] == session_id
                ]
            case "calls":
                found = [
                    _call_fact(row.id, call)
                    for row in rows
                    for call in tables.ledger.get(row.id, {}).values()
                ]
        return sorted(found, key=place_of)

    @asynccontextmanager
    async def importing(
        self, session: SessionFact, *, seq: int, tail: bytes, mark: str
    ) -> AsyncIterator[Import | None]:
        """See the port."""
        await self._store.reached()
        place: tuple[SessionId, KeySpace, str] = (SessionId(session.id), "commit", mark)
        standing = self._store.sessions.get(SessionId(session.id))
        if standing is not None and standing.owner == session.owner and place in self._store.keys:
            yield None
            return
        taken = session.create_key is not None and any(
            (one.owner, one.key) == (session.owner, session.create_key)
            for one in self._store.sessions.values()
        )
        if standing is not None or taken:
            raise SessionExists("a session of this id or creation key is there", session=session.id)
        made = _InprocImport(self._store)
        yield made
        head = _stored(session, seq, tail)
        head.records.extend(made.records)
        self._store.sessions[head.id] = head
        self._store.part(TurnTables).turns.update({row.id: row for row in made.turns(head)})
        self._store.part(TurnTables).ledger.update(made.calls)
        self._store.keys.update({(head.id, space, key): found for (space, key), found in made.keys.items()})
        self._store.keys[place] = StoredKey(mark, (seq, session.revision))


class _InprocImport:
    """Implements :class:`shared.transfer.port.Import`: keeps everything until the block around it ends."""

    def __init__(self, store: InprocStore) -> None:
        self._store = store
        self.records: list[Record] = []
        self.keys: dict[tuple[KeySpace, str], StoredKey] = {}
        self.calls: dict[TurnId, dict[str, CallEntry]] = {}
        self._turns: list[TurnFact] = []

    async def add_records(self, records: Sequence[Record]) -> None:
        """See the port."""
        await self._store.reached()
        self.records += records

    async def add_facts(self, section: Section, facts: Sequence[AnyFact]) -> None:
        """See the port."""
        await self._store.reached()
        for fact in facts:
            match fact:
                case TurnFact():
                    if TurnId(fact.id) in self._store.part(TurnTables).turns:
                        raise SessionExists("one of the file's turns is there already", turn=str(fact.id))
                    self._turns.append(fact)
                case KeyFact():
                    self.keys[cast(KeySpace, fact.space), fact.key] = StoredKey(
                        fact.fingerprint, _answer(fact)
                    )
                case CallFact():
                    self.calls.setdefault(TurnId(fact.turn_id), {})[fact.invocation_id] = _call(fact)

    def turns(self, head: StoredSession) -> list[TurnRow]:
        """The rows of the session, now that it stands."""
        return [_row(fact, head) for fact in self._turns]


class InprocArchives:
    """Implements :class:`shared.transfer.port.Archives`: notes the ranges beside the log."""

    def __init__(self, store: InprocStore) -> None:
        self._store = store

    async def anchors(self, session_id: SessionId, *, after: int = 0) -> Sequence[Anchor]:
        """See the port."""
        await self._store.reached()
        ranges = self._store.part(ArchiveTable).ranges.get(session_id, [])
        return [one for one in ranges if one.last_seq > after][:ANCHORS_PAGE]

    async def archive(self, session_id: SessionId, owner: OwnerId, anchor: Anchor) -> None:
        """See the port."""
        await self._store.reached()
        session = self._store.owned(session_id, owner)
        ranges = self._store.part(ArchiveTable).ranges.setdefault(session_id, [])
        first, before = (
            (ranges[-1].last_seq + 1, ranges[-1].tail_after) if ranges else (1, first_tail(session_id))
        )
        if (anchor.first_seq, anchor.tail_before) != (first, before):
            raise ArchiveRefused("another range is next", session=session_id, reason="moved")
        if anchor.last_seq < first or anchor.last_seq > self._limit(session):
            raise ArchiveRefused("the range is not at rest", session=session_id, reason="open")
        records = session.records[first - 1 : anchor.last_seq]
        size = sum(len(record.text.encode()) for record in records)
        if len(records) > RANGE_MAX_RECORDS or (size > RANGE_MAX_BYTES and len(records) > 1):
            raise ArchiveRefused("the range is too large", session=session_id, reason="large")
        tail = before
        for record in records:
            tail = chain_tail(tail, record.seq, record.turn, record.digest)
        sound = all(record_digest(one.kind, one.text) == one.digest for one in records)
        if not sound or tail != anchor.tail_after:
            raise SessionCorrupt(
                "the records of a range do not verify", session=session_id, seq=first, field="range"
            )
        ranges.append(anchor)

    async def limit(self, session_id: SessionId, owner: OwnerId) -> int:
        """See the port."""
        await self._store.reached()
        return self._limit(self._store.owned(session_id, owner))

    def _limit(self, session: StoredSession) -> int:
        started: int | None = None
        if session.open is not None:
            started = self._store.part(TurnTables).turns[TurnId(session.open.turn_id)].started_seq
        return max(min(session.seq, session.seq if started is None else started) - 1, 0)

    async def created_before(
        self,
        moment: datetime,
        *,
        owner: OwnerId | None = None,
        after: SessionId | None = None,
        limit: int = 100,
    ) -> Sequence[tuple[SessionId, OwnerId]]:
        """See the port."""
        await self._store.reached()
        found = sorted(
            (one.id, one.owner)
            for one in self._store.sessions.values()
            if one.created_at < moment and (owner is None or one.owner == owner) and one.id > (after or "")
        )
        return found[:limit]


def _is_as_of(fact: AnyFact, captured: Snapshot) -> bool:
    """Keys have no time here: a commit's says which seq it led to, and a turn's row says when it ended."""
    match fact:
        case TurnFact():
            return fact.ended_at <= captured.at
        case KeyFact(space="commit"):
            return int(fact.answer.partition(":")[2]) <= captured.seq
        case _:
            return True


def _stored(session: SessionFact, seq: int, tail: bytes) -> StoredSession:
    return StoredSession(
        id=SessionId(session.id),
        owner=OwnerId(session.owner),
        key=session.create_key,
        fingerprint=session.create_print or "",
        title=session.title,
        meta=session.meta,
        tail=tail,
        created_at=session.created_at,
        updated_at=session.updated_at,
        active_at=session.active_at,
        state=session.state,
        seq=seq,
        revision=session.revision,
        next_position=session.next_position,
        next_number=session.next_number,
        retained=session.retained,
    )


def _turn_fact(row: TurnRow) -> TurnFact:
    said: dict[str, Any] = {name: getattr(row, name, None) for name in TurnFact.model_fields}
    return TurnFact(**said | {"last_failure": row.failure, "fingerprint": "", "history": "per-step"})


def _row(fact: TurnFact, head: StoredSession) -> TurnRow:
    known = TurnRow.__dataclass_fields__.keys()
    said: dict[str, Any] = {name: value for name, value in fact.model_dump().items() if name in known}
    said |= {"id": TurnId(fact.id), "run_id": RunId(fact.run_id), "failure": fact.last_failure}
    return TurnRow(session_id=head.id, owner=head.owner, **said)


def _key_fact(space: str, key: str, found: StoredKey, created: datetime) -> KeyFact:
    answer = found.answer
    text = f"{answer[1]}:{answer[0]}" if isinstance(answer, tuple) else str(answer)
    return KeyFact(space=space, key=key, fingerprint=found.fingerprint, answer=text, created_at=created)


def _answer(fact: KeyFact) -> object:
    match fact.space:
        case "turn" | "run":
            return TurnId(UUID(fact.answer))
        case "commit":
            revision, _, seq = fact.answer.partition(":")
            return (int(seq), int(revision))
        case _:
            return int(fact.answer) if fact.answer.isdigit() else fact.answer


def _call_fact(turn_id: TurnId, call: CallEntry) -> CallFact:
    said: dict[str, Any] = {name: getattr(call, name, None) for name in CallFact.model_fields}
    return CallFact(**said | {"turn_id": turn_id})


def _call(fact: CallFact) -> CallEntry:
    known = CallEntry.__dataclass_fields__.keys()
    return CallEntry(**{name: value for name, value in fact.model_dump().items() if name in known})
