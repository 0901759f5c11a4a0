"""Text and records of a turn as one order of events: the invariants, over any interleaving and loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from shared.domain.ids import new_turn_id
from shared.feed.entries import (
    Delta,
    DeltaEvent,
    EndEvent,
    Entry,
    RecordEvent,
    ResetEvent,
    Snapshot,
    SnapshotEvent,
)
from shared.feed.live_text import LiveText
from shared.feed.merge import SessionMerge
from shared.sessions.records import Record
from shared.sessions.vocabulary import (
    Payload,
    StepEnded,
    TurnEnded,
    TurnReply,
    TurnStarted,
    UserMessage,
    draft_of,
)
from tests.support.following import Reader, closing_of, message_of
from tests.support.merging import SESSION, Turn

TURN = new_turn_id()
WORDS = ("a", "bé ", "🙂", "no ", "a")


@dataclass
class Follower:
    """One reader over its connections: each has a cursor into the log and the process's text behind it."""

    turn: Turn
    reader: Reader = field(default_factory=Reader)
    live: LiveText = field(default_factory=LiveText)
    last_id: int = 0
    merge: SessionMerge = field(init=False)

    def __post_init__(self) -> None:
        self.connect(is_fresh=True)

    def connect(self, *, is_fresh: bool) -> None:
        """Come (back) with the last seq; a fresh process reads the stream from its start."""
        if is_fresh:
            self.live, self.last_id = LiveText(), 0
        self.merge = SessionMerge(head_seq=len(self.turn.log), has_feed=True, turn=self.turn.id)
        if self.reader.cursor:
            self.merge.adopt(None if self.turn.is_over else self.turn.id, 1)
        if self.reader.cursor and self.merge.turn is not None and not self.turn.is_over:
            self.merge.turn.join(self.live)

    def receive(self, count: int) -> None:
        for number, entry in [e for e in self.turn.stream if e[0] > self.last_id][:count]:
            self.last_id = number
            self.live.apply(entry)

    def receive_again(self, count: int) -> None:
        """Entries come once more, as after a read whose answer was lost."""
        self.last_id = max(0, self.last_id - count)

    def read(self, count: int) -> None:
        for record in self.turn.log[self.reader.cursor : self.reader.cursor + count]:
            for shown in self.merge.of_record(record):
                self.reader.take(shown)

    def look(self) -> None:
        merge = self.merge.turn
        if self.merge.live_turn is None or merge is None:
            return
        if merge.must_read(self.live):
            self.read(len(self.turn.log))
        for shown in self.merge.of_live(self.live):
            self.reader.take(shown)


words = st.sampled_from(WORDS)
counts = st.integers(1, 4)
reading = st.one_of(
    st.tuples(st.sampled_from(["receive", "receive_again", "read", "look", "wipe", "lose"]), counts),
    st.tuples(st.just("reconnect"), st.booleans()),
    st.tuples(st.just("zombie"), words),
)
working = st.one_of(
    st.tuples(st.just("stream"), words),
    st.tuples(st.just("stream"), words),
    st.tuples(st.just("push"), words),
    st.tuples(st.just("flush"), st.booleans()),
    st.tuples(st.sampled_from(["start_over", "next_attempt", "finish_step"]), counts),
)


def play(turn: Turn, follower: Follower, move: tuple[str, Any]) -> None:
    name, value = move
    match name:
        case "push":
            turn.push(value)
        case "stream":
            turn.push(value)
            turn.flush()
            follower.receive(100)
            follower.look()
        case "flush":
            turn.flush(is_lost=value)
        case "zombie":
            turn.write_as_zombie(value)
        case "receive" | "receive_again" | "read":
            getattr(follower, name)(value)
        case "reconnect":
            follower.connect(is_fresh=value)
        case "look":
            follower.look()
        case _:
            getattr(turn, name)()


