"""The feed over Redis (or Valkey): streams for text, pub/sub for hints. One instance a process.

Keys: ``tk:feed:<turn id>`` (a stream of entries, trimmed to its last snapshot, with a time to live), ``tk:s:<session id>``
and ``tk:w:<worker id>`` (channels). Nothing that is kept here is needed: a flush, a restart or an absence costs deltas.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final
from uuid import UUID

from shared.domain.ids import SessionId, TurnId, WorkerId
from shared.feed.port import FeedStats, Listening, TurnFeed
from shared.feed.redis_link import Counts, Link, make_client, session_channel, worker_channel
from shared.feed.redis_listener import RedisListener
from shared.feed.redis_reader import RedisReader
from shared.feed.redis_sender import WRITE_S, RedisSender

WORKER_HINTS_MAX: Final = 1_000


class RedisFeed:
    """Implements ``FeedWriter``, ``FeedReader`` and ``ChangeHints``. ``open`` before use, ``close`` after.

    Opening does not connect: the server may be away for as long as it likes. ``interval_s`` is the delta interval,
    ``max_bytes`` bounds a turn's stream and its text in memory, ``ttl_s`` how long a stream outlives its last snapshot.
    """

    def __init__(
        self,
        url: str,
        *,
        interval_s: float = 0.03,
        max_bytes: int = 4 * 1024 * 1024,
        ttl_s: float = 3_600.0,
    ) -> None:
        self._counts = Counts()
        self._writing, self._reading = Link(url), Link(url)
        self._hearing = make_client(url, answer_s=WRITE_S)
        self._sender = RedisSender(
            self._writing, self._counts, interval_s=interval_s, max_bytes=max_bytes, ttl_s=ttl_s
        )
        self._reader = RedisReader(self._reading, self._counts, self._sender.send)
        self._listener = RedisListener(self._hearing, self._counts)

    def open(self) -> None:
        """Start; needs a running event loop."""
        self._sender.open()

    async def close(self) -> None:
        """Write what is left for a bounded time, stop, and close the connections."""
        await self._reader.close()
        await self._listener.close()
        await self._sender.close()
        await self._hearing.aclose()
        await self._reading.close()
        await self._writing.close()

    def writer(self, turn_id: TurnId, epoch: int) -> TurnFeed:
        """See the port."""
        return self._sender.writer(turn_id, epoch)

    def listen(self, turn_id: TurnId) -> Listening:
        """See the port."""
        return self._reader.listen(turn_id)

    def publish_change(self, session_id: SessionId) -> None:
        """See the port."""
        self._sender.send(("PUBLISH", session_channel(session_id), ""))

    def publish_to_worker(self, worker_id: WorkerId, turn_id: TurnId) -> None:
        """See the port."""
        self._sender.send(("PUBLISH", worker_channel(worker_id), str(turn_id)))

    def watch_session(
        self, session_id: SessionId, on_change: Callable[[], None], on_gap: Callable[[], None]
    ) -> Callable[[], None]:
        """See the port."""

        def hear(message: str | None) -> None:
            if message is None:
                on_gap()
            else:
                on_change()

        return self._listener.watch(session_channel(session_id), hear)

    async def subscribe_worker(self, worker_id: WorkerId) -> AsyncIterator[TurnId]:
        """See the port."""
        heard: asyncio.Queue[TurnId] = asyncio.Queue(WORKER_HINTS_MAX)

        def take(message: str | None) -> None:
            with suppress(ValueError, asyncio.QueueFull):
                heard.put_nowait(TurnId(UUID(message or "")))

        undo = self._listener.watch(worker_channel(worker_id), take)
        try:
            while True:
                yield await heard.get()
        finally:
            undo()

    def stats(self) -> FeedStats:
        """See the port."""
        counted = self._counts.stats()
        return replace(counted, listening=self._reader.listening, watching=self._listener.watching)
