"""What the live feed costs on its way through Redis, by count: tasks, reads and commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from redis.asyncio import Redis

from shared.domain.ids import SessionId, TurnId, new_session_id, new_turn_id
from shared.feed.redis import RedisFeed
from shared.feed.redis_link import session_channel
from shared.feed.redis_listener import UNWATCHED_MAX
from shared.feed.redis_reader import BELL_S
from tests.support.waiting import await_until


@contextmanager
def tasks_made() -> Iterator[list[str]]:
    """Count the tasks that are made in the block, by what they run."""
    made: list[str] = []

    def note(loop: asyncio.AbstractEventLoop, coro: Any, **how: Any) -> asyncio.Task[Any]:
        made.append(str(coro))
        return asyncio.Task(coro, loop=loop, **how)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(note)
    try:
        yield made
    finally:
        loop.set_task_factory(None)


@asynccontextmanager
async def opened(redis_url: str, *, interval_s: float = 0.03) -> AsyncIterator[RedisFeed]:
    """A process's feed."""
    feed = RedisFeed(redis_url, interval_s=interval_s)
    feed.open()
    try:
        yield feed
    finally:
        await feed.close()


async def until_read(feed: RedisFeed, turn_id: TurnId, text: str) -> None:
    """Wait until the feed has read this text of a turn."""
    listening = feed.listen(turn_id)
    await await_until(lambda: listening.text.text == text, what=f"the text {text!r}")
    listening.close()


async def until_blocked(redis_url: str) -> None:
    """Wait until a client's read waits for news."""
    async with Redis.from_url(redis_url, decode_responses=True) as admin, asyncio.timeout(30):
        while not any("b" in one["flags"] and one["cmd"] == "xread" for one in await admin.client_list()):
            pass


async def test_text_goes_through_without_a_task_for_each_exchange(redis_url: str) -> None:
    # Each task that is made and waited for costs rounds of the event loop, and a busy loop's rounds are what lag is made of.
    async with opened(redis_url, interval_s=0.001) as worker, opened(redis_url) as producer:
        turn_id = new_turn_id()
        writer, listening = worker.writer(turn_id, 1), producer.listen(turn_id)
        writer.push(0, 0, "begin ")
        await until_read(producer, turn_id, "begin ")
        before = worker.stats(), producer.stats()
        with tasks_made() as made:
            for n in range(1, 11):
                writer.push(0, 0, "word ")
                await writer.flush()
                await until_read(producer, turn_id, "begin " + "word " * n)
        assert worker.stats().flushes - before[0].flushes == 10
        assert producer.stats().read - before[1].read == 10
        assert made == []
        listening.close()
        writer.close(ended=True)


async def test_the_texts_that_were_written_at_once_are_read_at_once(redis_url: str) -> None:
    async with opened(redis_url) as worker, opened(redis_url) as producer:
        turns = [new_turn_id() for _ in range(20)]
        heard = [producer.listen(turn_id) for turn_id in turns]
        writers, news = [worker.writer(turn_id, 1) for turn_id in turns], asyncio.Event()
        for listening in heard:
            listening.text.wakes.add(news)
        await until_blocked(redis_url)
        for writer in writers:
            writer.push(0, 0, "hello")
        await asyncio.wait_for(news.wait(), 10)
        assert [one.text.text for one in heard] == ["hello"] * 20
        assert worker.stats().flushes == 1
        for listening, writer in zip(heard, writers, strict=True):
            listening.close()
            writer.close(ended=True)


async def test_a_new_turn_ends_a_read_that_waits_for_others(redis_url: str) -> None:
    async with opened(redis_url) as worker, opened(redis_url) as producer:
        turn_id = new_turn_id()
        writer = worker.writer(turn_id, 1)
        writer.push(0, 0, "hello")
        await writer.flush()
        silent = producer.listen(new_turn_id())
        await until_blocked(redis_url)
        await until_read(producer, turn_id, "hello")
        assert producer.stats().hints == 2  # the bell is rung, and does not outlive the process
        silent.close()
        writer.close(ended=True)


async def test_a_turn_that_left_before_it_was_read_ends_no_read(redis_url: str) -> None:
    async with opened(redis_url) as worker, opened(redis_url) as producer:
        turn_id = new_turn_id()
        listening, writer = producer.listen(turn_id), worker.writer(turn_id, 1)
        await until_blocked(redis_url)
        producer.listen(new_turn_id()).close()
        await asyncio.sleep(BELL_S)  # this timer was set after the bell's, and so ends after it
        writer.push(0, 0, "hello")
        await until_read(producer, turn_id, "hello")
        assert producer.stats().hints == 0
        listening.close()
        writer.close(ended=True)


async def watch_once(feed: RedisFeed, session_id: SessionId) -> None:
    """Watch a session until its hints are heard, and leave it."""
    stands = asyncio.Event()
    undo = feed.watch_session(session_id, lambda: None, stands.set)
    await asyncio.wait_for(stands.wait(), 30)
    undo()


async def calls(admin: Redis, *names: str) -> list[int]:
    """Return how often each command was called since the server's start."""
    stats = await admin.info("commandstats")
    return [stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names]


async def test_a_watched_session_costs_one_command_and_those_nobody_watches_are_given_up_together(
    redis_url: str,
) -> None:
    names = ("subscribe", "unsubscribe", "publish")
    async with opened(redis_url) as feed, Redis.from_url(redis_url, decode_responses=True) as admin:
        again, given_up = new_session_id(), new_session_id()
        await watch_once(feed, again)
        before = await calls(admin, *names)
        for session_id in [given_up, *(new_session_id() for _ in range(UNWATCHED_MAX - 3))]:
            await watch_once(feed, session_id)
        await watch_once(feed, again)  # it is heard still: this costs nothing
        assert await calls(admin, *names) == [before[0] + UNWATCHED_MAX - 2, before[1], before[2]]
        heard = asyncio.Event()
        undo = feed.watch_session(again, heard.set, lambda: None)
        for _ in range(2):
            await watch_once(feed, new_session_id())
        async with asyncio.timeout(30):
            while (await calls(admin, "unsubscribe"))[0] == before[1]:
                pass
        [channel] = await admin.pubsub_channels("tk:s:*")
        assert channel == session_channel(again)
        feed.publish_change(again)
        await asyncio.wait_for(heard.wait(), 30)
        undo()
        heard.clear()
        undo = feed.watch_session(given_up, heard.set, lambda: feed.publish_change(given_up))
        await asyncio.wait_for(heard.wait(), 30)
        undo()
