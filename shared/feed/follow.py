"""Following a session or a turn: replay after a cursor, then what comes, as one iterator (FOL-01, 05)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, assert_never

from shared.domain.errors import Unavailable
from shared.domain.ids import OwnerId, SessionId, TurnId
from shared.feed.entries import (
    DeltaEvent,
    EndEvent,
    FollowEvent,
    RecordEvent,
    ResetEvent,
    SnapshotEvent,
)
from shared.feed.merge import SessionMerge
from shared.feed.port import FeedReader, Listening
from shared.feed.watcher import AwaitedTurn, SessionTail, SessionWatcher, read_page
from shared.sessions.log import SessionLog
from shared.sessions.records import Head, Record
from shared.sessions.vocabulary import TurnEnded, read_stored
from shared.turns.queue import FINISHED, Receipt, TurnQueue, TurnView

REMOVED: Final = "session.missing"

#: Events in order, those that are ready together in one list, which is never empty: whoever sends them on sends one piece.
#: Close it when the reader is gone: that ends what it holds.
Events: TypeAlias = AsyncGenerator[list[FollowEvent], None]


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a follower begins, what it says first, and the head that it was judged by."""

    cursor: int
    head: int
    first: ResetEvent | None = None


@dataclass(frozen=True, slots=True)
class _Followed:
    """The one turn that a follower is about, as it stood when it came."""

    turn_id: TurnId
    is_opened: bool = False


class Following:
    """Follows sessions and turns for one producer process. ``feed`` is None where there is none: then no text, no deltas."""

    def __init__(
        self, log: SessionLog, queue: TurnQueue, watcher: SessionWatcher, feed: FeedReader | None
    ) -> None:
        self._log = log
        self._queue = queue
        self._watcher = watcher
        self._feed = feed

    async def follow_session(
        self,
        session_id: SessionId,
        owner: OwnerId,
        *,
        after: int = 0,
        kinds: Collection[str] | None = None,
    ) -> Events:
        """Return the events of a session after a cursor: its records, then new ones, and the open turn's text.

        Stays open until the session is removed. ``kinds`` chooses the records shown and changes no id (D02). Raises
        ``SessionMissing`` (also for another owner's, FOL-07) and ``StoreUnavailable`` here; while it runs, trouble of the
        store is waited out, and what waiting cannot mend (a ``Broken``) is raised. Close the iterator when the reader is gone.
        """
        head = await self._log.head(session_id, owner)
        if after > head.seq:
            start = _Start(head.seq, head.seq, ResetEvent("cursor", after=head.seq))
        else:
            start = await self._start(head, after)
        merge = SessionMerge(head_seq=head.seq, has_feed=self._feed is not None)
        if head.open is not None and start.cursor > 0:
            view = await self._queue.get(TurnId(head.open.turn_id), owner)
            if view.number is not None and start.cursor > _before(view):
                merge.adopt(view.turn_id, view.number)
        return _shown(_Follower(self, merge, session_id, start).run(), kinds)

    async def follow_turn(
        self,
        turn_id: TurnId,
        owner: OwnerId,
        *,
        after: int | None = None,
        kinds: Collection[str] | None = None,
    ) -> Events:
        """Return the events of one turn, from its first record or after a cursor, to its end.

        The last event is its ``EndEvent``, also for a turn that never opened or was over before, and without Redis (D01).
        Raises ``TurnMissing`` (also for another owner's), ``SessionMissing`` and ``StoreUnavailable`` here.
        """
        view = await self._queue.get(turn_id, owner)
        head = await self._log.head(view.session_id, owner)
        if view.status not in FINISHED:
            # Looked at again after the head: now it is over, or open, or all its records come after that head.
            view = await self._queue.get(turn_id, owner)
        first = head.seq if view.number is None else _before(view)
        is_beyond = after is not None and after > head.seq
        start = await self._start(head, first if after is None or is_beyond else max(after, first))
        if is_beyond and start.first is None:
            start = replace(start, first=ResetEvent("cursor", after=start.cursor))
        merge = SessionMerge(head_seq=head.seq, has_feed=self._feed is not None, turn=turn_id)
        if view.number is not None and start.cursor > first:
            is_open = head.open is not None and head.open.turn_id == turn_id
            merge.adopt(turn_id if is_open else None, view.number)
        if view.status in FINISHED:
            return _shown(self._replay(view, merge, start), kinds)
        turn = _Followed(turn_id, is_opened=view.number is not None)
        return _shown(_Follower(self, merge, head.id, start, turn=turn).run(), kinds)

    def follow_admitted(self, receipt: Receipt) -> Events:
        """Return the events of a turn whose admission was answered just now, to its end: without a statement before the first look.

        What the receipt says is what :meth:`follow_turn` would find: every record of the turn comes after ``receipt.after``.
        Not for a duplicate's, whose turn may have begun long before. While it runs it raises as that does.
        """
        merge = SessionMerge(head_seq=receipt.after, has_feed=self._feed is not None, turn=receipt.turn_id)
        start = _Start(receipt.after, receipt.after)
        return _Follower(self, merge, receipt.session_id, start, turn=_Followed(receipt.turn_id)).run()

    async def _start(self, head: Head, after: int) -> _Start:
        """Begin after the cursor; a reader whose cursor is older than what is kept is told so (D07)."""
        if after < head.seq:
            kept = await self._log.read(head.id, after=after, limit=1)
            before = kept[0].seq - 1 if kept else head.seq
            if before > after:
                return _Start(before, head.seq, ResetEvent("gone", after=before))
        return _Start(after, head.seq)

    async def _replay(self, view: TurnView, merge: SessionMerge, start: _Start) -> Events:
        """A turn that is over: its records from the log, then its end.

        Pages are not asked for by turn: a page would then be looked for through all that came after it.
        """
        ready: list[FollowEvent] = [start.first] if start.first is not None else []
        cursor, is_last = start.cursor, view.number is None
        while not is_last:
            page = await read_page(self._log, view.session_id, after=cursor, kinds=self._watcher.kinds)
            cursor, is_last = page.through, page.is_last
            for record in page.records:
                is_last = is_last or _is_past(record, view)
                ready += merge.of_record(record)
            if ready and not is_last:
                yield ready
                ready = []
        yield [*ready, _end_of(view)]


