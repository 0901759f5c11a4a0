"""The publisher of an event loop: what it sends, what it counts, and that nobody waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from shared.domain.errors import BrokerUnavailable
from shared.wakes.celery_publisher import CeleryWakePublisher
from shared.wakes.coalescer import Coalescer
from shared.wakes.loop_publisher import LoopWakePublisher
from shared.wakes.opening import open_wakes

BOUND_S = 10.0


class HandSender:
    """A broker moved by hand: each send is told to ``sent``, and waits for a verdict when ``by_hand``."""

    def __init__(self, *, by_hand: bool = False, failing: bool = False) -> None:
        self.by_hand = by_hand
        self.failing = failing
        self.sent: asyncio.Queue[tuple[str, tuple[str, ...]]] = asyncio.Queue()
        self.go_on = asyncio.Semaphore(0)
        self.threads: set[int] = set()
        self.is_closed = False

    async def send(self, queue: str, ids: Sequence[str]) -> None:
        self.threads.add(threading.get_ident())
        self.sent.put_nowait((queue, tuple(ids)))
        if self.by_hand:
            await self.go_on.acquire()
        if self.failing:
            raise BrokerUnavailable("away")

    async def close(self) -> None:
        self.is_closed = True

    async def next(self) -> tuple[str, tuple[str, ...]]:
        async with asyncio.timeout(BOUND_S):
            return await self.sent.get()

    def allow(self, sends: int) -> None:
        for _ in range(sends):
            self.go_on.release()


async def close(wakes: LoopWakePublisher) -> None:
    await asyncio.to_thread(wakes.close, BOUND_S)


@pytest.mark.behaviour("DST-28")
async def test_rings_return_while_the_broker_hangs_and_share_the_message_after_it() -> None:
    sender = HandSender(by_hand=True)
    wakes = LoopWakePublisher(sender)
    wakes.ring("turns", ["a"])
    assert await sender.next() == ("turns", ("a",))
    for one in ("b", "c", "d"):
        wakes.ring("turns", [one])
    sender.allow(2)
    assert await sender.next() == ("turns", ("b", "c", "d"))
    await close(wakes)
    stats = wakes.stats()
    assert (stats.published, stats.coalesced, stats.dropped, stats.failed) == (2, 2, 0, 0)
    assert stats.broker_ok


@pytest.mark.behaviour("DST-28")
async def test_a_ring_of_another_thread_is_sent_by_the_loop() -> None:
    sender = HandSender()
    wakes = LoopWakePublisher(sender)
    await asyncio.to_thread(wakes.ring, "turns", ["a"])
    assert await sender.next() == ("turns", ("a",))
    assert sender.threads == {threading.get_ident()}
    await close(wakes)


@pytest.mark.behaviour("DST-28")
async def test_ids_past_the_limit_are_dropped_and_counted() -> None:
    sender = HandSender(by_hand=True)
    wakes = LoopWakePublisher(sender, coalescer=Coalescer(waiting_max=5))
    wakes.ring("turns", ["a"])
    await sender.next()
    wakes.ring("turns", [str(n) for n in range(8)])
    assert wakes.stats().dropped == 3
    sender.allow(2)
    assert await sender.next() == ("turns", ("0", "1", "2", "3", "4"))
    await close(wakes)


@pytest.mark.behaviour("DST-05")
async def test_a_broker_that_is_away_is_counted_and_the_wake_is_tried_again_until_it_is_back() -> None:
    sender = HandSender(failing=True)
    wakes = LoopWakePublisher(sender)
    wakes.ring("turns", ["a"])
    assert [await sender.next() for _ in range(2)] == [("turns", ("a",)), ("turns", ())]
    assert wakes.stats().failed >= 1 and not wakes.stats().broker_ok
    sender.failing = False
    await sender.next()
    await close(wakes)
    assert wakes.stats().published == 1 and wakes.stats().broker_ok


async def test_closing_sends_what_is_owed_and_rings_after_it_are_dropped() -> None:
    sender = HandSender(by_hand=True)
    wakes = LoopWakePublisher(sender)
    wakes.ring("turns", ["a"])
    await sender.next()
    wakes.ring("turns", ["b"])
    wakes.ring("index", ["c"])
    sender.allow(3)
    await close(wakes)
    assert sender.is_closed
    assert {await sender.next(), await sender.next()} == {("turns", ("b",)), ("index", ("c",))}
    wakes.ring("turns", ["d"])
    assert (wakes.stats().published, wakes.stats().dropped) == (3, 1)
    await close(wakes)


async def test_closing_gives_up_on_a_broker_that_is_away() -> None:
    sender = HandSender(failing=True)
    wakes = LoopWakePublisher(sender)
    wakes.ring("turns", ["a"])
    await sender.next()
    await close(wakes)
    assert sender.is_closed
    assert wakes.stats().published == 0


async def test_a_publisher_that_was_never_rung_closes() -> None:
    await close(LoopWakePublisher(HandSender()))


def test_after_the_loop_has_ended_rings_and_closing_do_nothing() -> None:
    async def make() -> LoopWakePublisher:
        return LoopWakePublisher(HandSender())

    wakes = asyncio.run(make())
    other = threading.Thread(target=wakes.ring, args=("turns", ["a"]))
    other.start()
    other.join(BOUND_S)
    wakes.close(BOUND_S)
    assert wakes.stats().published == 0


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://:secret@host:6379/3", LoopWakePublisher),
        ("redis+socket:///run/valkey.sock?virtual_host=1", LoopWakePublisher),
        ("redis://host/0?socket_timeout=5", CeleryWakePublisher),
        ("rediss://host/0", CeleryWakePublisher),
        ("sentinel://host:26379/0", CeleryWakePublisher),
        ("amqp://guest@host//", CeleryWakePublisher),
    ],
)
async def test_the_loop_sends_to_a_plain_redis_and_a_thread_to_any_other_broker(
    url: str, kind: type[object]
) -> None:
    assert isinstance(open_wakes(url), kind)
