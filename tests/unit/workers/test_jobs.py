"""The jobs and the app: what is registered, what a message may hold, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shared.domain.errors import ConfigError
from shared.settings import load_settings
from workers.celery import TurnkeeperApp, make_app
from workers.jobs import check_jobs, wake_jobs


class RecordingSink:
    def __init__(self, serves: tuple[str, ...] = ("turns",)) -> None:
        self.serves = serves
        self.offers: list[tuple[str, list[str]]] = []

    def offer(self, queue: str, ids: Sequence[str]) -> bool:
        if queue not in self.serves:
            return False
        self.offers.append((queue, list(ids)))
        return True


def fresh_app(url: str = "redis://127.0.0.1:1/0") -> TurnkeeperApp:
    return make_app(load_settings({"CELERY_BROKER_URL": url}))


@pytest.mark.behaviour("DST-01")
def test_each_queue_has_its_one_job() -> None:
    jobs = wake_jobs(fresh_app())
    assert {queue: job.name for queue, job in jobs.items()} == {
        "turns": "turnkeeper.turns",
        "activity": "turnkeeper.activity",
        "remember": "turnkeeper.remember",
        "index": "turnkeeper.index",
        "upkeep": "turnkeeper.upkeep",
    }


@pytest.mark.behaviour("DST-01")
def test_a_job_offers_its_ids() -> None:
    sink = RecordingSink()
    job = wake_jobs(fresh_app())["turns"]
    job.connect(sink)
    job.run(["a", "b"])
    job.run([])
    assert sink.offers == [("turns", ["a", "b"]), ("turns", [])]


@pytest.mark.parametrize("arguments", [(), ("a",), (None,), ({"ids": []},), (["a"], "more")])
def test_a_message_of_another_shape_is_counted_and_dropped(arguments: tuple[Any, ...]) -> None:
    sink = RecordingSink()
    job = wake_jobs(fresh_app())["turns"]
    job.connect(sink)
    job.run(*arguments)
    assert (sink.offers, job.counts["junk"]) == ([], 1)


def test_ids_beyond_their_bounds_are_dropped_and_counted() -> None:
    sink = RecordingSink()
    job = wake_jobs(fresh_app())["turns"]
    job.connect(sink)
    job.run(["a", 7, "", "x" * 257, None])
    job.run([str(n) for n in range(201)])
    assert [len(ids) for _, ids in sink.offers] == [1, 200]
    assert job.counts["ids_dropped"] == 5


def test_a_wake_that_nobody_here_serves_is_counted() -> None:
    jobs = wake_jobs(fresh_app())
    jobs["index"].connect(RecordingSink())
    jobs["index"].run(["a"])
    jobs["turns"].run(["a"])
    assert jobs["index"].counts["not_served"] == jobs["turns"].counts["not_served"] == 1


def test_a_task_that_is_no_job_of_ours_is_refused() -> None:
    app = fresh_app()
    check_jobs(app)

    @app.task(name="host.later")  # type: ignore[untyped-decorator]  # Celery publishes no types
    async def later() -> None: ...

    with pytest.raises(ConfigError, match=r"host\.later"):
        check_jobs(app)


def test_an_app_that_was_told_of_no_broker_asks_none() -> None:
    """Celery's own default is a broker of this machine: an operator would wait for workers that are not there."""
    app = fresh_app("")
    for connect in (app.connection_for_read, app.connection_for_write):
        with pytest.raises(ConfigError, match="CELERY_BROKER_URL"):
            connect()
    assert app.connection_for_write("redis://127.0.0.1:1/0").hostname == "127.0.0.1"


@pytest.mark.behaviour("DST-04", "DST-22", "DST-23")
def test_wakes_are_acknowledged_on_receipt_and_have_no_result() -> None:
    app = fresh_app()
    assert (app.conf.task_acks_late, app.conf.worker_prefetch_multiplier) == (False, 1)
    assert (app.conf.task_ignore_result, app.conf.result_backend) == (True, None)
    for job in wake_jobs(app).values():
        assert (job.acks_late, job.ignore_result) == (False, True)


@pytest.mark.behaviour("DST-34")
def test_events_per_job_are_off() -> None:
    conf = fresh_app().conf
    assert (conf.worker_send_task_events, conf.task_send_sent_event) == (False, False)


@pytest.mark.behaviour("DST-21")
@pytest.mark.parametrize(
    ("url", "arguments"),
    [
        ("redis://h/0", None),
        ("amqp://h//", {"x-queue-type": "quorum"}),
        ("amqps://h//", {"x-queue-type": "quorum"}),
    ],
)
def test_queues_stand_on_the_default_exchange_and_are_quorum_queues_on_rabbitmq(
    url: str, arguments: dict[str, str] | None
) -> None:
    queues = fresh_app(url).amqp.queues
    assert sorted(queues) == ["activity", "index", "remember", "turns", "upkeep"]
    for name, queue in queues.items():
        assert (queue.exchange.name, queue.routing_key, queue.durable) == ("", name, True)
        assert queue.queue_arguments == arguments
