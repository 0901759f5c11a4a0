"""The live feed and its followers over a real Valkey and Postgres, and the SSE response over a real HTTP server.

Each ``Process`` has connections of its own, as a producer or worker process has.
"""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from shared.database.embedded import EmbeddedServers
from shared.domain.ids import WorkerId, new_session_id, new_turn_id
from shared.feed.entries import DeltaEvent, EndEvent, RecordEvent, ResetEvent, SnapshotEvent
from shared.feed.outgoing import SNAPSHOT_ENTRIES
from shared.feed.redis import RedisFeed
from shared.feed.redis_link import feed_key
from shared.sessions.records import draft
from shared.sessions.vocabulary import CLIENT_KINDS
from shared.turns.queue import OnWorkerLoss
from tests.support.event_site import Process, body_of, process, site
from tests.support.following import OWNER, frames_of
from tests.support.waiting import await_until


@pytest.mark.behaviour("FOL-01", "FOL-02", "FOL-05", "FOL-17", "API-06")
async def test_a_turn_of_another_process_is_followed_as_it_streams(database_url: str, redis_url: str) -> None:
    async with process(database_url, redis_url) as worker, process(database_url, redis_url) as producer:
        receipt = await worker.world.admit(await worker.world.session())
        connection = await producer.world.follow(receipt.turn_id, after=receipt.after)
        claim = await worker.world.claim()
        await worker.world.open(claim)
        feed = worker.feed.writer(claim.turn_id, claim.fence.epoch)
        words = [f"wörd{n} " for n in range(20)]
        for n, word in enumerate(words):
            feed.push(0, 0, word)
            if n % 5 == 0:
                await feed.flush()
                await connection.until_text("".join(words[: n + 1]))
        text = "".join(words)
        await connection.until_text(text)
        await worker.world.reply(claim, text)
        feed.close(ended=True)
        reader = await connection.ended()
        assert reader.replies == [(text, text)]
        assert [r.seq for r in reader.records] == list(range(1, 7))
        assert len(reader.of(DeltaEvent)) >= 4
        assert reader.of(ResetEvent) == reader.of(SnapshotEvent) == []
        assert reader.end == EndEvent("ended", claim.turn_id, "completed", None)


@pytest.mark.behaviour("FOL-03", "FOL-04", "FOL-13")
async def test_without_a_feed_records_of_other_processes_come_by_polling_and_no_text_does(
    database_url: str, redis_url: str
) -> None:
    async with (
        process(database_url, redis_url) as worker,
        process(database_url, redis_url, with_feed=False) as producer,
    ):
        session_id = await worker.world.session()
        receipt = await worker.world.admit(session_id)
        session = await producer.world.follow_session(session_id)
        turn = await producer.world.follow(receipt.turn_id)
        claim = await worker.world.claim()
        await worker.world.open(claim)
        worker.feed.writer(claim.turn_id, 1).push(0, 0, "Hel")
        await worker.world.finish_step(claim, 0, "Hel")
        await worker.world.reply(claim, "Hello", step=1)
        reader = await turn.ended()
        assert [r.seq for r in reader.records] == list(range(1, 10))
        assert {type(e) for e in reader.events} == {RecordEvent, EndEvent}
        await session.until(lambda r: r.cursor == 9)
        assert {type(e) for e in session.reader.events} == {RecordEvent}
        await session.drop()


@pytest.mark.behaviour("API-06")  # field case D01
async def test_a_reader_that_comes_back_to_another_producer_gets_the_text_so_far_then_the_rest_then_the_end(
    database_url: str, redis_url: str
) -> None:
    async with process(database_url, redis_url) as worker:
        receipt = await worker.world.admit(await worker.world.session())
        claim = await worker.world.claim()
        await worker.world.open(claim)
        feed = worker.feed.writer(claim.turn_id, claim.fence.epoch)
        async with process(database_url, redis_url) as first:
            connection = await first.world.follow(receipt.turn_id)
            feed.push(0, 0, "One, ")
            reader = await connection.until(lambda r: r.text == "One, ")
            await connection.drop()
        feed.push(0, 0, "two, ")
        await feed.flush()
        async with process(database_url, redis_url) as second:
            before = len(reader.events)
            connection = await second.world.follow(receipt.turn_id, reader)
            await connection.until(lambda r: r.text == "One, two, ")
            feed.push(0, 0, "three")
            await connection.until(lambda r: r.text == "One, two, three")
            await worker.world.reply(claim, "One, two, three")
            await connection.ended()
            assert [type(e) for e in reader.events[before : before + 2]] == [SnapshotEvent, DeltaEvent]
            assert reader.replies == [("One, two, three", "One, two, three")]
        async with process(database_url, redis_url) as third:
            late = await (await third.world.follow(receipt.turn_id, reader)).ended()
            assert late.end is not None and late.kinds.count("turn.ended") == 1
            unknown = await (await third.world.follow(receipt.turn_id, after=10_000)).ended()
            assert unknown.events[0] == ResetEvent("cursor", after=0)
            assert [r.seq for r in unknown.records] == list(range(1, reader.cursor + 1))
            assert (unknown.replies, unknown.end) == (reader.replies, late.end)


