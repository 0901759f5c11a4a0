"""What followers cost and leave behind: statements, writes, memory, tasks; and what they see when hints are lost."""

from __future__ import annotations

import asyncio

import pytest

from shared.domain.ids import SessionId, WorkerId
from shared.feed.entries import EndEvent
from shared.sessions.records import draft
from shared.sessions.vocabulary import CLIENT_KINDS, StepStarted
from tests.support.event_site import Process, body_of, process, site
from tests.support.following import OWNER, Connection, frames_of
from tests.support.waiting import await_until

SESSIONS = 10
FOLLOWERS = 100
READ_ONLY = "?options=-c%20default_transaction_read_only%3Don"
WORKER_AFTER = WorkerId("turns@there:1:1:bb")


def spent(here: Process) -> dict[str, int]:
    """Return how often each statement was sent since the last look."""
    counted = {unit: count.calls for unit, count in here.database.counters.snapshot().items()}
    here.database.counters.reset()
    return counted


async def polled(here: Process, times: int = 2) -> None:
    """Return after so many polls that begin from now on."""
    wanted = here.world.watcher.stats.polls + times + 1
    await await_until(lambda: here.world.watcher.stats.polls >= wanted, what="polls")


@pytest.mark.behaviour("FOL-02", "FOL-04")
async def test_a_hundred_followers_of_ten_sessions_cost_one_statement_a_poll_and_one_read_a_change(
    database_url: str, redis_url: str
) -> None:
    async with (
        process(database_url, redis_url) as worker,
        process(database_url, redis_url, with_hints=False, kinds=CLIENT_KINDS) as producer,
    ):
        claims = []
        for _ in range(SESSIONS):
            await worker.world.admit(await worker.world.session())
            claims.append(await worker.world.claim())
            await worker.world.open(claims[-1])
        followers: dict[SessionId, list[Connection]] = {c.session_id: [] for c in claims}
        for n in range(FOLLOWERS):
            claim = claims[n % SESSIONS]
            of_turn = n >= FOLLOWERS / 2
            followers[claim.session_id].append(
                await producer.world.follow(claim.turn_id)
                if of_turn
                else await producer.world.follow_session(claim.session_id)
            )
        everyone = [one for of_session in followers.values() for one in of_session]
        for one in everyone:
            await one.until(lambda r: r.cursor == 2)
        await polled(producer)
        spent(producer)

        # Nothing changes: one statement a poll, for all of them.
        polls = producer.world.watcher.stats.polls
        await polled(producer)
        counts = spent(producer)
        # One poll may be on its way at either end of the count.
        assert abs(counts.pop("session.seqs") - (producer.world.watcher.stats.polls - polls)) <= 1
        assert counts == {}

        # Three sessions change: one read each, and one that shows nothing costs no more.
        reads = producer.world.watcher.stats.reads
        for claim in claims[:3]:
            await worker.world.append(claim, "more", StepStarted(run=0, step=1))
        await worker.world.log.commit(claims[3].session_id, OWNER, [draft("host.note", {})])
        for claim in claims[:3]:
            for one in followers[claim.session_id]:
                await one.until(lambda r: r.cursor == 3)
        await polled(producer)
        counts = spent(producer)
        del counts["session.seqs"]
        # Those that come at once share a statement.
        assert 1 <= counts.pop("session.read") <= 4
        assert counts == {}
        assert producer.world.watcher.stats.reads - reads == 4
        assert producer.world.watcher.followed == SESSIONS
        for n, of_session in enumerate(followers.values()):
            for one in of_session:
                assert len(one.reader.records) == (3 if n < 3 else 2)
                await one.drop()
        assert producer.world.watcher.followed == 0


