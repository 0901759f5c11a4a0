"""A batch of live text: one command, whatever the number of turns whose text it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from shared.database.embedded import EmbeddedServers
from shared.domain.ids import new_turn_id
from shared.feed.port import TurnFeed
from shared.feed.redis import RedisFeed
from shared.feed.redis_link import feed_key

TURNS = 100


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[RedisFeed, Redis]]:
    """A feed that has written once, so that the server knows its script."""
    feed = RedisFeed(url)
    feed.open()
    async with Redis.from_url(url) as admin:
        try:
            first = feed.writer(new_turn_id(), 1)
            first.push(0, 0, "first")
            await first.flush()
            yield feed, admin
        finally:
            await feed.close()


async def flush_all(writers: list[TurnFeed]) -> None:
    await asyncio.gather(*(writer.flush() for writer in writers))


async def test_the_text_of_many_turns_is_one_command_a_batch(own_servers: EmbeddedServers) -> None:
    async with opened(own_servers.redis_url) as (feed, admin):
        writers = [feed.writer(new_turn_id(), 1) for _ in range(TURNS)]
        for text in ("one ", "two "):
            before = feed.stats()
            await admin.config_resetstat()
            for writer in writers:
                writer.push(0, 0, text)
            await flush_all(writers)
            after = feed.stats()
            calls = {name: figures["calls"] for name, figures in (await admin.info("commandstats")).items()}
            assert (after.entries - before.entries, after.flushes - before.flushes) == (TURNS, 1)
            assert (calls["cmdstat_evalsha"], calls["cmdstat_xadd"]) == (1, TURNS)
            assert "cmdstat_eval" not in calls


async def test_a_server_that_forgot_the_script_is_told_it_again(own_servers: EmbeddedServers) -> None:
    async with opened(own_servers.redis_url) as (feed, admin):
        turn = new_turn_id()
        writer = feed.writer(turn, 1)
        writer.push(0, 0, "Grüße")
        await writer.flush()
        await admin.script_flush()
        writer.push(0, 0, " 🙂")
        await writer.flush()
        assert feed.stats().failures == 0
        entries: Any = await admin.xrange(feed_key(turn))
        assert [fields for _, fields in entries] == [
            {b"p": b"1 0 0 0", b"t": "Grüße".encode()},
            {b"p": b"1 0 0 5", b"t": " 🙂".encode()},
        ]