@pytest.mark.behaviour("API-05", "FOL-05")
async def test_a_follower_sees_the_commits_of_many_writers_once_and_in_order(
    database_url: str, redis_url: str
) -> None:
    async with process(database_url, redis_url) as one, process(database_url, redis_url) as two:
        session_id = await one.world.session()
        connection = await two.world.follow_session(session_id)

        async def write(by: Process, count: int) -> None:
            for n in range(count):
                await by.world.log.commit(session_id, OWNER, [draft("host.note", {"n": n})] * 3)
                by.feed.publish_change(session_id)

        await asyncio.gather(write(one, 40), write(one, 40), write(two, 40))
        await connection.until(lambda r: r.cursor == 360)
        assert [r.seq for r in connection.reader.records] == list(range(1, 361))
        await connection.drop()


@pytest.mark.behaviour("FOL-17", "API-06")
async def test_a_flush_of_the_feed_costs_nothing_that_lasts(own_servers: EmbeddedServers) -> None:
    urls = own_servers.database_url, own_servers.redis_url
    async with process(*urls) as worker, process(*urls) as producer:
        receipt = await worker.world.admit(await worker.world.session())
        connection = await producer.world.follow(receipt.turn_id)
        claim = await worker.world.claim()
        await worker.world.open(claim)
        feed = worker.feed.writer(claim.turn_id, claim.fence.epoch)
        feed.push(0, 0, "before ")
        await connection.until_text("before ")
        async with Redis.from_url(own_servers.redis_url) as admin:
            await admin.flushall()
            feed.push(0, 0, "after ")
            await connection.until_text("before after ")
            assert await admin.xlen(feed_key(claim.turn_id)) >= 1
        late = await producer.world.follow(receipt.turn_id)
        await late.until(lambda r: r.text == "before after ")
        async with Redis.from_url(own_servers.redis_url) as admin:
            await admin.flushall()
        await worker.world.reply(claim, "before after all")
        for reader in (await connection.ended(), await late.ended()):
            assert reader.replies == [("before after all", "before after all")]


@pytest.mark.behaviour("FOL-17")
async def test_records_keep_coming_while_redis_is_away_and_text_comes_again_after_it(
    own_servers: EmbeddedServers,
) -> None:
    urls = own_servers.database_url, own_servers.redis_url
    async with process(*urls) as worker, process(*urls) as producer:
        session_id = await worker.world.session()
        receipt = await worker.world.admit(session_id)
        connection = await producer.world.follow(receipt.turn_id)
        claim = await worker.world.claim()
        await worker.world.open(claim)
        feed = worker.feed.writer(claim.turn_id, claim.fence.epoch)
        feed.push(0, 0, "Hel")
        await connection.until_text("Hel")
        await asyncio.to_thread(own_servers.stop_valkey)
        feed.push(0, 0, "lo")
        await feed.flush()
        await await_until(lambda: worker.feed.stats().is_up is False, what="the loss noticed")
        await worker.world.finish_step(claim, 0, "Hello")
        await connection.until(lambda r: "step.ended" in r.kinds)
        assert connection.reader.text == "Hello"
        await asyncio.to_thread(own_servers.start_valkey)
        feed.push(0, 1, "wor")
        await connection.until(lambda r: r.text == "wor", within_s=30)
        await worker.world.reply(claim, "world", step=1)
        reader = await connection.ended()
        assert reader.replies == [("world", "world")]
        assert worker.feed.stats().failures > 0


@pytest.mark.behaviour("FOL-15", "FOL-17")  # field case D08
async def test_a_worker_without_redis_neither_waits_nor_fails_and_counts_what_it_gave_up() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        feed = RedisFeed(f"redis://127.0.0.1:{unused.getsockname()[1]}/0", max_bytes=100_000)
        feed.open()
        text = feed.writer(new_turn_id(), 1)
        for _ in range(200):
            text.push(0, 0, "x" * 1_000)
            feed.publish_change(new_session_id())
        await text.flush()
        await await_until(lambda: feed.stats().dropped >= 300, what="text and hints given up")
        stats = feed.stats()
        assert (stats.is_up, stats.entries, stats.hints) == (False, 0, 0)
        text.close(ended=True)
        await feed.close()


