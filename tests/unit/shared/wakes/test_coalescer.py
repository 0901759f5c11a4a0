"""Which rings share a message and when it may leave."""

from __future__ import annotations

import pytest

from shared.wakes.coalescer import NEVER, Coalescer, Message


@pytest.mark.behaviour("DST-27")
def test_the_first_ring_at_rest_is_due_at_once_with_its_one_id() -> None:
    owed = Coalescer()
    assert owed.add("turns", ["a"])
    assert owed.due_at() < 0
    assert owed.take(now=100.0) == Message("turns", ("a",))
    assert owed.due_at() == NEVER


@pytest.mark.behaviour("DST-27")
def test_rings_within_the_interval_share_the_next_message() -> None:
    owed = Coalescer(interval_s=0.010)
    owed.add("turns", ["a"])
    owed.take(now=100.0)
    for one in ("b", "c", "b"):
        owed.add("turns", [one])
    assert owed.take(now=100.009) is None
    assert owed.due_at() == pytest.approx(100.010)
    assert owed.take(now=100.010) == Message("turns", ("b", "c"))
    assert owed.coalesced == 2


@pytest.mark.behaviour("DST-27")
def test_a_message_carries_at_most_its_bound_and_the_rest_follows_an_interval_later() -> None:
    owed = Coalescer(interval_s=0.010, ids_per_message=200)
    owed.add("turns", [str(n) for n in range(250)])
    first = owed.take(now=0.0)
    assert first is not None and len(first.ids) == 200
    assert owed.take(now=0.005) is None
    assert owed.take(now=0.010) == Message("turns", tuple(str(n) for n in range(200, 250)))
    assert owed.take(now=1.0) is None


def test_queues_do_not_wait_for_each_other() -> None:
    owed = Coalescer()
    owed.add("turns", ["a"])
    owed.take(now=0.0)
    owed.add("turns", ["b"])
    owed.add("index", ["c"])
    assert owed.take(now=0.001) == Message("index", ("c",))
    assert owed.take(now=0.001) is None


def test_a_ring_without_ids_owes_a_message() -> None:
    owed = Coalescer()
    assert owed.add("upkeep", ())
    assert owed.take(now=0.0) == Message("upkeep", ())


@pytest.mark.behaviour("DST-28")
def test_past_its_limit_ids_are_dropped_and_counted_and_the_message_stays_owed() -> None:
    owed = Coalescer(waiting_max=3)
    owed.add("turns", ["a", "b"])
    owed.add("index", ["c", "d"])
    owed.add("activity", ["e"])
    assert (owed.waiting, owed.dropped) == (3, 2)
    sent = [owed.take(now=0.0) for _ in range(4)]
    assert sent == [Message("activity", ()), Message("index", ("c",)), Message("turns", ("a", "b")), None]
    owed.add("turns", ["f", "g", "h"])
    assert (owed.waiting, owed.dropped) == (3, 2)


def test_an_unknown_queue_is_dropped_and_counted() -> None:
    owed = Coalescer()
    assert not owed.add("nosuch", ["a"])
    assert (owed.dropped, owed.due_at()) == (1, NEVER)


def test_a_message_that_was_not_sent_is_owed_again_without_its_ids() -> None:
    owed = Coalescer(interval_s=0.010)
    owed.add("turns", ["a"])
    message = owed.take(now=0.0)
    assert message is not None
    owed.give_back(message)
    assert owed.take(now=0.010) == Message("turns", ())
    assert owed.dropped == 1


def test_in_a_hurry_the_interval_does_not_count() -> None:
    owed = Coalescer(interval_s=10.0)
    owed.add("turns", ["a"])
    owed.take(now=0.0)
    owed.add("turns", ["b"])
    owed.hurry()
    assert owed.take(now=0.001) == Message("turns", ("b",))
