"""The consumer gate against a kombu consumer on kombu's own in-memory transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer

from workers.gate import HubGate, apply_gate

make_connection: Any = Connection
make_queue: Any = Queue
make_consumer: Any = Consumer


@pytest.fixture
def consumer() -> Iterator[Any]:
    with make_connection("memory://") as connection:
        made = make_consumer(connection.channel(), queues=[make_queue(name) for name in ("a", "b")])
        made.consume()
        yield made


def consumed(consumer: Any) -> list[str]:
    return [name for name in ("a", "b") if consumer.consuming_from(name)]


def listed(consumer: Any) -> list[str]:
    return [queue.name for queue in consumer.queues]


@pytest.mark.behaviour("DST-29")
def test_a_shut_queue_is_not_consumed_and_stays_listed(consumer: Any) -> None:
    apply_gate(consumer, frozenset({"a"}))
    assert (consumed(consumer), listed(consumer)) == (["b"], ["a", "b"])
    apply_gate(consumer, frozenset({"a", "b"}))
    assert (consumed(consumer), listed(consumer)) == ([], ["a", "b"])


@pytest.mark.behaviour("DST-29")
def test_opening_one_queue_leaves_another_shut(consumer: Any) -> None:
    apply_gate(consumer, frozenset({"a", "b"}))
    apply_gate(consumer, frozenset({"a"}))
    assert (consumed(consumer), listed(consumer)) == (["b"], ["a", "b"])
    apply_gate(consumer, frozenset())
    assert (consumed(consumer), listed(consumer)) == (["a", "b"], ["a", "b"])


class StepHub:
    """Calls what it was given when the test says, as the hub's thread would."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def step(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class CeleryConsumer:
    connection = object()
    connection_errors: tuple[type[Exception], ...] = (ConnectionError,)
    channel_errors: tuple[type[Exception], ...] = ()

    def __init__(self, task_consumer: Any) -> None:
        self.task_consumer = task_consumer


@pytest.mark.behaviour("DST-29")
def test_what_was_said_before_a_connection_is_applied_to_it(consumer: Any) -> None:
    gate, hub = HubGate(), StepHub()
    gate.shut("a")
    gate.attach(CeleryConsumer(consumer))
    gate.attach_hub(hub)
    hub.step()
    assert consumed(consumer) == ["b"]
    gate.shut("b")
    gate.open("a")
    gate.open("b")
    hub.step()
    assert consumed(consumer) == ["a", "b"]


def test_a_gate_without_a_connection_and_on_a_broken_one_raises_nothing() -> None:
    class Broken:
        queues = (make_queue("a"),)

        def __getattr__(self, name: str) -> Any:
            raise ConnectionError

    gate, hub = HubGate(), StepHub()
    gate.attach_hub(hub)
    gate.attach(CeleryConsumer(None))
    hub.step()
    gate.attach(CeleryConsumer(Broken()))
    gate.shut("a")
    hub.step()
    gate.detach()
    gate.open("a")
    assert hub.calls == []