@pytest.mark.behaviour("FOL-17")
async def test_a_stream_is_trimmed_to_its_last_snapshot_and_has_a_time_to_live(redis_url: str) -> None:
    feed, turn_id = RedisFeed(redis_url, interval_s=0.001), new_turn_id()
    feed.open()
    text = feed.writer(turn_id, 1)
    async with Redis.from_url(redis_url) as admin:
        for _ in range(SNAPSHOT_ENTRIES * 3):
            text.push(0, 0, "ab")
            await text.flush()
        assert await admin.xlen(feed_key(turn_id)) <= SNAPSHOT_ENTRIES + 1
        entries: Any = await admin.xrange(feed_key(turn_id), count=1)
        [(_, first)] = entries
        # A snapshot's place has no offset.
        assert first[b"p"] == b"1 0 0" and len(first[b"t"]) >= 2 * SNAPSHOT_ENTRIES
        assert 3_500 < await admin.ttl(feed_key(turn_id)) <= 3_600
        text.close(ended=True)
        await feed.close()
        assert 0 < await admin.ttl(feed_key(turn_id)) <= 60


async def test_a_hint_waits_for_no_text_and_a_text_nobody_was_shown_goes_with_its_turn(
    redis_url: str,
) -> None:
    writer, reader = RedisFeed(redis_url, interval_s=3_600), RedisFeed(redis_url)
    writer.open()
    reader.open()
    session, first, second = new_session_id(), new_turn_id(), new_turn_id()
    heard = asyncio.Event()
    undo = reader.watch_session(session, heard.set, heard.set)
    async with Redis.from_url(redis_url) as admin:
        # The subscription stands once it has told its watcher to look.
        await asyncio.wait_for(heard.wait(), 30)
        heard.clear()
        shown = writer.writer(first, 1)
        shown.push(0, 0, "at once, after a pause")
        await await_until(lambda: writer.stats().entries == 1, what="the first text written")
        kept_back = writer.writer(second, 1)
        kept_back.push(0, 0, "an hour later")
        writer.publish_change(session)
        await asyncio.wait_for(heard.wait(), 30)
        assert (writer.stats().entries, await admin.exists(feed_key(second))) == (1, 0)
        kept_back.close(ended=True)
        shown.close(ended=True)
        undo()
        await writer.close()
        await reader.close()
        assert (await admin.exists(feed_key(first)), await admin.exists(feed_key(second))) == (1, 0)


async def test_the_text_of_all_turns_of_a_process_leaves_in_common_round_trips(redis_url: str) -> None:
    feed = RedisFeed(redis_url)
    feed.open()
    texts = [feed.writer(new_turn_id(), 1) for _ in range(100)]
    texts[0].push(0, 0, "x")
    await texts[0].flush()
    before = feed.stats()
    for _ in range(5):
        for text in texts:
            text.push(0, 0, "word ")
    await asyncio.gather(*(text.flush() for text in texts))
    after = feed.stats()
    assert after.entries - before.entries == 100
    assert after.flushes - before.flushes <= 2
    for text in texts:
        text.close(ended=True)
    await feed.close()


async def test_a_worker_hears_which_turn_to_look_at(redis_url: str) -> None:
    here, there, worker, turn_id = (
        RedisFeed(redis_url),
        RedisFeed(redis_url),
        WorkerId("w@h:1"),
        new_turn_id(),
    )
    here.open()
    there.open()
    heard = there.subscribe_worker(worker)
    first = asyncio.ensure_future(anext(heard))

    def ring() -> bool:
        here.publish_to_worker(worker, turn_id)
        return first.done()

    await await_until(ring, what="the hint heard")
    assert first.result() == turn_id
    await here.close()
    await there.close()