class _Follower:
    """One run of a follower: the state between its looks at the log, the text and the turn's row."""

    def __init__(
        self,
        parts: Following,
        merge: SessionMerge,
        session_id: SessionId,
        start: _Start,
        *,
        turn: _Followed | None = None,
    ) -> None:
        self._parts = parts
        self._merge = merge
        self._session_id = session_id
        self._start = start
        self._turn = turn
        self._cursor = start.cursor
        self._wake = asyncio.Event()
        self._read_version = 0
        self._is_stalled = False
        self._listening: Listening | None = None
        self._listened: TurnId | None = None
        self._awaited: AwaitedTurn | None = None

    async def run(self) -> Events:
        """Yield events until the turn ends or the session is gone."""
        tail = self._join()
        try:
            if self._start.first is not None:
                yield [self._start.first]
            ready: list[FollowEvent] = []
            while True:
                self._wake.clear()
                if tail.failure is not None:
                    raise tail.failure
                while self._may_read(tail):
                    if ready:
                        yield ready
                    ready = await self._read_page(tail)
                end = self._find_end(tail)
                if end is not None:
                    yield [*ready, end]
                    return
                ready += self._live_events(tail)
                if ready:
                    yield ready
                    ready = []
                if not self._may_read(tail):
                    await self._sleep()
                self._is_stalled = False
        finally:
            self._stop_listening()
            self._stop_awaiting()
            self._parts._watcher.leave(tail, self._wake)

    def _join(self) -> SessionTail:
        watcher = self._parts._watcher
        tail = watcher.join(self._session_id, self._wake, head=self._start.head)
        if tail.is_new and self._start.cursor >= self._start.head:
            # As of the head there is nothing to read, and a hint comes as soon as hints can be heard.
            self._read_version = tail.version
        if self._turn is not None and not self._turn.is_opened:
            self._awaited = watcher.await_turn(self._turn.turn_id, self._wake)
        return tail

    def _may_read(self, tail: SessionTail) -> bool:
        is_due = self._read_version != tail.version or tail.head > self._cursor
        return is_due and not self._is_stalled and not tail.is_removed and not self._is_over()

    async def _read_page(self, tail: SessionTail) -> list[FollowEvent]:
        """Return what the next page of the log gives; with the store away, nothing, until the next look."""
        version = tail.version
        try:
            page = await tail.read(self._cursor)
        except Unavailable:
            self._is_stalled = True
            return []
        events: list[FollowEvent] = []
        for record in page.records:
            events.extend(self._merge.of_record(record))
        self._cursor = page.through
        if page.is_last:
            self._read_version = version
        return events

    def _is_over(self) -> bool:
        return self._turn is not None and self._merge.ended is not None

    def _find_end(self, tail: SessionTail) -> EndEvent | None:
        turn, awaited = self._turn, self._awaited
        if turn is not None and self._merge.ended is not None:
            return _end_of_record(turn.turn_id, self._merge.ended)
        if tail.is_removed or (awaited is not None and awaited.is_removed):
            return EndEvent("removed", turn.turn_id if turn is not None else None, code=REMOVED)
        if turn is None or awaited is None or (standing := awaited.standing) is None:
            return None
        if standing.number is not None:
            self._stop_awaiting()  # it opened: its records say how it ends
        elif standing.status in FINISHED:
            return EndEvent(standing.status, turn.turn_id, standing.outcome, standing.code)
        return None

    def _stop_awaiting(self) -> None:
        if self._turn is not None and self._awaited is not None:
            self._parts._watcher.leave_turn(self._turn.turn_id, self._wake)
        self._awaited = None

    def _live_events(self, tail: SessionTail) -> list[FollowEvent]:
        """What the text says; first the records that stand before a step whose text begins."""
        self._listen()
        merge = self._merge.turn
        if self._listening is None or merge is None:
            return []
        live = self._listening.text
        if merge.must_read(live):
            tail.ask_before((self._listened, live.generation))
            if tail.version != self._read_version:
                return []
        return list(self._merge.of_live(live))

    def _listen(self) -> None:
        wanted = self._merge.live_turn
        if wanted == self._listened:
            return
        self._stop_listening()
        if wanted is None or self._parts._feed is None or self._merge.turn is None:
            return
        self._listening, self._listened = self._parts._feed.listen(wanted), wanted
        self._listening.text.wakes.add(self._wake)
        self._merge.turn.join(self._listening.text)

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.text.wakes.discard(self._wake)
            self._listening.close()
        self._listening = self._listened = None

    async def _sleep(self) -> None:
        if not self._is_stalled:
            await self._wake.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._parts._watcher.poll_s):
                await self._wake.wait()


