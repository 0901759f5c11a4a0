"""The session log in this process's memory: the twin of the Postgres one, and the store that it shares with the turns.

Gone with the process: for tests and trials, never for work that must outlive it. The twin shows results, order and
fences, not locks (decision 44). JSON is kept as text, as in the database, so that what goes in or comes out is a copy.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import Any, Literal, Protocol, TypeVar, cast

from shared.domain.bounds import check_json
from shared.domain.canonical import canonical_json, chain_tail, digest_of, first_tail
from shared.domain.errors import (
    CommitTooLate,
    HistoryConflict,
    HistoryModeConflict,
    KeyConflict,
    RevisionConflict,
    SessionExists,
    SessionMissing,
)
from shared.domain.ids import OwnerId, SessionId, TurnId
from shared.leases.inproc import Clock, utc_now
from shared.sessions.log import LIST_MAX_SESSIONS, READ_MAX_RECORDS, Committed, Created, NewSession
from shared.sessions.records import Draft, Head, OpenTurn, Record, check_commit_size
from shared.sessions.vocabulary import refuse_reserved

KeySpace = Literal["turn", "run", "inbox", "task", "commit"]


@dataclass(slots=True)
class StoredSession:
    """A head with its log; ``meta`` and ``state`` are canonical JSON."""

    id: SessionId
    owner: OwnerId
    key: str | None
    fingerprint: str
    title: str | None
    meta: str
    tail: bytes
    created_at: datetime
    updated_at: datetime
    active_at: datetime
    parent: SessionId | None = None
    parent_through: int | None = None
    parent_number: int = 0
    state: str = "{}"
    seq: int = 0
    revision: int = 0
    next_position: int = 1
    next_number: int = 1
    open: OpenTurn | None = None
    last_commit: str | None = None
    last_seq: int = 0
    inbox_waiting: int = 0
    retained: bool = False
    has_started_tasks: bool = False
    records: list[Record] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What a key answered first: the content's fingerprint, and the answer."""

    fingerprint: str
    answer: Any


class StorePart(Protocol):
    """Tables of another subsystem that live and die with the sessions of a store."""

    def forget(self, sessions: Collection[SessionId]) -> None:
        """Drop all rows of these sessions."""
        ...


P = TypeVar("P", bound=StorePart)


class InprocStore:
    """Everything that one database would hold. Handles over the same store see each other's work.

    ``now`` is the clock that judges; ``started_at`` is when the store began, as a database server's start.
    """

    def __init__(self, clock: Clock = utc_now) -> None:
        self.now = clock
        self.started_at = clock()
        self.sessions: dict[SessionId, StoredSession] = {}
        self.keys: dict[tuple[SessionId, KeySpace, str], StoredKey] = {}
        self._parts: dict[type[StorePart], StorePart] = {}

    async def reached(self) -> None:
        """Let other tasks run once, as a round trip would; what follows it in an operation is atomic."""
        await asyncio.sleep(0)

    def part(self, kind: type[P]) -> P:
        """Return the store's one instance of these tables, made at the first call."""
        if kind not in self._parts:
            self._parts[kind] = kind()
        return cast(P, self._parts[kind])

    def owned(self, session_id: SessionId, owner: OwnerId) -> StoredSession:
        """Return an owner's session; raises ``SessionMissing``."""
        session = self.sessions.get(session_id)
        if session is None or session.owner != owner:
            raise SessionMissing("no such session", session=session_id)
        return session

    def queued(self, session_id: SessionId, owner: OwnerId) -> StoredSession:
        """Return an owner's session that takes turns of the queue; raises ``HistoryModeConflict`` for one of whole turns."""
        session = self.owned(session_id, owner)
        if session.retained:
            raise HistoryModeConflict("the session keeps whole turns: it takes no turn of the queue")
        return session

    def append(
        self,
        session: StoredSession,
        drafts: Sequence[Draft],
        *,
        turn: int | None = None,
        commit_id: str | None = None,
        active: bool = True,
    ) -> int:
        """Append records and return the new seq. ``active`` moves the session to the front of its owner's list."""
        now = self.now()
        for new in drafts:
            session.seq += 1
            session.tail = chain_tail(session.tail, session.seq, turn, new.digest)
            session.records.append(Record(session.id, session.seq, turn, new.kind, now, new.text, new.digest))
        session.revision += 1
        session.updated_at = now
        if active:
            session.active_at = now
        if commit_id is not None:
            session.last_commit, session.last_seq = commit_id, session.seq
        return session.seq

    def remove(self, ids: Collection[SessionId]) -> None:
        """Drop sessions with all that is stored for them."""
        for part in self._parts.values():
            part.forget(ids)
        for session_id in ids:
            del self.sessions[session_id]
        self.keys = {place: key for place, key in self.keys.items() if place[0] not in ids}


