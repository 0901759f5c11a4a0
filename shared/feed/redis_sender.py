"""What a process writes to Redis: one coalescer for the text of all its turns and all its hints.

Batches leave at once after a pause and at most every ``interval_s`` otherwise, each in one round trip: the texts of all
turns are one command, however many they are, and each hint is one. With the
server away hints are given up, texts wait (bounded) and continue with a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha1
from math import inf
from time import monotonic
from typing import Any, Final

from redis.exceptions import NoScriptError, RedisError

from shared.domain.ids import TurnId
from shared.feed.entries import Delta, Entry, Snapshot
from shared.feed.outgoing import Outgoing
from shared.feed.redis_link import (
    TROUBLE,
    WRITE_SCRIPT,
    Backoff,
    Command,
    Counts,
    Link,
    Write,
    encode_writes,
    feed_key,
    write_of,
)
from shared.feed.stopping import stop_tasks

BATCH_TURNS: Final = 512
BATCH_BYTES: Final = 4 * 1024 * 1024
HINTS_MAX: Final = 10_000
WRITE_S: Final = 2.0
FLUSH_S: Final = 0.25
HINT_INTERVAL_S: Final = 0.002
#: How long the text of a turn that ended is kept: its reply is stored.
ENDED_TTL_S: Final = 60

_SCRIPT_ID: Final = sha1(WRITE_SCRIPT.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class _Answers:
    """What the server said to a batch: to each write, and to each hint."""

    writes: Sequence[Any]
    hints: Sequence[Any]


class RedisTurnFeed:
    """Implements :class:`shared.feed.port.TurnFeed`."""

    def __init__(self, sender: RedisSender, outgoing: Outgoing) -> None:
        self.outgoing = outgoing
        self.key = feed_key(outgoing.turn_id)
        self.is_closed = False
        self.is_ended = False
        self.is_flying = False
        self._sender = sender

    def begin(self, run: int, step: int) -> None:
        """See the port."""
        if not self.is_closed:
            self.outgoing.begin(run, step)
            self._sender.note(self)

    def push(self, run: int, step: int, text: str) -> None:
        """See the port."""
        if not self.is_closed:
            self.outgoing.push(run, step, text)
            self._sender.note(self)

    async def flush(self) -> None:
        """See the port."""
        await self._sender.flush(self)

    def close(self, *, ended: bool = False) -> None:
        """See the port."""
        if not self.is_closed:
            self.is_closed, self.is_ended = True, ended
            if ended and not self.outgoing.was_shown:
                self._sender.forget(self)
            else:
                self._sender.note(self, even_if_clean=ended)


class RedisSender:
    """The coalescer. ``open`` starts its one task; ``close`` writes what is left, for a bounded time."""

    def __init__(
        self, link: Link, counts: Counts, *, interval_s: float, max_bytes: int, ttl_s: float
    ) -> None:
        self._link = link
        self._counts = counts
        self._interval_s = interval_s
        self._max_bytes = max_bytes
        self._ttl_s = max(1, round(ttl_s))
        self._backoff = Backoff()
        self._dirty: dict[RedisTurnFeed, None] = {}
        self._hints: dict[Command, None] = {}
        self._news = asyncio.Event()
        self._hurry = asyncio.Event()
        self._is_urgent = False
        self._round = asyncio.Event()
        self._last_flush = self._last_texts = -inf
        self._loop: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start to write; needs a running event loop."""
        self._loop = asyncio.create_task(self._run(), name="feed-sender")

    async def close(self) -> None:
        """Write what is left if the server answers, then stop."""
        await stop_tasks(self._loop)
        if (self._dirty or self._hints) and self._counts.is_up is not False:
            await self._flush_once()
        self._counts.dropped += len(self._hints)

    def writer(self, turn_id: TurnId, epoch: int) -> RedisTurnFeed:
        """Return a new feed of a turn."""
        return RedisTurnFeed(self, Outgoing(turn_id, epoch, max_bytes=self._max_bytes))

    def note(self, feed: RedisTurnFeed, *, even_if_clean: bool = False) -> None:
        """The feed may have something to write."""
        if feed.outgoing.is_dirty or even_if_clean:
            self._dirty[feed] = None
            self._news.set()

    def forget(self, feed: RedisTurnFeed) -> None:
        """The feed has nothing to write any more."""
        self._dirty.pop(feed, None)

    def send(self, command: Command) -> None:
        """Send a hint with the next round trip, once however often it is asked for."""
        if len(self._hints) >= HINTS_MAX:
            self._counts.dropped += 1
            return
        self._hints[command] = None
        self._news.set()
        self._hurry.set()

    async def flush(self, feed: RedisTurnFeed) -> None:
        """Wait until the feed's text is written, at most ``FLUSH_S`` seconds; not at all while the server is away."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while (feed in self._dirty or feed.is_flying) and self._counts.is_up is not False:
                    self._is_urgent = True
                    self._hurry.set()
                    await self._round.wait()

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            texts = await self._pace()
            if await self._flush_once(texts=texts):
                self._backoff.reset()
            else:
                await asyncio.sleep(self._backoff.next_s())
            if self._dirty or self._hints:
                self._news.set()

    async def _pace(self) -> bool:
        """Return when the next batch may leave; whether with texts."""
        due_at = self._last_texts + self._interval_s
        while not self._is_urgent and (wait_s := due_at - monotonic()) > 0:
            if self._hints:
                wait_s = self._last_flush + HINT_INTERVAL_S - monotonic()
                if wait_s <= 0:
                    return False
            self._hurry.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._hurry.wait()
        self._is_urgent = False
        return True

    async def _flush_once(self, *, texts: bool = True) -> bool:
        """Write one batch; False when the server did not take it. Never raises but cancellation."""
        batch, keys, writes = self._plan() if texts else ({}, [], [])
        hints = list(self._hints)
        self._hints.clear()
        if not writes and not hints:
            return True
        self._last_flush = monotonic()
        if writes:
            self._last_texts = self._last_flush
        for feed in batch:
            feed.is_flying = True
        try:
            answers = await self._exchange(keys, writes, hints)
        except TROUBLE:
            self._counts.fail()
            self._counts.dropped += len(hints)
            self._settle_failed(batch)
            return False
        except asyncio.CancelledError:
            self._settle_failed(batch)
            raise
        finally:
            for feed in batch:
                feed.is_flying = False
            finished, self._round = self._round, asyncio.Event()
            finished.set()
        self._counts.hints += len(hints)
        return self._settle(batch, answers)

    def _plan(self) -> tuple[dict[RedisTurnFeed, Entry | None], list[str], list[Write]]:
        """Take what is to be written: the batch's entries by feed, those without a write last; keys and writes in its order."""
        batch: dict[RedisTurnFeed, Entry | None] = {}
        idle: dict[RedisTurnFeed, Entry | None] = {}
        keys: list[str] = []
        writes: list[Write] = []
        size, now = 0, monotonic()
        while self._dirty and len(batch) < BATCH_TURNS and size < BATCH_BYTES:
            feed = next(iter(self._dirty))
            del self._dirty[feed]
            entry = feed.outgoing.plan(now)
            ttl_s = ENDED_TTL_S if feed.is_ended else self._ttl_s if _is_first(entry) else 0
            if entry is None and not ttl_s:
                idle[feed] = None
                continue
            batch[feed] = entry
            size += len(entry.text) if entry is not None else 0
            keys.append(feed.key)
            writes.append(write_of(entry, ttl_s))
        return batch | idle, keys, writes

    async def _exchange(self, keys: list[str], writes: list[Write], hints: list[Command]) -> _Answers:
        """Send all of it in one round trip; a server that does not know the script is told it in a second one."""
        script: Command = (len(keys), *keys, encode_writes(writes))
        called: list[Command] = [("EVALSHA", _SCRIPT_ID, *script)] if writes else []
        answers = await self._link.exchange([*called, *hints], within_s=WRITE_S)
        if not writes:
            return _Answers((), answers)
        first, *others = answers
        if isinstance(first, NoScriptError):
            [first] = await self._link.exchange([("EVAL", WRITE_SCRIPT, *script)], within_s=WRITE_S)
        return _Answers([first] * len(writes) if isinstance(first, RedisError) else first, others)

    def _settle(self, batch: dict[RedisTurnFeed, Entry | None], answers: _Answers) -> bool:
        """Judge each answer: nothing means that the stream vanished, and its turn begins it again with a snapshot."""
        self._counts.flushes += 1
        self._counts.is_up = True
        refused = any(isinstance(answer, RedisError) for answer in answers.hints)
        for (feed, entry), answer in zip(batch.items(), answers.writes, strict=False):
            if isinstance(answer, RedisError):
                refused = True
            if entry is None:
                continue
            if answer is None or isinstance(answer, RedisError):
                feed.outgoing.fail()
                self._again(feed)
            else:
                self._counts.entries += 1
                self._counts.snapshots += isinstance(entry, Snapshot)
        self._drop_counts(batch)
        if refused:
            self._counts.fail()
        return not refused

    def _settle_failed(self, batch: dict[RedisTurnFeed, Entry | None]) -> None:
        for feed, entry in batch.items():
            if entry is not None:
                feed.outgoing.fail()
                self._again(feed)
        self._drop_counts(batch)

    def _again(self, feed: RedisTurnFeed) -> None:
        if feed.is_closed:
            self._counts.dropped += 1
        else:
            self._dirty[feed] = None

    def _drop_counts(self, batch: dict[RedisTurnFeed, Entry | None]) -> None:
        for feed in batch:
            self._counts.dropped += feed.outgoing.take_dropped()


def _is_first(entry: Entry | None) -> bool:
    return isinstance(entry, Snapshot) or (isinstance(entry, Delta) and entry.offset == 0)
