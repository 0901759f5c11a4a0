"""What a process reads of the turns' streams: one blocking read over all turns that someone listens to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, cast

from redis.asyncio import Redis

from shared.domain.ids import TurnId
from shared.feed.live_text import LiveText
from shared.feed.redis_link import TROUBLE, Backoff, Counts, Streams, as_read, entry_of, feed_key
from shared.feed.redis_sender import Command
from shared.feed.stopping import stop_tasks

BLOCK_S: Final = 1.0
READ_ENTRIES: Final = 256
_FROM_START: Final = "0-0"


@dataclass(slots=True)
class _Followed:
    turn_id: TurnId
    text: LiveText = field(default_factory=LiveText)
    last_id: bytes | str = _FROM_START
    listeners: int = 0


class RedisListening:
    """Implements :class:`shared.feed.port.Listening`."""

    def __init__(self, followed: _Followed, leave: Callable[[], None]) -> None:
        self._followed = followed
        self._leave: Callable[[], None] | None = leave

    @property
    def text(self) -> LiveText:
        """See the port."""
        return self._followed.text

    def close(self) -> None:
        """See the port."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


class RedisReader:
    """Reads streams into texts. Its one task starts with the first listener; ``interval_s`` is the least time between reads.

    A read blocks on all streams and on one of the process's own, which is written to when the set of turns changes.
    """

    def __init__(
        self, client: Redis, counts: Counts, send: Callable[[Command], None], *, interval_s: float
    ) -> None:
        self._client = client
        client.set_response_callback("XREAD", cast(Any, as_read))
        self._counts = counts
        self._send = send
        self._interval_s = interval_s
        self._backoff = Backoff()
        self._followed: dict[str, _Followed] = {}
        self._any = asyncio.Event()
        self._is_blocked = False
        self._bell = f"tk:feed:bell:{os.urandom(8).hex()}"
        self._bell_id: bytes | str = _FROM_START
        self._loop: asyncio.Task[None] | None = None

    def listen(self, turn_id: TurnId) -> RedisListening:
        """Listen to a turn; what its stream holds already arrives first."""
        key = feed_key(turn_id)
        followed = self._followed.get(key)
        if followed is None:
            followed = self._followed[key] = _Followed(turn_id)
            self._any.set()
            if self._is_blocked:
                self._send(("XADD", self._bell, "MAXLEN", "=", 1, "*", "x", ""))
                self._send(("EXPIRE", self._bell, 60))
        if self._loop is None:
            self._loop = asyncio.create_task(self._run(), name="feed-reader")
        followed.listeners += 1
        return RedisListening(followed, lambda: self._leave(key, followed))

    @property
    def listening(self) -> int:
        """How many turns are listened to."""
        return len(self._followed)

    async def close(self) -> None:
        """Stop reading."""
        await stop_tasks(self._loop)

    def _leave(self, key: str, followed: _Followed) -> None:
        followed.listeners -= 1
        if not followed.listeners and self._followed.get(key) is followed:
            del self._followed[key]

    async def _run(self) -> None:
        while True:
            if not self._followed:
                self._any.clear()
                await self._any.wait()
            began = monotonic()
            try:
                answer = await self._read()
            except TROUBLE:
                self._counts.fail()
                await asyncio.sleep(self._backoff.next_s())
                continue
            self._backoff.reset()
            self._counts.is_up = True
            for name, entries in answer:
                self._take(name.decode(), entries)
            await asyncio.sleep(max(0.0, began + self._interval_s - monotonic()))

    async def _read(self) -> Streams:
        streams: dict[Any, Any] = {self._bell: self._bell_id}
        streams |= {key: followed.last_id for key, followed in self._followed.items()}
        self._is_blocked = True
        try:
            answer: Any = await self._client.xread(streams, count=READ_ENTRIES, block=int(BLOCK_S * 1000))
        finally:
            self._is_blocked = False
        read: Streams = answer or ()
        return read

    def _take(self, name: str, entries: Sequence[tuple[bytes, Sequence[bytes]]]) -> None:
        if not entries:
            return
        if name == self._bell:
            self._bell_id = entries[-1][0]
            return
        followed = self._followed.get(name)
        if followed is None:
            return
        followed.last_id = entries[-1][0]
        self._counts.read += len(entries)
        news = False
        for _, fields in entries:
            entry = entry_of(followed.turn_id, fields)
            news = (entry is not None and followed.text.apply(entry)) or news
        if news:
            followed.text.wakes.wake()
