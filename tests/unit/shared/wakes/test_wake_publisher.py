"""The publisher's thread: what it sends, what it counts, and that nobody waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

import pytest

from shared.domain.errors import BrokerUnavailable
from shared.wakes.celery_publisher import CeleryWakePublisher
from shared.wakes.coalescer import Coalescer

BOUND_S = 10.0


class HandSender:
    """A broker moved by hand: each send waits for a verdict when ``by_hand``, and is told to ``sent`` in any case."""

    def __init__(self, *, by_hand: bool = False, failing: bool = False) -> None:
        self.by_hand = by_hand
        self.failing = failing
        self.sent: queue.Queue[tuple[str, tuple[str, ...]]] = queue.Queue()
        self.go_on = threading.Semaphore(0)
        self.closed = threading.Event()

    def send(self, queue: str, ids: Sequence[str]) -> None:
        self.sent.put((queue, tuple(ids)))
        if self.by_hand:
            assert self.go_on.acquire(timeout=BOUND_S)
        if self.failing:
            raise BrokerUnavailable("away")

    def close(self) -> None:
        self.closed.set()

    def next(self) -> tuple[str, tuple[str, ...]]:
        return self.sent.get(timeout=BOUND_S)


def publisher(sender: HandSender, **bounds: int) -> CeleryWakePublisher:
    return CeleryWakePublisher("redis://nowhere", connect=lambda: sender, coalescer=Coalescer(**bounds))


@pytest.mark.behaviour("DST-28")
def test_rings_return_while_the_broker_hangs_and_share_the_message_after_it() -> None:
    sender = HandSender(by_hand=True)
    wakes = publisher(sender)
    wakes.ring("turns", ["a"])
    assert sender.next() == ("turns", ("a",))
    for one in ("b", "c", "d"):
        wakes.ring("turns", [one])
    sender.go_on.release(2)
    assert sender.next() == ("turns", ("b", "c", "d"))
    wakes.close(BOUND_S)
    stats = wakes.stats()
    assert (stats.published, stats.coalesced, stats.dropped, stats.failed, stats.broker_ok) == (
        2,
        2,
        0,
        0,
        True,
    )


@pytest.mark.behaviour("DST-28")
def test_ids_past_the_limit_are_dropped_and_counted() -> None:
    sender = HandSender(by_hand=True)
    wakes = publisher(sender, waiting_max=5)
    wakes.ring("turns", ["a"])
    sender.next()
    wakes.ring("turns", [str(n) for n in range(8)])
    assert wakes.stats().dropped == 3
    sender.go_on.release(2)
    assert sender.next() == ("turns", ("0", "1", "2", "3", "4"))
    wakes.close(BOUND_S)


@pytest.mark.behaviour("DST-05")
def test_a_broker_that_is_away_is_counted_and_the_wake_is_tried_again_until_it_is_back() -> None:
    sender = HandSender(failing=True)
    wakes = publisher(sender)
    wakes.ring("turns", ["a"])
    assert [sender.next() for _ in range(2)] == [("turns", ("a",)), ("turns", ())]
    assert wakes.stats().failed >= 1 and not wakes.stats().broker_ok
    sender.failing = False
    sender.next()
    wakes.close(BOUND_S)
    assert wakes.stats().published == 1 and wakes.stats().broker_ok


def test_closing_sends_what_is_owed_and_rings_after_it_are_dropped() -> None:
    sender = HandSender(by_hand=True)
    wakes = publisher(sender)
    wakes.ring("turns", ["a"])
    sender.next()
    wakes.ring("turns", ["b"])
    wakes.ring("index", ["c"])
    sender.go_on.release(3)
    wakes.close(BOUND_S)
    assert sender.closed.is_set()
    assert {sender.next(), sender.next()} == {("turns", ("b",)), ("index", ("c",))}
    wakes.ring("turns", ["d"])
    assert (wakes.stats().published, wakes.stats().dropped) == (3, 1)
    wakes.close(BOUND_S)


def test_closing_gives_up_on_a_broker_that_is_away() -> None:
    sender = HandSender(failing=True)
    wakes = publisher(sender)
    wakes.ring("turns", ["a"])
    sender.next()
    wakes.close(BOUND_S)
    assert sender.closed.is_set()
    assert wakes.stats().published == 0


def test_a_publisher_that_was_never_rung_closes() -> None:
    publisher(HandSender()).close(BOUND_S)