@pytest.mark.behaviour("API-06", "FOL-05")
@settings(max_examples=120, deadline=None)
@given(
    before=st.lists(st.one_of(working, working, reading), min_size=8, max_size=40),
    after=st.lists(reading, max_size=8),
    reads_at_once=st.booleans(),
)
def test_whatever_the_feed_loses_the_reader_holds_the_stored_reply_when_it_comes(
    before: list[tuple[str, Any]], after: list[tuple[str, Any]], reads_at_once: bool
) -> None:
    turn = Turn()
    turn.begin()
    follower = Follower(turn)
    follower.read(2 if reads_at_once else 0)
    for move in before:
        play(turn, follower, move)
        assert any(text.startswith(follower.reader.text) for text in turn.written), "no worker wrote this"
    final = turn.text
    turn.flush()
    turn.reply()
    for move in after:
        play(turn, follower, move)
    follower.receive(1_000)
    follower.look()
    follower.read(1_000)
    reader = follower.reader
    event(f"resets {min(len(reader.of(ResetEvent)), 3)}, snapshots {min(len(reader.of(SnapshotEvent)), 3)}")
    assert [r.seq for r in reader.records] == list(range(1, len(turn.log) + 1))
    assert reader.replies == [(final, final)]
    assert reader.texts_after_reply == 0


def record(seq: int, payload: Payload, *, turn: int = 1) -> Record:
    made = draft_of(payload)
    return Record(SESSION, seq, turn, made.kind, datetime.now(UTC), made.text, made.digest)


def started() -> TurnStarted:
    return TurnStarted(
        turn_id=str(TURN), run_id="r", entry="r:0", origin="user", user_message=UserMessage(text="hi")
    )


def fed(*entries: Entry) -> LiveText:
    live = LiveText()
    for entry in entries:
        live.apply(entry)
    return live


def test_a_turn_followed_from_its_start_is_told_by_deltas_alone() -> None:
    merge, reader = SessionMerge(head_seq=0, has_feed=True, turn=TURN), Reader()
    live = LiveText()
    for shown in merge.of_record(record(1, started())):
        reader.take(shown)
    assert merge.turn is not None
    merge.turn.join(live)
    for entry in (Delta(TURN, 1, 0, 0, 0, "Hel"), Delta(TURN, 1, 0, 0, 3, "lo")):
        live.apply(entry)
        for shown in merge.of_live(live):
            reader.take(shown)
    for n, payload in enumerate(closing_of("r", 0, "Hello!"), start=2):
        for shown in merge.of_record(record(n, payload)):
            reader.take(shown)
    assert [e for e in reader.events if not isinstance(e, RecordEvent)] == [
        DeltaEvent(1, 0, 0, 0, "Hel"),
        DeltaEvent(1, 0, 0, 3, "lo"),
        DeltaEvent(1, 0, 0, 5, "!"),
    ]
    assert reader.replies == [("Hello!", "Hello!")]


@pytest.mark.behaviour("API-06")
def test_a_reader_that_comes_back_gets_the_text_so_far_and_then_the_rest() -> None:
    merge = SessionMerge(head_seq=2, has_feed=True, turn=TURN)
    merge.adopt(TURN, 1)
    live = fed(Delta(TURN, 1, 0, 0, 0, "Hel"))
    assert list(merge.of_live(live)) == [SnapshotEvent(1, 0, 0, "Hel")]
    live.apply(Delta(TURN, 1, 0, 0, 3, "lo"))
    assert list(merge.of_live(live)) == [DeltaEvent(1, 0, 0, 3, "lo")]


@pytest.mark.behaviour("API-06")
def test_an_attempt_that_is_overtaken_yields_a_reset_and_its_late_text_is_dropped() -> None:
    merge = SessionMerge(head_seq=0, has_feed=True, turn=TURN)
    list(merge.of_record(record(1, started())))
    live = fed(Delta(TURN, 1, 0, 0, 0, "first"))
    list(merge.of_live(live))
    live.apply(Delta(TURN, 2, 0, 0, 0, "sec"))
    live.apply(Delta(TURN, 1, 0, 0, 5, " try"))
    assert list(merge.of_live(live)) == [
        ResetEvent("attempt", 1, 0, 0),
        DeltaEvent(1, 0, 0, 0, "sec"),
    ]


