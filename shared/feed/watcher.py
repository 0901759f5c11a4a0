"""One watcher a producer process: it knows which followed sessions changed, and reads each change once for all.

Its guarantee is one statement over all followed sessions each ``poll_s``, and one over all turns that are awaited; hints
only make it sooner. It takes no lock and writes nothing (FOL-06). What a slow follower did not read stays in the database: a
session keeps one page here at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shared.domain.errors import TurnkeeperError, Unavailable
from shared.domain.ids import SessionId, TurnId
from shared.feed.live_text import Wakes
from shared.feed.merge import MERGE_KINDS
from shared.feed.port import ChangeHints
from shared.feed.stopping import stop_tasks
from shared.sessions.log import SessionLog
from shared.sessions.records import Record
from shared.turns.queue import FINISHED, Standing, TurnQueue

_log: Final = logging.getLogger(__name__)

#: What a follower holds for a reader that is slow: so many records or bytes, whichever comes first, and one record more.
PAGE_RECORDS: Final = 200
PAGE_BYTES: Final = 1024 * 1024
#: Seconds from when hints are heard until those that were missed are looked for. A turn that was just admitted opens sooner as
#: a rule, and its hint then costs the only look.
GAP_LOOK_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Page:
    """Records after a cursor, in order; ``is_last`` when there were no more as of the read.

    Everything up to ``through`` was looked at: behind it nothing that followers see is left out, so that records of other
    kinds are not read over again with each change.
    """

    records: Sequence[Record]
    bytes: int
    is_last: bool
    through: int


@dataclass(frozen=True, slots=True)
class _SharedRead:
    place: tuple[int, int, int]
    task: asyncio.Task[Page]


@dataclass(slots=True)
class WatcherStats:
    """What the watcher did.

    A poll is one statement, or two while turns are awaited; a read is one; ``failures`` of both got no answer.
    """

    polls: int = 0
    reads: int = 0
    failures: int = 0


class SessionTail:
    """A followed session, shared by its followers.

    A follower looks when ``version`` moved (a hint, a new text) or ``head``, the polled seq, lies beyond what it has looked
    at. Each is judged by its own position: what one of them read says nothing about what another has seen.
    """

    def __init__(
        self, session_id: SessionId, read: Callable[[SessionId, int, int], asyncio.Task[Page]]
    ) -> None:
        self.session_id = session_id
        self.version = 1
        self.head = 0
        self.is_removed = False
        self.failure: TurnkeeperError | None = None
        self.wakes = Wakes()
        self._read = read
        self._shared: _SharedRead | None = None
        self._asked_for: object = None
        self._gap: asyncio.TimerHandle | None = None

    @property
    def is_new(self) -> bool:
        """Whether nothing was heard of it yet."""
        return self.version == 1

    def note_change(self) -> None:
        """Something may have changed: everyone looks."""
        self.forget_gap()
        self.version += 1
        self.wakes.wake()

    def note_gap(self) -> None:
        """A hint may have been missed: everyone looks, and soon; not at once, as the next hint makes them look in any case."""
        if self._gap is None:
            self._gap = asyncio.get_running_loop().call_later(GAP_LOOK_S, self.note_change)

    def forget_gap(self) -> None:
        """Nobody need look for a missed hint any more."""
        if self._gap is not None:
            self._gap.cancel()
            self._gap = None

    def note_head(self, seq: int | None) -> None:
        """Take in a head that was read; None when the session is gone."""
        if seq is None:
            self.is_removed = True
            self.wakes.wake()
        elif seq > self.head:
            self.head = seq
            self.wakes.wake()

    def fail(self, error: TurnkeeperError) -> None:
        """Say that news of this session cannot be had: its followers raise this."""
        self.failure = error
        self.wakes.wake()

    def ask_before(self, text: object) -> None:
        """A new text begins: have the log looked at first, once for all followers that meet this text."""
        if self._asked_for != text:
            self._asked_for = text
            self.note_change()

    async def read(self, after: int) -> Page:
        """Read a page after the cursor; followers at one cursor share one statement. Raises ``StoreUnavailable``."""
        place = (after, self.version, self.head)
        shared = self._shared
        if shared is None or shared.place != place:
            shared = self._shared = _SharedRead(place, self._read(self.session_id, after, self.head))
        try:
            page = await asyncio.shield(shared.task)
        except Exception:
            self._forget(shared)
            raise
        if page.bytes >= PAGE_BYTES:
            self._forget(shared)  # too large to keep: whoever comes to this cursor reads it himself
        return page

    def _forget(self, shared: _SharedRead) -> None:
        if self._shared is shared:
            self._shared = None


class AwaitedTurn:
    """A turn that has not opened, shared by its followers, as polls find it; no record says that one ends unopened."""

    def __init__(self) -> None:
        self.standing: Standing | None = None
        self.is_removed = False
        self.wakes = Wakes()

    def note(self, standing: Standing | None) -> None:
        """Take in how it stands; None when it is gone with its session."""
        self.standing, self.is_removed = standing, standing is None
        if standing is None or standing.number is not None or standing.status in FINISHED:
            self.wakes.wake()


class SessionWatcher:
    """Watches the sessions that this process's followers follow. ``open`` before use, ``close`` after.

    ``kinds`` is what followers may see, and bounds what is read at all; None for all. ``hints`` may be None: then changes are found by polling.
    """

    def __init__(
        self,
        log: SessionLog,
        queue: TurnQueue,
        *,
        hints: ChangeHints | None,
        poll_s: float = 0.5,
        kinds: frozenset[str] | None = None,
    ) -> None:
        self.poll_s = poll_s
        self.stats = WatcherStats()
        self._log = log
        self._queue = queue
        self._hints = hints
        self.kinds = None if kinds is None else sorted(kinds | MERGE_KINDS)
        self._tails: dict[SessionId, tuple[SessionTail, Callable[[], None]]] = {}
        self._awaited: dict[TurnId, AwaitedTurn] = {}
        self._followed = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._reads: set[asyncio.Task[Page]] = set()

    def open(self) -> None:
        """Begin to poll; needs a running event loop."""
        self._poller = asyncio.create_task(self._poll(), name="session-watcher")

    async def close(self) -> None:
        """Stop polling and drop reads in flight."""
        await stop_tasks(self._poller, *self._reads)

    @property
    def followed(self) -> int:
        """How many sessions are followed."""
        return len(self._tails)

    def join(self, session_id: SessionId, wake: asyncio.Event, *, head: int) -> SessionTail:
        """Follow a session: ``wake`` is set at each possible change.

        ``head`` is its seq as the caller read it, who has established that the session may be read.
        """
        found = self._tails.get(session_id)
        if found is None:
            tail = SessionTail(session_id, self._start_read)
            undo = (
                (lambda: None)
                if self._hints is None
                else self._hints.watch_session(session_id, tail.note_change, tail.note_gap)
            )
            found = self._tails[session_id] = (tail, undo)
            self._followed.set()
        found[0].wakes.add(wake)
        found[0].note_head(head)
        return found[0]

    def leave(self, tail: SessionTail, wake: asyncio.Event) -> None:
        """Stop following; the last follower takes the session off the watch."""
        tail.wakes.discard(wake)
        if not tail.wakes:
            found = self._tails.pop(tail.session_id, None)
            if found is not None:
                found[1]()
            tail.forget_gap()

    def await_turn(self, turn_id: TurnId, wake: asyncio.Event) -> AwaitedTurn:
        """Look at a turn of a followed session with each poll: ``wake`` is set once it opened or ended."""
        found = self._awaited.setdefault(turn_id, AwaitedTurn())
        found.wakes.add(wake)
        return found

    def leave_turn(self, turn_id: TurnId, wake: asyncio.Event) -> None:
        """Stop looking at a turn; nothing happens when nobody looks."""
        found = self._awaited.get(turn_id)
        if found is not None:
            found.wakes.discard(wake)
            if not found.wakes:
                del self._awaited[turn_id]

    async def _poll(self) -> None:
        while True:
            if not self._tails:
                self._followed.clear()
                await self._followed.wait()
            await asyncio.sleep(self.poll_s)
            try:
                await self._poll_once()
            except Unavailable:
                self.stats.failures += 1  # the next poll finds what this one missed
            except TurnkeeperError as error:
                # Nobody may wait for news that cannot come: followers are told, and may come back.
                self.stats.failures += 1
                _log.error("followed sessions cannot be polled", exc_info=error, extra={"code": error.code})
                for tail, _ in self._tails.values():
                    tail.fail(error)

    async def _poll_once(self) -> None:
        asked = {session_id: tail for session_id, (tail, _) in self._tails.items()}
        if not asked:
            return
        awaited = dict(self._awaited)
        self.stats.polls += 1
        # Before the heads: what is seen to be open has its first records behind the head that follows.
        standings = await self._queue.standings(list(awaited)) if awaited else {}
        heads = await self._log.seqs(list(asked))
        for turn_id, turn in awaited.items():
            turn.note(standings.get(turn_id))
        for session_id, tail in asked.items():
            tail.note_head(heads.get(session_id))

    def _start_read(self, session_id: SessionId, after: int, head: int) -> asyncio.Task[Page]:
        task = asyncio.create_task(self._read(session_id, after, head))
        self._reads.add(task)
        task.add_done_callback(self._finish_read)
        return task

    def _finish_read(self, task: asyncio.Task[Page]) -> None:
        self._reads.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.stats.failures += 1

    async def _read(self, session_id: SessionId, after: int, head: int) -> Page:
        self.stats.reads += 1
        page = await read_page(self._log, session_id, after=after, kinds=self.kinds)
        # The head was read before the records were: they hold all up to it.
        return replace(page, through=max(page.through, head)) if page.is_last else page


async def read_page(
    log: SessionLog, session_id: SessionId, *, after: int, kinds: Sequence[str] | None
) -> Page:
    """Read the page after a cursor. Raises ``StoreUnavailable``."""
    records = await log.read(session_id, after=after, limit=PAGE_RECORDS, kinds=kinds, max_bytes=PAGE_BYTES)
    size = sum(len(record.text) if record.text.isascii() else len(record.text.encode()) for record in records)
    is_last = len(records) < PAGE_RECORDS and size < PAGE_BYTES
    return Page(records, size, is_last, through=records[-1].seq if records else after)
