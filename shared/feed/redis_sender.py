"""What a process writes to Redis: one coalescer for the text of all its turns and all its hints.

Batches leave at once after a pause and at most every ``interval_s`` otherwise, each in one pipelined round trip. With the
server away hints are given up, texts wait (bounded) and continue with a snapshot.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import Any, Final, TypeAlias, assert_never

from redis.asyncio import Redis
from redis.exceptions import RedisError

from shared.domain.ids import TurnId
from shared.feed.entries import Delta, Entry, Snapshot
from shared.feed.outgoing import Outgoing
from shared.feed.redis_link import TROUBLE, Backoff, Counts, feed_key
from shared.feed.stopping import stop_tasks

BATCH_TURNS: Final = 512
BATCH_BYTES: Final = 4 * 1024 * 1024
HINTS_MAX: Final = 10_000
WRITE_S: Final = 2.0
FLUSH_S: Final = 0.25
#: How long the text of a turn that ended is kept: its reply is stored.
ENDED_TTL_S: Final = 60

Command: TypeAlias = tuple[str | int, ...]


class RedisTurnFeed:
    """Implements :class:`shared.feed.port.TurnFeed`."""

    def __init__(self, sender: RedisSender, outgoing: Outgoing) -> None:
        self.outgoing = outgoing
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
            self._sender.note(self, even_if_clean=ended)


class RedisSender:
    """The coalescer. ``open`` starts its one task; ``close`` writes what is left, for a bounded time."""

    def __init__(
        self, client: Redis, counts: Counts, *, interval_s: float, max_bytes: int, ttl_s: float
    ) -> None:
        self._client = client
        self._counts = counts
        self._interval_s = interval_s
        self._max_bytes = max_bytes
        self._ttl_s = max(1, round(ttl_s))
        self._backoff = Backoff()
        self._dirty: dict[RedisTurnFeed, None] = {}
        self._hints: dict[Command, None] = {}
        self._news = asyncio.Event()
        self._urgent = asyncio.Event()
        self._round = asyncio.Event()
        self._last_flush = 0.0
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

    def send(self, command: Command) -> None:
        """Send a hint with the next batch, once however often it is asked for."""
        if len(self._hints) >= HINTS_MAX:
            self._counts.dropped += 1
            return
        self._hints[command] = None
        self._news.set()

    async def flush(self, feed: RedisTurnFeed) -> None:
        """Wait until the feed's text is written, at most ``FLUSH_S`` seconds; not at all while the server is away."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while (feed in self._dirty or feed.is_flying) and self._counts.is_up is not False:
                    self._urgent.set()
                    await self._round.wait()

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self._pace()
            if await self._flush_once():
                self._backoff.reset()
            else:
                await asyncio.sleep(self._backoff.next_s())
            if self._dirty or self._hints:
                self._news.set()

    async def _pace(self) -> None:
        wait_s = self._last_flush + self._interval_s - monotonic()
        if wait_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._urgent.wait()
        self._urgent.clear()

    async def _flush_once(self) -> bool:
        """Write one batch; False when the server did not take it. Never raises but cancellation."""
        self._last_flush = monotonic()
        batch, commands = self._plan()
        hints = list(self._hints)
        self._hints.clear()
        commands += [(None, hint) for hint in hints]
        if not commands:
            return True
        for feed in batch:
            feed.is_flying = True
        try:
            answers = await self._exchange([command for _, command in commands])
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
        return self._settle(batch, [(f, a) for (f, _), a in zip(commands, answers, strict=True)])

    def _plan(self) -> tuple[dict[RedisTurnFeed, Entry | None], list[tuple[RedisTurnFeed | None, Command]]]:
        batch: dict[RedisTurnFeed, Entry | None] = {}
        commands: list[tuple[RedisTurnFeed | None, Command]] = []
        size, now = 0, monotonic()
        while self._dirty and len(batch) < BATCH_TURNS and size < BATCH_BYTES:
            feed = next(iter(self._dirty))
            del self._dirty[feed]
            entry = batch[feed] = feed.outgoing.plan(now)
            if entry is not None:
                size += len(entry.text)
                commands.append((feed, _write_of(entry)))
            if _is_first(entry) or feed.is_ended:
                ttl_s = ENDED_TTL_S if feed.is_ended else self._ttl_s
                commands.append((None, ("EXPIRE", feed_key(feed.outgoing.turn_id), ttl_s)))
        return batch, commands

    async def _exchange(self, commands: list[Command]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        async with asyncio.timeout(WRITE_S):
            return await pipeline.execute(raise_on_error=False)

    def _settle(
        self,
        batch: dict[RedisTurnFeed, Entry | None],
        answers: list[tuple[RedisTurnFeed | None, Any]],
    ) -> bool:
        """Judge each answer: nothing means that the stream vanished, and its turn begins it again with a snapshot."""
        self._counts.flushes += 1
        self._counts.is_up = True
        refused = False
        for feed, answer in answers:
            if isinstance(answer, RedisError):
                refused = True
            if feed is None:
                continue
            if answer is None or isinstance(answer, RedisError):
                feed.outgoing.fail()
                self._again(feed)
            else:
                self._counts.entries += 1
                self._counts.snapshots += isinstance(batch[feed], Snapshot)
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


def _write_of(entry: Entry) -> Command:
    """Return the write of an entry. Only a step's first entry or a snapshot makes the stream: a delta after a flush must not."""
    key = feed_key(entry.turn_id)
    place = ("e", entry.epoch, "r", entry.run, "s", entry.step)
    match entry:
        case Snapshot(text=text):
            return ("XADD", key, "MAXLEN", "=", 1, "*", *place, "t", text)
        case Delta(offset=offset, text=text):
            create = () if offset == 0 else ("NOMKSTREAM",)
            return ("XADD", key, *create, "*", *place, "o", offset, "t", text)
        case _:
            assert_never(entry)
