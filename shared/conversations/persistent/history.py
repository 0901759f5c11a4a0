"""Whole-turn history over a session log: load what was kept, run a turn, append it whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from shared.conversations.messages import ConversationMessage, Prompt
from shared.conversations.persistent.contexts import ContextRule
from shared.conversations.persistent.reducing import RetainedHistory, SourceTurn, fold_records
from shared.conversations.persistent.whole_turn import (
    WholeTurn,
    check_message,
    check_messages,
    drafts_of,
)
from shared.domain.canonical import first_tail
from shared.domain.errors import (
    CorruptRecord,
    HistoryConflict,
    HistoryFenced,
    HistoryIncompatible,
    HistoryMissing,
    HistoryModeConflict,
    HistoryStorage,
    KeyConflict,
    SessionMissing,
    StoreDefect,
    Unavailable,
)
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, SessionId
from shared.domain.retrying import retried
from shared.sessions.log import TITLE_CHARS, Committed, NewSession, SessionLog
from shared.sessions.records import Draft, Head, Record
from shared.sessions.vocabulary import read_stored
from shared.sessions.vocabulary_whole import WHOLE_TURN_KINDS, TurnCompleted

#: A snapshot of the context is kept at least each so many turns: a load reads no more of them.
SNAPSHOT_EVERY_TURNS: Final = 16
#: Records that one statement of a load reads: whole turns, each of three.
PAGE_RECORDS: Final = SNAPSHOT_EVERY_TURNS * len(WHOLE_TURN_KINDS)
#: Times that an append is sent, each with the same commit id, while the store is away or its answer is lost.
APPEND_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class LoadedSession:
    """A session as one load saw it: what was kept, and the log's end that an append must still find (THR-70)."""

    session_id: SessionId
    tail: bytes
    seq: int = 0
    history: RetainedHistory = field(default_factory=RetainedHistory)

    @property
    def prompt(self) -> Prompt:
        """The messages that the model is shown before the next input (THR-47, THR-64)."""
        return self.history.context

    @property
    def last_turn(self) -> SourceTurn | None:
        """The newest turn that was kept: whoever lost an answer looks for their turn here (THR-59)."""
        return self.history.turns[-1] if self.history.turns else None