def test_lost_text_yields_a_reset_then_a_snapshot_then_deltas() -> None:
    merge = SessionMerge(head_seq=0, has_feed=True, turn=TURN)
    list(merge.of_record(record(1, started())))
    live = fed(Delta(TURN, 1, 0, 0, 0, "ab"))
    list(merge.of_live(live))
    live.apply(Delta(TURN, 1, 0, 0, 4, "e"))
    assert list(merge.of_live(live)) == []
    live.apply(Snapshot(TURN, 1, 0, 0, "abcde"))
    live.apply(Delta(TURN, 1, 0, 0, 5, "f"))
    assert list(merge.of_live(live)) == [ResetEvent("gap", 1, 0, 0), SnapshotEvent(1, 0, 0, "abcdef")]


def test_the_text_of_a_new_step_begins_with_a_reset_and_a_cut_step_is_made_whole() -> None:
    merge, reader = SessionMerge(head_seq=0, has_feed=True, turn=TURN), Reader()
    list(merge.of_record(record(1, started())))
    live = fed(Delta(TURN, 1, 0, 0, 0, "Let me"))
    list(merge.of_live(live))
    for n, payload in enumerate(
        [message_of("r", 0, "Let me look."), StepEnded(run=0, step=0, status="completed")], start=2
    ):
        for shown in merge.of_record(record(n, payload)):
            reader.take(shown)
    assert reader.of(DeltaEvent) == [DeltaEvent(1, 0, 0, 6, " look.")]
    live.apply(Delta(TURN, 1, 0, 0, 6, " look."))
    assert list(merge.of_live(live)) == []
    live.apply(Delta(TURN, 1, 0, 1, 0, "Found"))
    assert merge.turn is not None and merge.turn.must_read(live)
    assert list(merge.of_live(live)) == [ResetEvent("step", 1, 0, 1), DeltaEvent(1, 0, 1, 0, "Found")]


def test_a_reply_of_the_host_voids_the_text_that_was_shown() -> None:
    merge = SessionMerge(head_seq=0, has_feed=True, turn=TURN)
    list(merge.of_record(record(1, started())))
    list(merge.of_live(fed(Delta(TURN, 1, 0, 0, 0, "I think"))))
    reply = record(2, TurnReply(outcome="partial", text="Stopped.", reason="policy"))
    assert list(merge.of_record(reply)) == [
        ResetEvent("reply", 1, 0, 0),
        DeltaEvent(1, 0, 0, 0, "Stopped."),
        RecordEvent(reply),
    ]


@pytest.mark.behaviour("FOL-13")
def test_a_follower_without_a_feed_gets_records_alone() -> None:
    merge = SessionMerge(head_seq=0, has_feed=False)
    shown = [
        e
        for n, p in enumerate([started(), *closing_of("r", 0, "Hello")], start=1)
        for e in merge.of_record(record(n, p))
    ]
    assert [type(e) for e in shown] == [RecordEvent] * 5


def test_a_session_replays_a_turn_that_is_over_without_its_text() -> None:
    payloads = [started(), *closing_of("r", 0, "Hello")]
    merge = SessionMerge(head_seq=5, has_feed=True)
    shown = [e for n, p in enumerate(payloads, start=1) for e in merge.of_record(record(n, p))]
    assert [type(e) for e in shown] == [RecordEvent] * 5
    resumed = SessionMerge(head_seq=5, has_feed=True)
    late = [e for n, p in enumerate(payloads[1:], start=2) for e in resumed.of_record(record(n, p))]
    assert late[2] == SnapshotEvent(1, 0, 0, "Hello")


def test_a_failed_turn_without_a_reply_keeps_what_was_shown() -> None:
    merge = SessionMerge(head_seq=0, has_feed=True, turn=TURN)
    list(merge.of_record(record(1, started())))
    list(merge.of_live(fed(Delta(TURN, 1, 0, 0, 0, "I th"))))
    last = [
        record(2, TurnReply(outcome="failed")),
        record(3, TurnEnded(reason="failed", code="model.unavailable")),
    ]
    assert [e for r in last for e in merge.of_record(r)] == [RecordEvent(r) for r in last]
    assert not isinstance(merge.ended, EndEvent)