@pytest.mark.behaviour("API-05", "FOL-02")
async def test_turns_that_wait_to_open_are_looked_at_in_one_statement_a_poll(
    database_url: str, redis_url: str
) -> None:
    async with (
        process(database_url, redis_url) as worker,
        process(database_url, redis_url, with_hints=False, kinds=CLIENT_KINDS) as producer,
    ):
        session_id = await worker.world.session()
        await worker.world.admit(session_id)
        queued = [await worker.world.admit(session_id) for _ in range(20)]
        claim = await worker.world.claim()
        await worker.world.open(claim)
        waiting = [await producer.world.follow(receipt.turn_id) for receipt in queued]
        await polled(producer)
        spent(producer)
        for n in range(3):
            await worker.world.append(claim, f"busy {n}", StepStarted(run=0, step=1 + n))
        await polled(producer)
        counts = spent(producer)
        assert abs(counts.pop("session.seqs") - counts.pop("turn.standings")) <= 1
        assert counts.keys() == {"session.read"}
        for receipt, one in zip(queued, waiting, strict=True):
            await worker.world.queue.cancel(receipt.turn_id, OWNER)
            assert (await one.ended()).events == [EndEvent("cancelled", receipt.turn_id, None, None)]


@pytest.mark.behaviour("FOL-02", "FOL-03", "FOL-05")
@pytest.mark.parametrize("hints", ["alone", "lost"])
async def test_commits_of_another_process_come_once_and_in_order_by_hints_alone_and_with_hints_lost(
    database_url: str, redis_url: str, hints: str
) -> None:
    never = 3_600.0
    async with (
        process(database_url, redis_url, with_hints=hints == "alone") as writer,
        process(database_url, redis_url, poll_s=never if hints == "alone" else 0.05) as producer,
    ):
        receipt = await writer.world.admit(await writer.world.session())
        session = await producer.world.follow_session(receipt.session_id)
        turn = await producer.world.follow(receipt.turn_id)
        claim = await writer.world.claim()
        await writer.world.open(claim)
        for step in range(5):
            await writer.world.finish_step(claim, step, f"step {step}")
            # Two commits are two reads, or one: either way nothing is left out.
            await writer.world.append(claim, f"note-{step}", StepStarted(run=0, step=step))
        await writer.world.reply(claim, "done", step=5)
        told = await turn.ended()
        last = (await writer.world.log.head(receipt.session_id, OWNER)).seq
        await session.until(lambda r: r.cursor == last)
        for reader in (told, session.reader):
            assert [r.seq for r in reader.records] == list(range(1, last + 1))
        assert (producer.world.watcher.stats.polls == 0) == (hints == "alone")
        await session.drop()


@pytest.mark.behaviour("FOL-01", "FOL-05")
@pytest.mark.parametrize("after", [0, 100, 255, 256])
async def test_replay_begins_anywhere_in_a_commit_and_meets_the_live_part(
    database_url: str, redis_url: str, after: int
) -> None:
    async with process(database_url, redis_url, with_feed=False) as here:
        session_id = await here.world.session()
        await here.world.log.commit(session_id, OWNER, [draft("host.note", {"n": n}) for n in range(256)])
        connection = await here.world.follow_session(session_id, after=after)
        await here.world.log.commit(session_id, OWNER, [draft("host.note", {"n": 256})])
        reader = await connection.until(lambda r: r.cursor == 257)
        assert [r.seq for r in reader.records] == list(range(after + 1, 258))
        await connection.drop()


@pytest.mark.behaviour("FOL-06")
async def test_all_that_followers_do_can_be_done_where_nothing_can_be_written(
    database_url: str, redis_url: str
) -> None:
    async with (
        process(database_url, redis_url) as worker,
        process(database_url + READ_ONLY, redis_url, kinds=CLIENT_KINDS) as producer,
    ):
        receipt = await worker.world.admit(await worker.world.session())
        waiting = await worker.world.admit(receipt.session_id)
        session = await producer.world.follow_session(receipt.session_id)
        turn = await producer.world.follow(receipt.turn_id)
        unopened = await producer.world.follow(waiting.turn_id)
        claim = await worker.world.claim(lease_s=0.2)
        await worker.world.open(claim)
        await turn.until(lambda r: r.records)
        head = await worker.world.log.head(receipt.session_id, OWNER)
        await polled(producer, 5)
        again = await worker.world.claim(worker=WORKER_AFTER)
        await worker.world.queue.open(again, "takeover", [])
        await worker.world.queue.cancel(waiting.turn_id, OWNER)
        assert (await worker.world.log.head(receipt.session_id, OWNER)).seq == head.seq
        await worker.world.reply(again, "late")
        assert (await turn.ended()).replies == [("late", "late")]
        assert (await unopened.ended()).end == EndEvent("cancelled", waiting.turn_id, None, None)
        await session.until(lambda r: "turn.ended" in r.kinds)
        await session.drop()
        counted = producer.database.counters.snapshot()
        assert set(counted) <= {"session.head", "session.seqs", "session.read", "turn.get", "turn.standings"}
        assert sum(count.commits for count in counted.values()) == 0


