"""Wakes that an event loop sends to a Redis broker itself: the message that kombu would store, within the same bounds."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from shared.domain.errors import BrokerUnavailable
from shared.feed.redis_link import TROUBLE, Link
from shared.wakes.broker import KombuSender
from shared.wakes.opening import open_wakes
from shared.wakes.port import WakePublisher
from shared.wakes.redis_broker import RedisSender
from tests.support.balancer import balancing
from tests.support.brokers import OwnBroker
from tests.support.waiting import await_until

BOUND_S = 0.25


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OwnBroker]:
    broker = OwnBroker(tmp_path)
    broker.start()
    yield broker
    broker.stop()


def messages(broker: OwnBroker) -> list[Any]:
    """Return what waits in the queue, the ids of messages by one name."""
    found = []
    for raw in cast(list[bytes], broker.client.lrange("turns", 0, -1)):
        message = json.loads(raw)
        wake_id, tag = message["headers"]["id"], message["properties"]["delivery_tag"]
        message["body"] = json.loads(base64.b64decode(message["body"]))
        found.append(json.loads(json.dumps(message).replace(wake_id, "ID").replace(tag, "ID")))
    return found


@pytest.mark.behaviour("DST-01")
@pytest.mark.parametrize("ids", [[], ["a"], ["a", "b"]])
async def test_the_broker_keeps_the_message_that_kombu_would_have_sent(
    broker: OwnBroker, ids: list[str]
) -> None:
    kombu, ours = KombuSender(broker.url, bound_s=5.0), RedisSender(broker.url, bound_s=5.0)
    kombu.send("turns", ids)
    await ours.send("turns", ids)
    await ours.close()
    kombu.close()
    [one, other] = messages(broker)
    assert one == other


def commands(broker: OwnBroker) -> int:
    info = cast(dict[str, int], broker.client.info("stats"))
    return info["total_commands_processed"]


@pytest.mark.behaviour("DST-27")
async def test_a_wake_costs_one_command_and_no_thread(broker: OwnBroker) -> None:
    wakes = open_wakes(broker.url)
    await send(wakes, 1)
    before, threads = commands(broker), threading.active_count()
    await send(wakes, 2)
    await send(wakes, 3)
    assert (commands(broker) - before - 1, threading.active_count()) == (2, threads)
    assert len(messages(broker)) == 3
    await asyncio.to_thread(wakes.close, 5.0)


async def send(wakes: WakePublisher, nth: int) -> None:
    wakes.ring("turns", ["a"])
    await await_until(lambda: wakes.stats().published == nth, what="the message")


@pytest.mark.behaviour("DST-05")
async def test_a_connection_that_went_stale_at_rest_is_replaced_within_the_bound(broker: OwnBroker) -> None:
    sender = RedisSender(broker.url, bound_s=5.0)
    await sender.send("turns", ["a"])
    broker.stop()
    broker.start()
    await sender.send("turns", ["b"])
    assert [message["body"][0] for message in messages(broker)] == [[["b"]]]
    await sender.close()


@pytest.mark.behaviour("DST-05")
def test_connections_that_the_network_reset_are_replaced_on_the_loop_of_the_processes(
    broker: OwnBroker,
) -> None:
    """Uvloop has an error of its own for a write to one, which is neither the client's nor the system's."""

    async def main() -> None:
        async with balancing([broker.port]) as balancer, AsyncExitStack() as stack:
            url = f"redis://127.0.0.1:{balancer.port}/0"
            sender, link = RedisSender(url, bound_s=5.0), Link(url)
            stack.push_async_callback(sender.close)
            stack.push_async_callback(link.close)
            for reset in (False, True, True):
                if reset:
                    balancer.reset()
                    await await_until(lambda: not balancer.clients, what="the resets")
                await sender.send("turns", ["a"])
                if reset:
                    with suppress(*TROUBLE):  # whoever uses a link counts that, and comes again
                        await link.exchange([("PING",)], within_s=5.0)
                assert await link.exchange([("PING",)], within_s=5.0) == [b"PONG"]

    uvloop.run(main())
    assert len(messages(broker)) == 3


@pytest.mark.behaviour("DST-05", "DST-28")
async def test_a_broker_that_answers_nothing_or_refuses_costs_a_bounded_attempt(broker: OwnBroker) -> None:
    sender = RedisSender(broker.url, bound_s=BOUND_S)
    await sender.send("turns", ["a"])
    broker.freeze()
    for _ in range(2):  # on the connection that was there, and on a new one
        with pytest.raises(BrokerUnavailable):
            await sender.send("turns", ["b"])
    broker.thaw()
    broker.client.config_set("maxmemory", 1)
    patient = RedisSender(broker.url, bound_s=5.0)
    with pytest.raises(BrokerUnavailable):
        await patient.send("turns", ["c"])
    broker.client.config_set("maxmemory", 0)
    await patient.send("turns", ["d"])
    await patient.close()
    broker.stop()
    with pytest.raises(BrokerUnavailable):
        await sender.send("turns", ["e"])
    await sender.close()


@pytest.mark.behaviour("DST-05", "DST-28")
async def test_a_broker_that_is_away_is_counted_and_served_again_when_it_is_back(broker: OwnBroker) -> None:
    broker.stop()
    wakes = open_wakes(broker.url, bound_s=BOUND_S)
    wakes.ring("turns", ["a"])
    await await_until(lambda: wakes.stats().failed >= 2, what="two failed publishes")
    assert not wakes.stats().broker_ok
    broker.start()
    await await_until(lambda: wakes.stats().broker_ok, what="the broker back")
    assert (wakes.stats().published, len(messages(broker))) == (1, 1)
    await asyncio.to_thread(wakes.close, 5.0)
