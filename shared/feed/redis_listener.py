"""What a process hears: one subscription for all channels that someone watches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import monotonic
from typing import Final

from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from shared.feed.redis_link import TROUBLE, Backoff, Command, Counts
from shared.feed.stopping import stop_tasks

WAIT_S: Final = 1.0
PING_AFTER_S: Final = 5.0
SILENCE_S: Final = 15.0

#: Called with what was published, or None when something may have been missed.
Heard = Callable[[str | None], None]


class RedisListener:
    """Hears hints. Its one task starts with the first watcher; after a lost connection everybody is told to look.

    A channel of the process's own is written to when the set of channels changes, so that the task applies it.
    """

    def __init__(self, client: Redis, counts: Counts, send: Callable[[Command], None]) -> None:
        self._client = client
        self._counts = counts
        self._send = send
        self._backoff = Backoff()
        self._own = f"tk:l:{os.urandom(8).hex()}"
        self._watchers: dict[str, list[Heard]] = {self._own: []}
        self._subscribed: set[str] = set()
        #: Channels that came or went since the subscription was last brought up to date.
        self._changed: set[str] = set()
        self._loop: asyncio.Task[None] | None = None

    def watch(self, channel: str, heard: Heard) -> Callable[[], None]:
        """Call ``heard`` for each message of the channel; returns its undoing."""
        watchers = self._watchers.setdefault(channel, [])
        watchers.append(heard)
        self._note(channel)
        if channel in self._subscribed:
            # Of a watcher who just left: no subscription will tell this one to look.
            asyncio.get_running_loop().call_soon(heard, None)
        if self._loop is None:
            self._loop = asyncio.create_task(self._run(), name="feed-listener")

        def undo() -> None:
            watchers.remove(heard)
            if not watchers and self._watchers.get(channel) is watchers:
                del self._watchers[channel]
                self._note(channel)

        return undo

    @property
    def watching(self) -> int:
        """How many channels someone watches."""
        return len(self._watchers) - 1

    async def close(self) -> None:
        """Stop listening."""
        await stop_tasks(self._loop)

    def _note(self, channel: str) -> None:
        self._changed.add(channel)
        if self._own in self._subscribed:
            self._send(("PUBLISH", self._own, ""))

    async def _run(self) -> None:
        while True:
            self._subscribed.clear()
            self._changed = set(self._watchers)
            try:
                async with self._client.pubsub() as subscription:
                    await self._listen(subscription)
            except TROUBLE:
                self._counts.fail()
            await asyncio.sleep(self._backoff.next_s())

    async def _listen(self, subscription: PubSub) -> None:
        """Deliver messages until the connection breaks or stays silent."""
        heard_at = pinged_at = monotonic()
        while True:
            await self._subscribe(subscription)
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

    async def _subscribe(self, subscription: PubSub) -> None:
        """Apply what changed; what did not is not looked at: there may be thousands of channels, and many messages."""
        if not self._changed:
            return
        changed, self._changed = self._changed, set()
        if gone := [one for one in changed if one in self._subscribed and one not in self._watchers]:
            await subscription.unsubscribe(*gone)
        if new := [one for one in changed if one in self._watchers and one not in self._subscribed]:
            await subscription.subscribe(*new)
        self._subscribed.difference_update(gone)
        self._subscribed.update(new)

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