class PersistentHistory:
    """Keeps whole turns of one owner's sessions in a session log. Any number of tasks and processes may share the log.

    It admits nothing, holds no lease and recovers nothing (THR-77): who may use which session is decided before
    (THR-78), and who must not do outside work twice lets one caller at a time into a session (THR-72). ``context_rule``
    says what the model is shown next; without one that is everything so far, which ends with ``HistoryFull`` at 1 MiB.

    Every error is a :class:`~shared.domain.errors.SessionHistoryError`; the log's own is its cause (THR-75).
    """

    def __init__(
        self,
        log: SessionLog,
        owner: OwnerId,
        *,
        context_rule: ContextRule | None = None,
        failpoints: Failpoints | None = None,
    ) -> None:
        self._log = log
        self._owner = owner
        self._rule = context_rule
        self._failpoints = failpoints if failpoints is not None else Failpoints()
        self._closed = False

    def close(self) -> None:
        """Refuse every later call: whatever kept the log is gone."""
        self._closed = True

    async def load(self, session_id: SessionId) -> LoadedSession:
        """Read what was kept of a session. Raises ``HistoryMissing`` when this owner has none of that id."""
        with self._translated(session_id):
            return await self._load(session_id, await self._log.head(session_id, self._owner))

    async def begin(self, session_id: SessionId, message: ConversationMessage) -> LoadedSession:
        """Read what a turn with this input begins from; a session that is not there is an empty one.

        Refuses before anything runs: an input over its bound, a context that has no room for it (``HistoryFull``), a
        session with turns of the queue (``HistoryModeConflict``).
        """
        check_message("input", message)
        with self._translated(session_id):
            try:
                head = await self._log.head(session_id, self._owner)
            except SessionMissing:
                return LoadedSession(session_id, first_tail(session_id))
            if head.admitted > 0 or head.turns > 0 or head.inbox_waiting > 0:
                raise HistoryModeConflict("the session has turns of the queue", session=session_id)
            loaded = await self._load(session_id, head)
        if self._rule is None:
            check_messages("context", [*loaded.prompt, message])
        return loaded

    async def append(self, loaded: LoadedSession, turn: WholeTurn) -> Committed:
        """Append a turn behind exactly what was loaded, all of it or nothing; return the log's head after it.

        A repeat of the same turn answers the first append and stores nothing. Raises ``HistoryConflict`` when another
        turn was kept since the load, ``HistoryFull``, ``HistoryEncoding``, ``HistoryModeConflict``; ``HistoryStorage``
        when the store did not answer: then the turn was kept whole or not at all, and a load says which (THR-59).
        """
        extended = (*loaded.prompt, turn.message, *turn.messages)
        context = turn.context
        if context is None:
            context = extended if self._rule is None else self._rule(extended)
        is_due = loaded.history.since_snapshot + 1 >= SNAPSHOT_EVERY_TURNS
        is_snapshot = is_due or list(context) != list(extended)
        drafts = drafts_of(turn, context, is_snapshot=is_snapshot)
        new = NewSession(loaded.session_id, self._owner, title=_title_of(turn.message))
        with self._translated(loaded.session_id, turn=str(turn.turn_id)):
            await self._failpoints.hit("history.ready")
            committed = await self._retain(new, drafts, loaded.tail, f"turn:{turn.turn_id}")
            await self._failpoints.hit("history.committed")
            return committed

    async def turns(self, session_id: SessionId, *, before: int | None = None) -> Sequence[SourceTurn]:
        """Read up to sixteen turns as they were kept, newest first, those before a seq (a ``SourceTurn``'s) (THR-64).

        Their messages are the source: no snapshot and no rule of the context has changed them.
        """
        with self._translated(session_id):
            await self._log.head(session_id, self._owner)
            end = None if before is None else before - len(WHOLE_TURN_KINDS) + 1
            page = await self._page(session_id, end)
            return tuple(reversed(fold_records(reversed(page)).turns))

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _load(self, session_id: SessionId, head: Head) -> LoadedSession:
        """Read backwards from the head, up to the last snapshot; the head was read first, so its tail guards it all."""
        records: list[Record] = []
        before = head.seq + 1
        while True:
            page = await self._page(session_id, before)
            records += page
            if len(page) < PAGE_RECORDS or any(map(_is_snapshot, page)):
                break
            before = page[-1].seq
        return LoadedSession(session_id, head.tail, head.seq, fold_records(reversed(records)))

    async def _page(self, session_id: SessionId, before: int | None) -> Sequence[Record]:
        return await self._log.read_back(
            session_id, before=before, limit=PAGE_RECORDS, kinds=WHOLE_TURN_KINDS
        )

    async def _retain(
        self, new: NewSession, drafts: Sequence[Draft], tail: bytes, commit_id: str
    ) -> Committed:
        return await retried(
            partial(self._log.retain, new, drafts, tail=tail, commit_id=commit_id),
            when=Unavailable,
            tries=APPEND_TRIES,
            pause_max_s=1.0,
        )

    @contextmanager
    def _translated(self, session_id: SessionId, *, turn: str | None = None) -> Iterator[None]:
        """Refuse once closed, and give the log's errors a reason of a history; they stay the cause."""
        where: dict[str, Any] = {"session": session_id} | ({} if turn is None else {"turn": turn})
        if self._closed:
            raise HistoryFenced("the history is closed", **where)
        try:
            yield
        except SessionMissing as error:
            raise HistoryMissing("no such session", **where) from error
        except KeyConflict as error:
            raise HistoryConflict("the turn was kept with other content", **where) from error
        except CorruptRecord as error:
            raise HistoryIncompatible(error.message, **error.fields) from error
        except Unavailable as error:
            raise HistoryStorage(f"the store did not answer: {error.message}", **where) from error
        except StoreDefect as error:
            raise HistoryStorage(f"the store failed: {error.message}", **where) from error


def _is_snapshot(record: Record) -> bool:
    return record.kind == "history.turn-completed" and read_stored(TurnCompleted, record).context is not None


def _title_of(message: ConversationMessage) -> str | None:
    return message.text[:TITLE_CHARS] or None
