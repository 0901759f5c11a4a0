"""Following sessions and turns within one process: the log, the queue and the feed in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from shared.domain.errors import SessionMissing, StoreDefect, StoreUnavailable, TurnMissing
from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId, new_turn_id
from shared.feed.entries import DeltaEvent, EndEvent, RecordEvent, ResetEvent, SnapshotEvent
from shared.feed.inproc import InprocFeed
from shared.feed.watcher import PAGE_BYTES, PAGE_RECORDS
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.records import Head, Record, draft
from shared.sessions.vocabulary import CLIENT_KINDS
from shared.turns.inproc import InprocTurnQueue
from shared.turns.queue import TurnView
from tests.support.following import OWNER, FollowWorld, Reader, connect, one_by_one
from tests.support.waiting import await_until


class WatchedLog(InprocSessionLog):
    """A log that notes what is read, whose heads are polled only while ``polls`` is set, and that may lose its beginning."""

    def __init__(self, store: InprocStore) -> None:
        super().__init__(store)
        self.polls = asyncio.Event()
        self.polls.set()
        self.reads: list[tuple[int, int]] = []
        self.kept_from = 1
        self.largest = 0
        self.faults: list[Exception] = []

    async def read(self, session_id: SessionId, **how: Any) -> Sequence[Record]:
        """See the port; notes the cursor, and how many records a database would have to look at."""
        after = max(how.pop("after", 0), self.kept_from - 1)
        found = await super().read(session_id, after=after, **how)
        self.largest = max(self.largest, sum(len(record.text) for record in found))
        is_full = len(found) == how["limit"]
        last = found[-1].seq if is_full else (await super().seqs([session_id])).get(session_id, after)
        self.reads.append((after, last - after))
        return found

    async def seqs(self, session_ids: Sequence[SessionId]) -> Mapping[SessionId, int]:
        """See the port."""
        await self.polls.wait()
        if self.faults:
            raise self.faults.pop()
        return await super().seqs(session_ids)


def reads_are(log: WatchedLog, count: int) -> bool:
    return len(log.reads) == count


@dataclass
class Inproc:
    """The world and its feed."""

    world: FollowWorld
    feed: InprocFeed
    log: WatchedLog
    others: list[FollowWorld] = field(default_factory=list)

    async def polled(self, kinds: frozenset[str] | None = None) -> FollowWorld:
        """Another process over the same store, which hears no hints."""
        world = FollowWorld.over(self.log, self.world.queue, kinds=kinds)
        world.watcher.open()
        self.others.append(world)
        return world


@pytest.fixture
async def inproc() -> AsyncIterator[Inproc]:
    store, feed = InprocStore(), InprocFeed()
    log = WatchedLog(store)
    world = FollowWorld.over(log, InprocTurnQueue(store), feed=feed, hints=feed)
    world.watcher.open()
    made = Inproc(world, feed, log)
    yield made
    for one in (world, *made.others):
        await one.watcher.close()


@pytest.mark.behaviour("API-04", "API-06", "FOL-05")
async def test_a_turn_is_followed_from_its_admission_to_its_end(inproc: Inproc) -> None:
    world = inproc.world
    receipt = await world.admit(await world.session())
    connection = await world.follow(receipt.turn_id, after=receipt.after)
    claim = await world.claim()
    await world.open(claim)
    await connection.until(lambda r: "step.started" in r.kinds)
    text = inproc.feed.writer(claim.turn_id, claim.fence.epoch)
    for piece in ("Hel", "lo", " you"):
        text.push(0, 0, piece)
    await connection.until_text("Hello you")
    await world.reply(claim, "Hello you!")
    reader = await connection.ended()
    assert reader.kinds == [
        "turn.started",
        "step.started",
        "memory.message",
        "step.ended",
        "turn.reply",
        "turn.ended",
    ]
    assert reader.replies == [("Hello you!", "Hello you!")]
    assert reader.of(SnapshotEvent) == reader.of(ResetEvent) == []
    assert reader.end == EndEvent("ended", claim.turn_id, "completed", None)


class UnaskedLog(InprocSessionLog):
    """A log whose heads nobody may read one by one."""

    async def head(self, session_id: SessionId, owner: OwnerId) -> Head:
        """Refuse."""
        raise AssertionError("its receipt says it all")


class UnaskedQueue(InprocTurnQueue):
    """A queue whose turns nobody may look at."""

    async def get(self, turn_id: TurnId, owner: OwnerId) -> TurnView:
        """Refuse."""
        raise AssertionError("its receipt says it all")


async def test_a_turn_that_was_just_admitted_is_followed_without_asking_where_it_stands() -> None:
    store, feed = InprocStore(), InprocFeed()
    world = FollowWorld.over(UnaskedLog(store), UnaskedQueue(store), feed=feed, hints=feed)
    world.watcher.open()
    receipt = await world.admit(await world.session())
    connection = connect(world.following.follow_admitted(receipt))
    claim = await world.claim()
    await world.open(claim)
    await world.reply(claim, "Hello you!")
    reader = await connection.ended()
    await world.watcher.close()
    assert reader.replies == [("Hello you!", "Hello you!")]
    assert reader.end == EndEvent("ended", claim.turn_id, "completed", None)


@pytest.mark.behaviour("API-05", "FOL-05")
async def test_a_reader_that_comes_back_at_every_record_misses_nothing_and_sees_nothing_twice(
    inproc: Inproc,
) -> None:
    world = inproc.world
    receipt = await world.admit(await world.session())
    claim = await world.claim()
    await world.open(claim)
    await world.finish_step(claim, 0, "Let me look.")
    await world.reply(claim, "Found.", step=1)
    whole = await (await world.follow(receipt.turn_id)).ended()
    for cut in range(len(whole.events)):
        reader = Reader()
        events = one_by_one(await world.following.follow_turn(receipt.turn_id, OWNER))
        for _ in range(cut):
            reader.take(await anext(events))
        await events.aclose()
        back = await (await world.follow(receipt.turn_id, reader)).ended()
        assert [r.seq for r in back.records] == [r.seq for r in whole.records]
        assert back.replies[-1] == ("Found.", "Found.")
        assert back.end == whole.end


@pytest.mark.behaviour("API-05")
@pytest.mark.parametrize("claimed", [False, True])
async def test_the_stream_of_a_turn_that_never_opened_ends_too(inproc: Inproc, claimed: bool) -> None:
    world = inproc.world
    receipt = await world.admit(await world.session())
    if claimed:
        await world.claim()
    connection = await world.follow(receipt.turn_id)
    await world.queue.cancel(receipt.turn_id, OWNER)
    inproc.feed.publish_change(receipt.session_id)
    view = await world.queue.get(receipt.turn_id, OWNER)
    end = EndEvent("cancelled", receipt.turn_id, view.outcome, view.code)
    assert (await connection.ended()).events == [end]
    again = await (await world.follow(receipt.turn_id, after=receipt.after)).ended()
    assert again.events == [end]


@pytest.mark.behaviour("API-05")
async def test_a_turn_shows_its_own_records_only(inproc: Inproc) -> None:
    world = inproc.world
    session_id = await world.session()
    first, second = await world.admit(session_id), await world.admit(session_id)
    connection = await world.follow(second.turn_id, after=second.after)
    for text in ("one", "two"):
        claim = await world.claim()
        await world.open(claim)
        await world.log.commit(session_id, OWNER, [draft("host.note", {})])
        await world.reply(claim, text)
    reader = await connection.ended()
    assert {r.turn for r in reader.records} == {2}
    assert reader.replies == [("two", "two")]
    assert (await (await world.follow(first.turn_id)).ended()).replies == [("one", "one")]


@pytest.mark.behaviour("API-05")  # field case D02
async def test_a_filter_hides_records_and_changes_no_id(inproc: Inproc) -> None:
    world = inproc.world
    receipt = await world.admit(await world.session())
    claim = await world.claim()
    await world.open(claim)
    await world.reply(claim, "hi")
    both = await world.following.follow_turn(receipt.turn_id, OWNER, kinds={"turn.started", "turn.reply"})
    wide = await connect(both).ended()
    ids = {r.kind: r.seq for r in wide.records}
    assert list(ids) == ["turn.started", "turn.reply"]
    narrow = await world.following.follow_turn(
        receipt.turn_id, OWNER, kinds={"turn.reply"}, after=ids["turn.started"]
    )
    assert [(r.kind, r.seq) for r in (await connect(narrow).ended()).records] == [
        ("turn.reply", ids["turn.reply"])
    ]


@pytest.mark.behaviour("API-05")  # field case D07
async def test_a_cursor_beyond_the_head_is_told_and_following_goes_on_from_the_head(inproc: Inproc) -> None:
    world = inproc.world
    session_id = await world.session()
    await world.log.commit(session_id, OWNER, [draft("host.note", {"n": n}) for n in range(3)])
    connection = await world.follow_session(session_id, after=99)
    await connection.until(lambda r: r.of(ResetEvent))
    await world.log.commit(session_id, OWNER, [draft("host.note", {"n": 3})])
    reader = await connection.until(lambda r: r.records)
    assert reader.events[0] == ResetEvent("cursor", after=3)
    assert [r.seq for r in reader.records] == [4]
    await connection.drop()


@pytest.mark.behaviour("API-05")  # field case D07
@pytest.mark.parametrize("kept_from", [4, 6])
async def test_a_cursor_older_than_what_is_kept_is_told_where_the_rest_begins(
    inproc: Inproc, kept_from: int
) -> None:
    world = inproc.world
    session_id = await world.session()
    await world.log.commit(session_id, OWNER, [draft("host.note", {"n": n}) for n in range(5)])
    inproc.log.kept_from = kept_from
    connection = await world.follow_session(session_id, after=1)
    await connection.until(lambda r: r.of(ResetEvent))
    await world.log.commit(session_id, OWNER, [draft("host.note", {"n": 5})])
    reader = await connection.until(lambda r: r.cursor == 6)
    assert reader.events[0] == ResetEvent("gone", after=kept_from - 1)
    assert [r.seq for r in reader.records] == list(range(kept_from, 7))
    await connection.drop()


@pytest.mark.behaviour("API-05")  # field case D01
async def test_a_cursor_beyond_the_head_begins_a_turn_anew(inproc: Inproc) -> None:
    world = inproc.world
    session_id = await world.session()
    await world.log.commit(session_id, OWNER, [draft("host.note", {})])
    receipt = await world.admit(session_id)
    unopened = await world.follow(receipt.turn_id, after=99)
    await unopened.until(lambda r: r.events)
    claim = await world.claim()
    await world.open(claim)
    open_ = await world.follow(receipt.turn_id, after=99)
    await open_.until(lambda r: r.records)
    await world.reply(claim, "hi")
    over = await world.follow(receipt.turn_id, after=99)
    for connection in (unopened, open_, over):
        reader = await connection.ended()
        assert reader.events[0] == ResetEvent("cursor", after=1)
        assert [r.seq for r in reader.records] == list(range(2, 8))
        assert reader.replies == [("hi", "hi")]


@pytest.mark.behaviour("FOL-02", "FOL-03")
async def test_what_one_follower_reads_hides_nothing_from_another_that_missed_the_hint(
    inproc: Inproc,
) -> None:
    world = await inproc.polled()
    session_id = await world.session()
    await world.log.commit(session_id, OWNER, [draft("host.note", {})] * 2)
    first = await world.follow_session(session_id)
    await first.until(lambda r: r.cursor == 2)
    inproc.log.polls.clear()
    slow = await world.following.follow_session(session_id, OWNER, after=1)
    await world.log.commit(session_id, OWNER, [draft("host.note", {})])
    second = connect(slow)
    await second.until(lambda r: r.cursor == 3)
    inproc.log.polls.set()
    await first.until(lambda r: r.cursor == 3)
    await first.drop()
    await second.drop()


async def test_polls_that_meet_a_defect_tell_their_followers_and_trouble_outside_is_waited_out(
    inproc: Inproc,
) -> None:
    world = await inproc.polled()
    session_id = await world.session()
    lasting = await world.follow_session(session_id)
    inproc.log.faults = [StoreUnavailable("away")] * 3
    await await_until(lambda: world.watcher.stats.failures == 3, what="failed polls")
    await world.log.commit(session_id, OWNER, [draft("host.note", {})])
    await lasting.until(lambda r: r.cursor == 1)
    inproc.log.faults = [StoreDefect("an answer that nobody knows")]
    with pytest.raises(StoreDefect):
        await lasting.ended()
    back = await world.follow_session(session_id, lasting.reader)
    await world.log.commit(session_id, OWNER, [draft("host.note", {})])
    await back.until(lambda r: r.cursor == 2)
    await back.drop()


@pytest.mark.behaviour("FOL-15")
async def test_a_follower_holds_a_bounded_page_however_large_records_are(inproc: Inproc) -> None:
    world = inproc.world
    session_id = await world.session()
    size = 300_000
    for _ in range(12):
        await world.log.commit(session_id, OWNER, [draft("host.note", {"text": "x" * size})])
    connection = await world.follow_session(session_id)
    reader = await connection.until(lambda r: r.cursor == 12)
    assert [r.seq for r in reader.records] == list(range(1, 13))
    assert size < inproc.log.largest < PAGE_BYTES + 2 * size
    await connection.drop()


async def test_records_that_nobody_sees_are_not_read_over_and_over(inproc: Inproc) -> None:
    world = await inproc.polled(kinds=CLIENT_KINDS)
    session_id = await world.session()
    connection = await world.follow_session(session_id)
    for n in range(1, 6):
        await world.log.commit(session_id, OWNER, [draft("host.note", {})] * 10)
        await await_until(partial(reads_are, inproc.log, n), what="the change was read")
    # Each read begins where the head was polled to be, though no record was ever shown.
    assert [after for after, _ in inproc.log.reads] == [0, 10, 20, 30, 40]
    await connection.drop()


async def test_a_turn_that_is_over_is_read_to_its_end_and_no_further(inproc: Inproc) -> None:
    world = inproc.world
    session_id = await world.session()
    first = await world.admit(session_id)
    for n in range(100):
        claim = await world.claim()
        await world.open(claim)
        await world.reply(claim, f"reply {n}")
        await world.admit(session_id)
    for after in (None, 3, 6):
        inproc.log.reads.clear()
        reader = await (await world.follow(first.turn_id, after=after)).ended()
        assert {r.turn for r in reader.records} <= {1}
        assert sum(looked_at for _, looked_at in inproc.log.reads) <= PAGE_RECORDS + 1


@pytest.mark.behaviour("FOL-01", "FOL-05")
@pytest.mark.parametrize("after", [0, 100, 255, 256])
async def test_replay_begins_anywhere_in_a_large_commit(inproc: Inproc, after: int) -> None:
    world = inproc.world
    session_id = await world.session()
    await world.log.commit(session_id, OWNER, [draft("host.note", {"n": n}) for n in range(256)])
    connection = await world.follow_session(session_id, after=after)
    await world.log.commit(session_id, OWNER, [draft("host.note", {"n": 256})])
    reader = await connection.until(lambda r: r.cursor == 257)
    assert [r.seq for r in reader.records] == list(range(after + 1, 258))
    await connection.drop()


@pytest.mark.behaviour("FOL-07")
async def test_another_owner_finds_nothing_to_follow(inproc: Inproc) -> None:
    world = inproc.world
    receipt = await world.admit(await world.session())
    with pytest.raises(SessionMissing):
        await world.following.follow_session(receipt.session_id, OwnerId("bob"))
    with pytest.raises(SessionMissing):
        await world.following.follow_session(SessionId("ses_none"), OWNER)
    with pytest.raises(TurnMissing):
        await world.following.follow_turn(receipt.turn_id, OwnerId("bob"))
    with pytest.raises(TurnMissing):
        await world.following.follow_turn(new_turn_id(), OWNER)


async def test_the_streams_of_a_removed_session_end_with_a_typed_event(inproc: Inproc) -> None:
    world = inproc.world
    receipt = await world.admit(await world.session())
    session, turn = await world.follow_session(receipt.session_id), await world.follow(receipt.turn_id)
    claim = await world.claim()
    await world.open(claim)
    await session.until(lambda r: r.records)
    await turn.until(lambda r: r.records)
    await world.log.remove(receipt.session_id, OWNER)
    assert (await session.ended()).end == EndEvent("removed", None, code="session.missing")
    assert (await turn.ended()).end == EndEvent("removed", receipt.turn_id, code="session.missing")


async def test_a_session_stream_shows_the_text_of_its_turns_and_stays_open(inproc: Inproc) -> None:
    world = inproc.world
    session_id = await world.session()
    connection = await world.follow_session(session_id)
    for n, text in enumerate(("one", "two"), start=1):
        await world.admit(session_id)
        claim = await world.claim()
        await world.open(claim)
        feed = inproc.feed.writer(claim.turn_id, claim.fence.epoch)
        feed.push(0, 0, text)
        await connection.until_text(text)
        await world.reply(claim, text)
        feed.close(ended=True)
        await connection.until_replies(n)
    assert connection.reader.replies == [("one", "one"), ("two", "two")]
    assert {e.turn for e in connection.reader.of(DeltaEvent) if isinstance(e, DeltaEvent)} == {1, 2}
    late = await world.follow_session(session_id)
    await late.until(lambda r: len(r.replies) == 2)
    assert all(isinstance(e, RecordEvent) for e in late.reader.events)
    assert not connection.task.done()
    await connection.drop()
    await late.drop()


@pytest.mark.behaviour("API-06")
async def test_a_takeover_resets_the_text_and_the_new_attempt_is_shown(inproc: Inproc) -> None:
    world = inproc.world
    receipt = await world.admit(await world.session())
    connection = await world.follow(receipt.turn_id)
    claim = await world.claim()
    await world.open(claim)
    old, new = inproc.feed.writer(claim.turn_id, 1), inproc.feed.writer(claim.turn_id, 2)
    old.push(0, 0, "First tr")
    await connection.until_text("First tr")
    new.push(0, 0, "Second")
    old.push(0, 0, "y")
    await connection.until_text("Second")
    await world.reply(claim, "Second try")
    reader = await connection.ended()
    assert [e for e in reader.events if not isinstance(e, RecordEvent)][:3] == [
        DeltaEvent(1, 0, 0, 0, "First tr"),
        ResetEvent("attempt", 1, 0, 0),
        DeltaEvent(1, 0, 0, 0, "Second"),
    ]
    assert reader.replies == [("Second try", "Second try")]


async def test_followers_of_a_session_share_one_read_of_a_change(inproc: Inproc) -> None:
    world = inproc.world
    session_id = await world.session()
    connections = [await world.follow_session(session_id) for _ in range(20)]
    await world.log.commit(session_id, OWNER, [draft("host.note", {"n": 0})])
    inproc.feed.publish_change(session_id)
    for connection in connections:
        await connection.until(lambda r: r.cursor == 1)
    before = world.watcher.stats.reads
    await world.log.commit(session_id, OWNER, [draft("host.note", {"n": 1})])
    inproc.feed.publish_change(session_id)
    for connection in connections:
        await connection.until(lambda r: r.cursor == 2)
    assert world.watcher.stats.reads - before <= 2
    for connection in connections:
        await connection.drop()
    assert world.watcher.followed == 0


async def test_a_hint_to_a_worker_names_the_turn(inproc: Inproc) -> None:
    worker, turn_id = WorkerId("w"), new_turn_id()
    heard = inproc.feed.subscribe_worker(worker)
    first = asyncio.ensure_future(anext(heard))
    loop = asyncio.get_running_loop()
    loop.call_soon(inproc.feed.publish_to_worker, WorkerId("other"), new_turn_id())
    loop.call_soon(inproc.feed.publish_to_worker, worker, turn_id)
    assert await asyncio.wait_for(first, 5) == turn_id
