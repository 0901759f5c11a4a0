"""What a process reads of the turns' streams: one blocking read over all turns that someone listens to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from redis.exceptions import RedisError

from shared.domain.ids import TurnId
from shared.feed.live_text import LiveText
from shared.feed.redis_link import TROUBLE, Backoff, Command, Counts, Link, Streams, entry_of, feed_key
from shared.feed.redis_sender import WRITE_S
from shared.feed.stopping import stop_tasks

BLOCK_S: Final = 1.0
READ_ENTRIES: Final = 256
#: The least time from one read to the next. The text that a worker writes at once is read at once, however short this is; it
#: bounds how many reads the texts of many workers cost.
READ_INTERVAL_S: Final = 0.01
#: How long a turn that is new waits for a read that ends by itself, before one is ended for it.
BELL_S: Final = 0.03
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
    """Reads streams into texts. Its one task starts with the first listener.

    A read blocks on all streams and on one of the process's own, the bell: it is written to when a turn has come that the
    read leaves out, and no other text ends the read meanwhile. A server may answer a read that was blocked with one stream
    only, whatever was written beside it; so the same streams are read once more behind it, in the same round trip.
    """

    def __init__(self, link: Link, counts: Counts, send: Callable[[Command], None]) -> None:
        self._link = link
        self._counts = counts
        self._send = send
        self._backoff = Backoff()
        self._followed: dict[str, _Followed] = {}
        self._any = asyncio.Event()
        #: What the read under way leaves out; None while there is none.
        self._left_out: set[str] | None = None
        self._ringing: asyncio.TimerHandle | None = None
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
            if self._left_out is not None:
                self._left_out.add(key)
                self._ring_soon()
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
        if self._ringing is not None:
            self._ringing.cancel()
        await stop_tasks(self._loop)

    def _leave(self, key: str, followed: _Followed) -> None:
        followed.listeners -= 1
        if not followed.listeners and self._followed.get(key) is followed:
            del self._followed[key]
            if self._left_out is not None:
                self._left_out.discard(key)

    def _ring_soon(self) -> None:
        if self._ringing is None:
            self._ringing = asyncio.get_running_loop().call_later(BELL_S, self._ring)

    def _ring(self) -> None:
        self._ringing = None
        if self._left_out:
            self._send(("XADD", self._bell, "MAXLEN", "=", 1, "*", "x", ""))
            self._send(("EXPIRE", self._bell, 60))

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
            await asyncio.sleep(max(0.0, began + READ_INTERVAL_S - monotonic()))

    async def _read(self) -> Streams:
        last_ids = {self._bell: self._bell_id} | {
            key: followed.last_id for key, followed in self._followed.items()
        }
        streams = ("STREAMS", *last_ids, *last_ids.values())
        waiting: Command = ("XREAD", "COUNT", 1, "BLOCK", int(BLOCK_S * 1000), *streams)
        reading: Command = ("XREAD", "COUNT", READ_ENTRIES, *streams)
        self._left_out = set()
        try:
            _, answer = await self._link.exchange([waiting, reading], within_s=BLOCK_S + WRITE_S)
        finally:
            self._left_out = None
        if isinstance(answer, RedisError):
            raise answer
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
