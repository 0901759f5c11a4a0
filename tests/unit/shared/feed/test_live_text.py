"""How entries become a turn's live text, and how a writer's pieces become entries."""

from __future__ import annotations

import pytest

from shared.domain.ids import new_turn_id
from shared.feed.entries import Delta, Entry, Snapshot
from shared.feed.live_text import LiveText
from shared.feed.outgoing import SNAPSHOT_ENTRIES, Outgoing

TURN = new_turn_id()


def delta(offset: int, text: str, *, epoch: int = 1, step: int = 0) -> Delta:
    return Delta(TURN, epoch, 0, step, offset, text)


def snapshot(text: str, *, epoch: int = 1, step: int = 0) -> Snapshot:
    return Snapshot(TURN, epoch, 0, step, text)


def text_of(*entries: Entry) -> LiveText:
    live = LiveText()
    for entry in entries:
        live.apply(entry)
    return live


def outgoing(*, max_bytes: int = 1_000_000) -> Outgoing:
    return Outgoing(TURN, 1, max_bytes=max_bytes)


def test_pieces_in_order_become_one_text() -> None:
    live = text_of(delta(0, "Hé"), delta(2, "🙂l"), delta(4, "lo"))
    assert (live.text, live.is_whole, live.generation) == ("Hé🙂llo", True, 1)


def test_an_entry_of_a_lower_epoch_or_an_earlier_step_is_dropped() -> None:
    live = text_of(delta(0, "new", epoch=2, step=1))
    assert not live.apply(snapshot("old, and longer", epoch=1, step=1))
    assert not live.apply(delta(0, "earlier", epoch=2, step=0))
    assert (live.text, live.generation) == ("new", 1)


def test_a_higher_epoch_starts_the_text_over() -> None:
    live = text_of(delta(0, "first try"), delta(0, "second", epoch=2))
    assert (live.text, live.generation, live.reason) == ("second", 2, "attempt")


def test_a_gap_hides_the_text_until_a_snapshot_mends_it() -> None:
    live = text_of(delta(0, "abc"), delta(5, "f"))
    assert not live.is_whole
    assert not live.apply(delta(6, "g"))
    assert live.apply(snapshot("abcdefg"))
    assert (live.text, live.is_whole, live.reason, live.base) == ("abcdefg", True, "gap", 7)


def test_a_repeated_piece_says_nothing_and_an_overlapping_one_only_its_end() -> None:
    live = text_of(delta(0, "abc"))
    assert not live.apply(delta(0, "abc"))
    assert not live.apply(snapshot("ab" + "c"))
    assert live.apply(delta(1, "bcd"))
    assert (live.text, live.generation) == ("abcd", 1)


def test_a_piece_that_contradicts_what_is_known_is_a_gap() -> None:
    assert not text_of(delta(0, "abc"), delta(1, "xyz")).is_whole


def test_a_snapshot_that_goes_on_is_no_reset_and_one_that_does_not_is() -> None:
    live = text_of(delta(0, "abc"), snapshot("abcdef"))
    assert (live.text, live.generation) == ("abcdef", 1)
    live.apply(snapshot(""))
    assert (live.text, live.generation, live.reason) == ("", 2, "retry")


def test_what_is_pushed_between_two_batches_leaves_as_one_entry() -> None:
    out = outgoing()
    for word in ("a ", "bé ", "c"):
        out.push(0, 0, word)
    assert out.plan(1.0) == delta(0, "a bé c")
    assert not out.is_dirty
    assert out.plan(1.0) is None
    out.push(0, 0, "d")
    assert out.plan(1.1) == delta(6, "d")


@pytest.mark.behaviour("FOL-17")
def test_a_snapshot_is_due_after_so_many_entries_or_a_second() -> None:
    out = outgoing()
    entries = []
    for n in range(SNAPSHOT_ENTRIES + 1):
        out.push(0, 0, "x")
        entries.append(out.plan(n / 1000))
    assert [isinstance(e, Snapshot) for e in entries] == [False] * SNAPSHOT_ENTRIES + [True]
    assert entries[-1] == snapshot("x" * (SNAPSHOT_ENTRIES + 1))
    out.push(0, 0, "y")
    assert isinstance(out.plan(0.5), Delta)
    out.push(0, 0, "z")
    assert isinstance(out.plan(1.2), Snapshot)


def test_after_a_failed_batch_the_whole_text_is_written_again() -> None:
    out = outgoing()
    out.push(0, 0, "abc")
    out.plan(0.0)
    out.push(0, 0, "d")
    out.fail()
    assert out.plan(0.1) == snapshot("abcd")


def test_a_step_that_starts_over_is_told_by_an_empty_snapshot() -> None:
    out = outgoing()
    out.push(0, 0, "abc")
    out.plan(0.0)
    out.begin(0, 0)
    assert out.plan(0.1) == snapshot("")
    out.push(0, 0, "xyz")
    assert out.plan(0.2) == delta(0, "xyz")


def test_a_step_that_begins_for_the_first_time_writes_nothing_yet() -> None:
    out = outgoing()
    out.begin(0, 0)
    assert not out.is_dirty
    out.push(0, 0, "a")
    out.plan(0.0)
    out.begin(0, 1)
    assert not out.is_dirty


@pytest.mark.behaviour("FOL-17")
def test_text_beyond_the_bound_is_given_up_and_counted_and_the_rest_stays_a_prefix() -> None:
    out = outgoing(max_bytes=16 * 1024 + 10)
    for _ in range(4):
        out.push(0, 0, "123456")
    entry = out.plan(0.0)
    assert entry is not None and entry.text == "123456"
    assert out.take_dropped() == 3
    out.push(0, 1, "next")
    assert out.plan(0.1) == delta(0, "next", step=1)


def test_unstorable_characters_are_replaced_as_in_the_stored_reply() -> None:
    out = outgoing()
    out.push(0, 0, "a\x00\ud800b")
    assert out.plan(0.0) == delta(0, "a\ufffd\ufffdb")
