"""The session log's port: heads, reading, and commits outside a turn. Commits of a turn are the turn queue's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from shared.domain.ids import OwnerId, SessionId, TurnId
from shared.sessions.records import Draft, Head, Record

READ_MAX_RECORDS = 1_000
LIST_MAX_SESSIONS = 200
TITLE_CHARS = 80


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to create. ``key`` makes the creation idempotent per owner; ``meta`` is part of what it is."""

    id: SessionId
    owner: OwnerId
    key: str | None = None
    title: str | None = None
    meta: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """The answer of ``create``; ``duplicate`` when the key had made this session before."""

    session_id: SessionId
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer of ``commit``: the head after it, and the store's clock when it was judged."""

    seq: int
    revision: int
    now: datetime


class SessionLog(Protocol):
    """Stores sessions. Another owner's session reads as absent in every operation (SES-35).

    All may raise ``StoreBusy`` (nothing stored) and ``StoreUnavailable`` (a write's outcome is unknown).
    """

    async def create(self, new: NewSession) -> Created:
        """Create a session and its owner's row in one transaction.

        The same owner and key again answer the first session; with another ``meta`` or title ``SessionExists``. A
        repeat with the same id after a lost answer finds what it made, and is no duplicate to its caller.
        """
        ...

    async def head(self, session_id: SessionId, owner: OwnerId) -> Head:
        """Read the head; raises ``SessionMissing``. Takes no lock and runs nothing."""
        ...

    async def list(
        self, owner: OwnerId, *, limit: int = 50, before: tuple[datetime, SessionId] | None = None
    ) -> Sequence[Head]:
        """Read an owner's sessions, last active first; ``before`` is the last page's (active time, id) (SES-10)."""
        ...

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
        """Read records with ``seq > after`` in order, at most ``limit``; optionally of some kinds or one turn (SES-11).

        With ``max_bytes`` no record follows once the payloads are that large together; the first always comes.
        The caller has established that the owner may read this session. A missing session reads as empty.
        """
        ...

    async def read_back(
        self,
        session_id: SessionId,
        *,
        before: int | None = None,
        limit: int = READ_MAX_RECORDS,
        kinds: Sequence[str] | None = None,
    ) -> Sequence[Record]:
        """Read records with ``seq < before`` (None: the newest there are), last first, at most ``limit``, of some kinds.

        What it costs follows what is between the first and the last of them, never the log's length.
        """
        ...

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
        """Append records outside a turn, all or nothing.

        With ``expect`` only while the revision is that one (``RevisionConflict``); with ``not_after`` only while the
        store's clock has not passed it, judged after the head's lock was had (``CommitTooLate``). A repeated ``commit_id`` answers the first result, and with other content ``KeyConflict``.
        Framework kinds are refused (``ReservedKind``), nothing of that call is stored.
        """
        ...

    async def retain(
        self, new: NewSession, drafts: Sequence[Draft], *, tail: bytes, commit_id: str
    ) -> Committed:
        """Append a whole turn that no queue runs, in one transaction, only behind the tail that its run began from.

        A session that is absent is made first, while ``tail`` is an empty log's; ``new``'s key and meta say nothing here.
        Framework kinds are taken. A repeated ``commit_id`` answers the first result, and with other content
        ``KeyConflict``; that is judged before the tail. Raises ``HistoryConflict`` for another tail,
        ``HistoryModeConflict`` for a session that ever had a turn of the queue, inbox items or a task (from the first append
        on the session takes none), ``SessionMissing``, ``InputTooLarge``.
        """
        ...

    async def remove(self, session_id: SessionId, owner: OwnerId) -> Sequence[SessionId]:
        """Remove a session with all its descendants and all they own; return the removed ids, empty when there was none."""
        ...

    async def fork(self, child: NewSession, parent: SessionId, *, inherit: bool) -> None:
        """Create a session as the child of another of its owner, without key, title and meta (SES-71).

        With ``inherit`` its history is the parent's up to its last closed turn, as of now, and its turns count on from
        there (SES-72). Raises ``SessionMissing`` for the parent; a repeat with the same id finds what it made.
        """
        ...

    async def find_turn(self, session_id: SessionId, owner: OwnerId, key: str) -> TurnId | None:
        """Find the turn of a key; None when the session has none. Reads no record (SES-70, 159)."""
        ...

    async def seqs(self, session_ids: Sequence[SessionId]) -> Mapping[SessionId, int]:
        """Read the current seq of many sessions in one statement; absent ones are left out (core 10)."""
        ...
