"""A session of many turns as one order of events: over any cut and any loss each reply is told whole, or by its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from shared.domain.ids import TurnId
from shared.feed.entries import DeltaEvent, SnapshotEvent
from shared.feed.live_text import LiveText
from shared.feed.merge import SessionMerge
from shared.sessions.records import Record
from tests.support.following import Reader
from tests.support.merging import Turn


@dataclass
class Session:
    """The log, its turns, and one reader over its connections."""

    log: list[Record] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    reader: Reader = field(default_factory=Reader)
    texts: dict[TurnId, tuple[LiveText, list[int]]] = field(default_factory=dict)
    listened: TurnId | None = None
    connected_at: tuple[int, int] = (0, 0)
    replies: list[str] = field(default_factory=list)
    #: Of the turns whose reply was read: whether they began before this connection and behind its cursor.
    replayed: list[bool] = field(default_factory=list)
    merge: SessionMerge = field(init=False)

    def __post_init__(self) -> None:
        self.connect(True)

    @property
    def open(self) -> Turn | None:
        return self.turns[-1] if self.turns and not self.turns[-1].is_over else None

    def begin(self) -> None:
        if self.open is None:
            self.turns.append(Turn(self.log, number=len(self.turns) + 1))
            self.turns[-1].begin()

    def reply(self) -> None:
        if self.open is not None:
            turn = self.open
            turn.flush()
            self.replies.append(turn.text)
            turn.reply()

    def stream(self, word: str) -> None:
        """A word comes through from the worker to the reader."""
        self.begin()
        assert self.open is not None
        self.open.push(word)
        self.open.flush()
        self.look()
        self.receive(100)
        self.look()

    def miss(self, is_fresh: bool) -> None:
        """The turn ends, and another may begin, while the reader is away."""
        self.reply()
        if is_fresh:
            self.begin()
        self.connect(is_fresh)

    def connect(self, is_fresh: bool) -> None:
        """Come back; to a process that has read nothing yet, or to the one before."""
        if is_fresh:
            self.texts = {}
        self.listened = None
        self.connected_at = (self.reader.cursor, len(self.log))
        self.merge = SessionMerge(head_seq=len(self.log), has_feed=True)
        cursor = self.reader.cursor
        if self.open is not None and cursor:
            started = next(r.seq for r in self.log if r.turn == self.open.number)
            if cursor >= started:
                self.merge.adopt(self.open.id, self.open.number)

    def receive(self, count: int) -> None:
        for turn in self.turns:
            if turn.id in self.texts:
                live, last = self.texts[turn.id]
                for number, entry in [e for e in turn.stream if e[0] > last[0]][:count]:
                    last[0] = number
                    live.apply(entry)

    def read(self, count: int) -> None:
        for record in self.log[self.reader.cursor : self.reader.cursor + count]:
            if record.kind == "turn.reply":
                started = next(r.seq for r in self.log if r.turn == record.turn)
                cursor, head = self.connected_at
                self.replayed.append(cursor < started <= head)
            for shown in self.merge.of_record(record):
                self.reader.take(shown)

    def look(self) -> None:
        """As a follower does: all records first, then the text of the turn that is open."""
        self.read(len(self.log))
        wanted, merge = self.merge.live_turn, self.merge.turn
        if wanted is None or merge is None:
            self.listened = None
            return
        live, _ = self.texts.setdefault(wanted, (LiveText(), [0]))
        if wanted != self.listened:
            self.listened = wanted
            merge.join(live)
        for shown in self.merge.of_live(live):
            self.reader.take(shown)


moves = st.one_of(
    st.tuples(
        st.sampled_from(["begin", "reply", "look", "flush", "next_attempt", "finish_step", "wipe"]), st.none()
    ),
    st.tuples(st.sampled_from(["push", "stream", "stream"]), st.sampled_from(["a", "bé ", "🙂"])),
    st.tuples(st.just("miss"), st.booleans()),
    st.tuples(st.sampled_from(["receive", "read"]), st.integers(1, 4)),
    st.tuples(st.just("connect"), st.booleans()),
)


def play(session: Session, move: tuple[str, Any]) -> None:
    name, value = move
    match name:
        case "begin" | "reply" | "look":
            getattr(session, name)()
        case "receive" | "read" | "connect" | "stream" | "miss":
            getattr(session, name)(value)
        case _ if session.open is not None:
            getattr(session.open, name)(*([] if value is None else [value]))
        case _:
            session.begin()


@pytest.mark.behaviour("API-06", "FOL-05")
@settings(max_examples=150, deadline=None)
@given(st.lists(moves, min_size=10, max_size=60))
def test_each_reply_of_a_session_is_held_when_it_comes_or_told_by_its_record_alone(
    played: list[tuple[str, Any]],
) -> None:
    session = Session()
    session.begin()
    for move in played:
        play(session, move)
    session.reply()
    session.look()
    reader = session.reader
    assert [r.seq for r in reader.records] == list(range(1, len(session.log) + 1))
    assert [stored for stored, _ in reader.replies] == session.replies
    for (stored, held), was_there in zip(reader.replies, session.replayed, strict=True):
        assert held == stored or (was_there and held == "")
    assert reader.texts_after_reply == 0
    told = len(reader.of(DeltaEvent)) + len(reader.of(SnapshotEvent))
    event(f"turns {min(len(session.turns), 4)}, text {'yes' if told else 'no'}")
