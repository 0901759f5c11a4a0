"""What the torture does to a broker, on a Valkey of the test's own: lose everything, lose the wakes, ring once more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.domain.errors import BrokerUnavailable
from shared.wakes.meddling import BrokerMeddler
from shared.wakes.names import QUEUES, TURNS
from tests.support.brokers import OwnBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OwnBroker]:
    broker = OwnBroker(tmp_path)
    broker.start()
    yield broker
    broker.client.close()
    broker.stop()


@pytest.fixture
def meddler(broker: OwnBroker) -> Iterator[BrokerMeddler]:
    meddler = BrokerMeddler(broker.url)
    yield meddler
    meddler.close()


def test_each_delivery_is_a_message_of_its_own(broker: OwnBroker, meddler: BrokerMeddler) -> None:
    for _ in range(3):
        meddler.deliver(TURNS, ["a turn"])
    assert broker.client.llen(TURNS) == 3


def test_the_wakes_go_and_what_is_not_ours_stays(broker: OwnBroker, meddler: BrokerMeddler) -> None:
    for queue in QUEUES:
        meddler.deliver(queue, ["x"])
    broker.client.set("of someone else", "kept")
    meddler.purge_queues()
    assert [broker.client.llen(queue) for queue in QUEUES] == [0] * len(QUEUES)
    assert broker.client.get("of someone else") == b"kept"


def test_a_flush_leaves_nothing(broker: OwnBroker, meddler: BrokerMeddler) -> None:
    meddler.deliver(TURNS, ["x"])
    broker.client.set("feed", "gone")
    meddler.flush_server()
    assert broker.client.dbsize() == 0


@pytest.mark.parametrize("act", ["flush_server", "purge_queues"])
def test_a_broker_that_is_away_is_told_of(broker: OwnBroker, meddler: BrokerMeddler, act: str) -> None:
    broker.stop()
    with pytest.raises(BrokerUnavailable):
        getattr(meddler, act)()
    with pytest.raises(BrokerUnavailable):
        meddler.deliver(TURNS, ["x"])
