"""What a process hears: one subscription for all channels that someone watches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import monotonic
from typing import Final

from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from shared.feed.redis_link import TROUBLE, Backoff, Counts
from shared.feed.stopping import stop_tasks

WAIT_S: Final = 1.0
PING_AFTER_S: Final = 5.0
SILENCE_S: Final = 15.0
#: Channels that are heard though nobody watches them any more; so many are given up by one command.
UNWATCHED_MAX: Final = 64

#: Called with what was published, or None when something may have been missed.
Heard = Callable[[str | None], None]


class RedisListener:
    """Hears hints. Its tasks start with the first watcher; after a lost connection everybody is told to look.

    One task reads, another says on the same connection what else is to be heard: neither waits for the other. Channels that
    nobody watches any more are given up many at once; until then they are heard by nobody. One of the process's own, which
    nobody publishes to, keeps the subscription from being empty.
    """

    def __init__(self, client: Redis, counts: Counts) -> None:
        self._client = client
        self._counts = counts
        self._backoff = Backoff()
        self._own = f"tk:l:{os.urandom(8).hex()}"
        self._watchers: dict[str, list[Heard]] = {self._own: []}
        #: What the server was told, or is being told just now.
        self._subscribed: set[str] = set()
        self._new: set[str] = set()
        self._unwatched: set[str] = set()
        self._changed = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    def watch(self, channel: str, heard: Heard) -> Callable[[], None]:
        """Call ``heard`` for each message of the channel; returns its undoing."""
        watchers = self._watchers.setdefault(channel, [])
        watchers.append(heard)
        self._unwatched.discard(channel)
        if channel in self._subscribed:
            # Of a watcher who left: no subscription will tell this one to look.
            asyncio.get_running_loop().call_soon(heard, None)
        else:
            self._new.add(channel)
            self._changed.set()
        if self._loop is None:
            self._loop = asyncio.create_task(self._run(), name="feed-listener")

        def undo() -> None:
            watchers.remove(heard)
            if not watchers and self._watchers.get(channel) is watchers:
                del self._watchers[channel]
                self._give_up(channel)

        return undo

    @property
    def watching(self) -> int:
        """How many channels someone watches."""
        return len(self._watchers) - 1

    async def close(self) -> None:
        """Stop listening."""
        await stop_tasks(self._loop)

    def _give_up(self, channel: str) -> None:
        self._new.discard(channel)
        if channel in self._subscribed:
            self._unwatched.add(channel)
            if len(self._unwatched) >= UNWATCHED_MAX:
                self._changed.set()

    async def _run(self) -> None:
        while True:
            self._subscribed.clear()
            self._unwatched.clear()
            self._new = set(self._watchers)
            try:
                async with self._client.pubsub() as subscription:
                    await self._subscribe(subscription)
                    await self._listen(subscription)
            except TROUBLE:
                self._counts.fail()
            await asyncio.sleep(self._backoff.next_s())

    async def _listen(self, subscription: PubSub) -> None:
        """Deliver messages until the connection breaks or stays silent."""
        subscribing = asyncio.create_task(self._subscribe_for_ever(subscription), name="feed-subscriber")
        heard_at = pinged_at = monotonic()
        try:
            while not subscribing.done():
                message = await subscription.get_message(timeout=WAIT_S)
                now = monotonic()
                if message is not None:
                    self._backoff.reset()
                    heard_at = pinged_at = now
                    self._deliver(message["type"], message["channel"], message["data"])
                elif now - heard_at > SILENCE_S:
                    raise TimeoutError("the subscription is silent")
                elif now - pinged_at > PING_AFTER_S:
                    pinged_at = now
                    await subscription.ping()
            subscribing.result()
        finally:
            await stop_tasks(subscribing)

    async def _subscribe_for_ever(self, subscription: PubSub) -> None:
        while True:
            await self._changed.wait()
            await self._subscribe(subscription)

    async def _subscribe(self, subscription: PubSub) -> None:
        """Tell the server what is new, and what nobody watches once that is much."""
        self._changed.clear()
        new, self._new = self._new, set()
        self._subscribed |= new
        if new:
            await subscription.subscribe(*new)
        if len(self._unwatched) >= UNWATCHED_MAX:
            unwatched, self._unwatched = self._unwatched, set()
            self._subscribed -= unwatched
            await subscription.unsubscribe(*unwatched)

    def _deliver(self, kind: str, channel: bytes | None, data: object) -> None:
        if channel is None:
            return
        watchers = self._watchers.get(channel.decode(), ())
        if kind == "subscribe":
            for heard in list(watchers):
                heard(None)  # what was published before the subscription stood was missed
        elif kind == "message" and isinstance(data, bytes):
            for heard in list(watchers):
                heard(data.decode(errors="replace"))
