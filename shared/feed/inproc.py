"""The feed within one process: the twin of the Redis one, for tests and for a producer and worker in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from shared.domain.bounds import clean_text
from shared.domain.ids import SessionId, TurnId, WorkerId
from shared.feed.entries import Delta, Place, Snapshot
from shared.feed.live_text import LiveText
from shared.feed.port import FeedStats, Listening, TurnFeed


class InprocFeed:
    """Implements ``FeedWriter``, ``FeedReader`` and ``ChangeHints``. A text lives while its writer or a listener does."""

    def __init__(self) -> None:
        self._texts: dict[TurnId, tuple[LiveText, set[object]]] = {}
        self._watchers: dict[SessionId, list[Callable[[], None]]] = {}
        self._workers: dict[WorkerId, list[asyncio.Queue[TurnId]]] = {}
        self._entries = self._hints = 0

    def writer(self, turn_id: TurnId, epoch: int) -> TurnFeed:
        """See the port."""
        return _InprocTurnFeed(self, turn_id, epoch)

    def listen(self, turn_id: TurnId) -> Listening:
        """See the port."""
        return _InprocListening(self, turn_id)

    def publish_change(self, session_id: SessionId) -> None:
        """See the port."""
        self._hints += 1
        for on_change in list(self._watchers.get(session_id, ())):
            on_change()

    def publish_to_worker(self, worker_id: WorkerId, turn_id: TurnId) -> None:
        """See the port."""
        self._hints += 1
        for queue in self._workers.get(worker_id, ()):
            queue.put_nowait(turn_id)

    def watch_session(
        self, session_id: SessionId, on_change: Callable[[], None], on_gap: Callable[[], None]
    ) -> Callable[[], None]:
        """See the port."""
        watchers = self._watchers.setdefault(session_id, [])
        watchers.append(on_change)

        def undo() -> None:
            watchers.remove(on_change)
            if not watchers:
                self._watchers.pop(session_id, None)

        return undo

    async def subscribe_worker(self, worker_id: WorkerId) -> AsyncIterator[TurnId]:
        """See the port."""
        queue: asyncio.Queue[TurnId] = asyncio.Queue()
        queues = self._workers.setdefault(worker_id, [])
        queues.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            queues.remove(queue)

    def stats(self) -> FeedStats:
        """See the port."""
        return FeedStats(entries=self._entries, hints=self._hints, read=self._entries, is_up=True)

    def hold(self, turn_id: TurnId, holder: object) -> LiveText:
        """Return the turn's text, kept until every holder let go."""
        text, holders = self._texts.setdefault(turn_id, (LiveText(), set()))
        holders.add(holder)
        return text

    def let_go(self, turn_id: TurnId, holder: object) -> None:
        """Let go of a turn's text; the last one drops it."""
        _, holders = self._texts.get(turn_id, (None, set()))
        holders.discard(holder)
        if not holders:
            self._texts.pop(turn_id, None)

    def apply(self, text: LiveText, entry: Delta | Snapshot) -> None:
        """Take an entry in and tell who listens."""
        self._entries += 1
        if text.apply(entry):
            text.wakes.wake()


class _InprocTurnFeed:
    def __init__(self, feed: InprocFeed, turn_id: TurnId, epoch: int) -> None:
        self._feed = feed
        self._turn_id = turn_id
        self._epoch = epoch
        self._place: Place | None = None
        self._offset = 0
        self._text: LiveText | None = feed.hold(turn_id, self)

    def begin(self, run: int, step: int) -> None:
        if self._text is not None and self._place == (run, step) and self._offset:
            self._feed.apply(self._text, Snapshot(self._turn_id, self._epoch, run, step, ""))
        self._place, self._offset = (run, step), 0

    def push(self, run: int, step: int, text: str) -> None:
        if self._text is None or not text:
            return
        if self._place != (run, step):
            self.begin(run, step)
        clean = clean_text(text)[0]
        self._feed.apply(self._text, Delta(self._turn_id, self._epoch, run, step, self._offset, clean))
        self._offset += len(clean)

    async def flush(self) -> None:
        pass

    def close(self, *, ended: bool = False) -> None:
        self._text = None
        self._feed.let_go(self._turn_id, self)


class _InprocListening:
    def __init__(self, feed: InprocFeed, turn_id: TurnId) -> None:
        self._feed = feed
        self._turn_id = turn_id
        self._text = feed.hold(turn_id, self)

    @property
    def text(self) -> LiveText:
        return self._text

    def close(self) -> None:
        self._feed.let_go(self._turn_id, self)