async def _shown(events: Events, kinds: Collection[str] | None) -> Events:
    """Leave out records of other kinds; everything else passes."""
    async with aclosing(events):
        async for ready in events:
            shown = ready if kinds is None else [event for event in ready if _is_shown(event, kinds)]
            if shown:
                yield shown


def _is_shown(event: FollowEvent, kinds: Collection[str]) -> bool:
    match event:
        case RecordEvent(record):
            return record.kind in kinds
        case DeltaEvent() | SnapshotEvent() | ResetEvent() | EndEvent():
            return True
        case _:
            assert_never(event)


def _before(view: TurnView) -> int:
    """Return the cursor from which the turn's first record is the next of its own."""
    return view.after if view.started_seq is None else view.started_seq - 1


def _is_past(record: Record, view: TurnView) -> bool:
    """Say whether no record of the turn comes after this one."""
    if record.turn is None or view.number is None or record.turn < view.number:
        return False
    return record.turn > view.number or record.kind == "turn.ended"


def _end_of(view: TurnView) -> EndEvent:
    return EndEvent(view.status, view.turn_id, view.outcome, view.code)


def _end_of_record(turn_id: TurnId, record: Record) -> EndEvent:
    ended = read_stored(TurnEnded, record)
    return EndEvent("ended", turn_id, ended.reason, ended.code)