@pytest.mark.behaviour("FOL-06", "FOL-08")
@pytest.mark.parametrize("on_worker_loss", ["interrupt", "continue"])
async def test_a_follower_of_a_lost_turn_changes_nothing_until_somebody_else_does(
    database_url: str, redis_url: str, on_worker_loss: OnWorkerLoss
) -> None:
    async with process(database_url, redis_url) as worker, process(database_url, redis_url) as producer:
        session_id = await worker.world.session()
        receipt = await worker.world.admit(session_id, on_worker_loss=on_worker_loss)
        claim = await worker.world.claim(lease_s=0.2)
        await worker.world.open(claim)
        connection = await producer.world.follow(receipt.turn_id)
        await connection.until(lambda r: "step.started" in r.kinds)
        head = await worker.world.log.head(session_id, OWNER)
        later = head
        while later.now - head.now < timedelta(seconds=0.4):
            later = await worker.world.log.head(session_id, OWNER)
        assert (later.seq, later.revision, later.open) == (head.seq, head.revision, head.open)
        view = await worker.world.queue.get(receipt.turn_id, OWNER)
        assert (view.epoch, view.recovering) == (claim.fence.epoch, on_worker_loss == "continue")
        if on_worker_loss == "interrupt":
            await worker.world.queue.reap()
        else:
            again = await worker.world.claim(worker=WorkerId("turns@there:1:1:bb"))
            await worker.world.queue.open(again, "takeover", [])
            await worker.world.reply(again, "late")
        reader = await connection.ended()
        assert reader.end is not None
        assert reader.end.outcome == ("interrupted" if on_worker_loss == "interrupt" else "completed")


@pytest.mark.behaviour("API-05", "API-06")
async def test_a_turn_streams_over_http_and_is_read_again_from_any_id(
    database_url: str, redis_url: str
) -> None:
    async with (
        process(database_url, redis_url) as worker,
        process(database_url, redis_url, kinds=CLIENT_KINDS) as producer,
        site(producer) as here,
    ):
        receipt = await worker.world.admit(await worker.world.session())
        stream = await here.ask(f"/turns/{receipt.turn_id}")
        claim = await worker.world.claim()
        await worker.world.open(claim)
        feed = worker.feed.writer(claim.turn_id, claim.fence.epoch)
        feed.push(0, 0, "Grüße 🙂")
        await feed.flush()
        await worker.world.reply(claim, "Grüße 🙂!")
        frames = frames_of(await body_of(stream))
        assert "".join(str(f.data["text"]) for f in frames if f.event == "delta") == "Grüße 🙂!"
        shown = [(f.id, f.event) for f in frames if f.id is not None]
        assert shown == [
            (1, "turn.started"),
            (2, "step.started"),
            (4, "step.ended"),
            (5, "turn.reply"),
            (6, "turn.ended"),
        ]
        assert frames[-1].event == "end"
        for seen, _ in shown:
            again = frames_of(await body_of(await here.ask(f"/turns/{receipt.turn_id}", cursor=seen)))
            assert [(f.id, f.event) for f in again if f.id] == [x for x in shown if x[0] > (seen or 0)]
            assert again[-1] == frames[-1]


@pytest.mark.behaviour("FOL-15")  # field case D08
async def test_a_reader_that_stops_reading_is_dropped_while_the_turn_goes_on_and_may_come_back(
    database_url: str, redis_url: str
) -> None:
    async with (
        process(database_url, redis_url) as worker,
        process(database_url, redis_url, kinds=CLIENT_KINDS) as producer,
        site(producer, stall_s=0.3) as here,
    ):
        receipt = await worker.world.admit(await worker.world.session())
        claim = await worker.world.claim()
        await worker.world.open(claim)
        await here.ask(f"/turns/{receipt.turn_id}", receive_bytes=4_096)
        await await_until(lambda: producer.world.watcher.followed == 1, what="the slow reader follows")
        feed = worker.feed.writer(claim.turn_id, claim.fence.epoch)
        piece, pieces = "x" * 100_000, 0
        while pieces < 30:
            feed.push(0, 0, piece)
            pieces += 1
            await feed.flush()
        await await_until(lambda: producer.world.watcher.followed == 0, what="the slow reader dropped")
        assert worker.feed.stats().dropped == 0
        text = piece * pieces
        await worker.world.reply(claim, text)
        frames = frames_of(await body_of(await here.ask(f"/turns/{receipt.turn_id}", cursor=2)))
        assert [f.event for f in frames] == ["step.ended", "snapshot", "turn.reply", "turn.ended", "end"]
        assert frames[1].data["text"] == text


@pytest.mark.behaviour("API-05")
async def test_a_client_that_leaves_leaves_nothing_behind_and_a_closing_process_says_when_to_come_back(
    database_url: str, redis_url: str
) -> None:
    async with process(database_url, redis_url) as producer, site(producer) as here:
        session_id = await producer.world.session()
        await here.ask(f"/sessions/{session_id}")
        await await_until(lambda: producer.world.watcher.followed == 1, what="the client follows")
        here.lines[0].transport.abort()
        await await_until(lambda: producer.world.watcher.followed == 0, what="the client forgotten")
        stream = await here.ask(f"/sessions/{session_id}")
        await await_until(lambda: producer.world.watcher.followed == 1, what="the second client follows")
        here.closing.set()
        assert (await body_of(stream)).endswith("retry: 1000\n\n")