@pytest.mark.behaviour("FOL-15")  # field case D08
async def test_a_client_with_full_buffers_costs_bounded_memory_and_slows_no_commit(
    database_url: str, redis_url: str
) -> None:
    async with (
        process(database_url, redis_url) as worker,
        process(database_url, redis_url, kinds=CLIENT_KINDS) as producer,
        site(producer, stall_s=3_600.0) as here,
    ):
        receipt = await worker.world.admit(await worker.world.session())
        claim = await worker.world.claim()
        await worker.world.open(claim)
        stream = await here.ask(f"/turns/{receipt.turn_id}", receive_bytes=4_096)
        feed = worker.feed.writer(claim.turn_id, claim.fence.epoch)
        unsent = [0]
        for step in range(30):
            feed.push(0, step, "x" * 100_000)
            await feed.flush()
            await worker.world.finish_step(claim, step, "x" * 100_000)
            unsent.append(here.unsent_bytes)
        await polled(producer)
        text = "y" * 100_000
        await worker.world.reply(claim, text, step=30)
        await polled(producer)
        unsent.append(here.unsent_bytes)
        # The turn is over, and its client has read nothing: three megabytes wait in the database.
        assert (await worker.world.queue.get(receipt.turn_id, OWNER)).status == "ended"
        assert 0 < max(unsent) <= 3 * 64 * 1024
        assert producer.world.watcher.followed == 1
        frames = frames_of(await body_of(stream))
        assert [f.event for f in frames][-3:] == ["turn.reply", "turn.ended", "end"]
        ids = [f.id for f in frames if f.id is not None]
        stored = await worker.world.log.read(receipt.session_id)
        assert ids == [r.seq for r in stored if r.kind in CLIENT_KINDS]
        held = ""
        for frame in frames:
            if frame.event in ("delta", "snapshot"):
                held = (held if frame.event == "delta" else "") + str(frame.data["text"])
            elif frame.event == "reset":
                held = ""
        assert held == text


@pytest.mark.behaviour("API-04", "FOL-15")
async def test_clients_that_leave_take_their_tasks_and_subscriptions_with_them(
    database_url: str, redis_url: str
) -> None:
    async with (
        process(database_url, redis_url) as worker,
        process(database_url, redis_url) as producer,
        site(producer) as here,
    ):
        paths = []
        for _ in range(5):
            receipt = await worker.world.admit(await worker.world.session())
            claim = await worker.world.claim()
            await worker.world.open(claim)
            worker.feed.writer(claim.turn_id, 1).push(0, 0, "text")
            paths += [f"/turns/{receipt.turn_id}", f"/sessions/{receipt.session_id}"]
        before = names_of_tasks()
        for path in paths * 4:
            await here.ask(path)
        await await_until(lambda: producer.feed.stats().listening == 5, what="the text of each turn")
        assert (producer.world.watcher.followed, producer.feed.stats().watching) == (5, 5)
        assert "sse-reader" in names_of_tasks() - before
        for line in here.lines:
            line.transport.abort()
        await await_until(
            lambda: producer.world.watcher.followed == producer.feed.stats().listening == 0,
            what="their subscriptions gone",
        )
        await await_until(lambda: "sse-reader" not in names_of_tasks(), what="their tasks gone")
        assert producer.feed.stats().watching == 0
        await await_until(
            lambda: names_of_tasks() <= before | {"feed-reader", "feed-listener", "feed-subscriber"},
            what="no read under way",
        )
        assert (await worker.world.queue.get(receipt.turn_id, OWNER)).status == "running"


def names_of_tasks() -> set[str]:
    """Return the names of all tasks that somebody named."""
    return {t.get_name() for t in asyncio.all_tasks() if not t.get_name().startswith("Task-")}