class InprocSessionLog:
    """Implements :class:`shared.sessions.log.SessionLog` over an :class:`InprocStore`."""

    def __init__(self, store: InprocStore) -> None:
        self._store = store

    async def create(self, new: NewSession) -> Created:
        """See the port."""
        meta = dict(new.meta or {})
        check_json(meta, field="meta")
        text, fingerprint = canonical_json(meta), digest_of({"meta": meta, "title": new.title})
        await self._store.reached()
        first = self._first(new)
        if first is None:
            now = self._store.now()
            self._store.sessions[new.id] = StoredSession(
                new.id, new.owner, new.key, fingerprint, new.title, text, first_tail(new.id), now, now, now
            )
            return Created(new.id, duplicate=False)
        if first.owner != new.owner or first.fingerprint != fingerprint:
            raise SessionExists("the creation key was used with other content", key=new.key)
        return Created(first.id, duplicate=first.id != new.id)

    def _first(self, new: NewSession) -> StoredSession | None:
        """The session that stands where this one would: by its owner's key, else by its id."""
        for session in self._store.sessions.values():
            if new.key is not None and (session.owner, session.key) == (new.owner, new.key):
                return session
        return self._store.sessions.get(new.id)

    async def head(self, session_id: SessionId, owner: OwnerId) -> Head:
        """See the port."""
        await self._store.reached()
        session = self._store.owned(session_id, owner)
        return _head(session, self._store.now(), session.updated_at)

    async def list(
        self, owner: OwnerId, *, limit: int = 50, before: tuple[datetime, SessionId] | None = None
    ) -> Sequence[Head]:
        """See the port."""
        await self._store.reached()
        found = [s for s in self._store.sessions.values() if s.owner == owner]
        if before is not None:
            found = [s for s in found if (s.active_at, s.id) < before]
        found.sort(key=lambda s: (s.active_at, s.id), reverse=True)
        now = self._store.now()
        return [_head(s, now, s.active_at) for s in found[: min(limit, LIST_MAX_SESSIONS)]]

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
        wanted = frozenset(kinds or ())
        await self._store.reached()
        session = self._store.sessions.get(session_id)
        found = [
            record
            for record in (session.records[max(after, 0) :] if session is not None else ())
            if (not wanted or record.kind in wanted) and (turn is None or record.turn == turn)
        ]
        found = found[: min(limit, READ_MAX_RECORDS)]
        if max_bytes is None:
            return found
        sizes = accumulate((len(record.text.encode()) for record in found), initial=0)
        return [record for record, before in zip(found, sizes, strict=False) if before < max_bytes]

    async def read_back(
        self,
        session_id: SessionId,
        *,
        before: int | None = None,
        limit: int = READ_MAX_RECORDS,
        kinds: Sequence[str] | None = None,
    ) -> Sequence[Record]:
        """See the port."""
        wanted = frozenset(kinds or ())
        await self._store.reached()
        session = self._store.sessions.get(session_id)
        end = None if before is None else max(before - 1, 0)
        found = [
            record
            for record in reversed(session.records[:end] if session is not None else ())
            if not wanted or record.kind in wanted
        ]
        return found[: min(limit, READ_MAX_RECORDS)]

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
        drafts = tuple(drafts)
        refuse_reserved([d.kind for d in drafts])
        check_commit_size(drafts)
        state_text = None if state is None else canonical_json(state)
        fingerprint = digest_of([state_text, *([d.kind, d.digest.hex()] for d in drafts)])
        await self._store.reached()
        session, now = self._store.owned(session_id, owner), self._store.now()
        if commit_id is not None and (first := self._store.keys.get((session_id, "commit", commit_id))):
            if first.fingerprint != fingerprint:
                raise KeyConflict("the commit id was used with other content", key=commit_id)
            seq, revision = first.answer
            return Committed(seq, revision, now)
        if expect is not None and expect != session.revision:
            raise RevisionConflict("the session moved on", expected=expect, actual=session.revision)
        if not_after is not None and now > not_after:
            raise CommitTooLate("the commit came after its time", session=session_id)
        seq = self._store.append(session, drafts)
        if state_text is not None:
            session.state = state_text
        if commit_id is not None:
            place: tuple[SessionId, KeySpace, str] = (session_id, "commit", commit_id)
            self._store.keys[place] = StoredKey(fingerprint, (seq, session.revision))
        return Committed(seq, session.revision, now)

    async def retain(
        self, new: NewSession, drafts: Sequence[Draft], *, tail: bytes, commit_id: str
    ) -> Committed:
        """See the port."""
        drafts = tuple(drafts)
        check_commit_size(drafts)
        fingerprint = digest_of([[d.kind, d.digest.hex()] for d in drafts])
        await self._store.reached()
        now = self._store.now()
        session = self._store.sessions.get(new.id)
        if session is None and tail == first_tail(new.id):
            made = digest_of({"meta": {}, "title": new.title})
            session = StoredSession(new.id, new.owner, None, made, new.title, "{}", tail, now, now, now)
            self._store.sessions[new.id] = session
        if session is None or session.owner != new.owner:
            raise SessionMissing("no such session", session=new.id)
        place: tuple[SessionId, KeySpace, str] = (new.id, "commit", commit_id)
        if (first := self._store.keys.get(place)) is not None:
            if first.fingerprint != fingerprint:
                raise KeyConflict("the commit id was used with other content", key=commit_id)
            seq, revision = first.answer
            return Committed(seq, revision, now)
        has_rows = session.next_position > 1 or session.next_number > 1 or session.inbox_waiting > 0
        if has_rows or (session.has_started_tasks and not session.retained):
            raise HistoryModeConflict("the session has turns of the queue", session=new.id)
        if session.tail != tail:
            raise HistoryConflict("another turn was kept first", session=new.id)
        seq = self._store.append(session, drafts)
        session.retained, session.title = True, session.title or new.title
        self._store.keys[place] = StoredKey(fingerprint, (seq, session.revision))
        return Committed(seq, session.revision, now)

    async def remove(self, session_id: SessionId, owner: OwnerId) -> Sequence[SessionId]:
        """See the port."""
        await self._store.reached()
        session = self._store.sessions.get(session_id)
        if session is None or session.owner != owner:
            return []
        removed, generation = [session_id], {session_id}
        while generation:
            generation = {s.id for s in self._store.sessions.values() if s.parent in generation}
            removed += sorted(generation)
        self._store.remove(removed)
        return removed

    async def fork(self, child: NewSession, parent: SessionId, *, inherit: bool) -> None:
        """See the port."""
        fingerprint = digest_of({"meta": {}, "title": None})
        await self._store.reached()
        above, now = self._store.owned(parent, child.owner), self._store.now()
        made = self._store.sessions.get(child.id)
        if made is not None:
            if made.parent != parent:
                raise SessionExists("another session has this id", session=child.id)
            return
        session = StoredSession(
            child.id, child.owner, None, fingerprint, None, "{}", first_tail(child.id), now, now, now, parent
        )
        if inherit:
            last = next((r for r in reversed(above.records) if r.kind == "turn.ended"), None)
            session.parent_through = 0 if last is None else last.seq
            session.parent_number = above.parent_number if last is None else last.turn or 0
            session.next_number = session.parent_number + 1
        self._store.sessions[child.id] = session

    async def find_turn(self, session_id: SessionId, owner: OwnerId, key: str) -> TurnId | None:
        """See the port."""
        await self._store.reached()
        self._store.owned(session_id, owner)
        found = self._store.keys.get((session_id, "turn", key))
        return None if found is None else TurnId(found.answer)

    async def seqs(self, session_ids: Sequence[SessionId]) -> Mapping[SessionId, int]:
        """See the port."""
        await self._store.reached()
        found = (self._store.sessions.get(session_id) for session_id in session_ids)
        return {session.id: session.seq for session in found if session is not None}


def _head(session: StoredSession, now: datetime, updated_at: datetime) -> Head:
    return Head(
        id=session.id,
        owner=session.owner,
        parent=session.parent,
        inherited=session.parent_through,
        title=session.title,
        meta=json.loads(session.meta),
        state=json.loads(session.state),
        seq=session.seq,
        revision=session.revision,
        tail=session.tail,
        turns=session.next_number - 1,
        open=session.open,
        inbox_waiting=session.inbox_waiting,
        created_at=session.created_at,
        updated_at=updated_at,
        now=now,
        admitted=session.next_position - 1,
    )
