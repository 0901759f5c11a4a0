"""The Celery pool with a real worker process on a real broker: wakes, the gate, inspection, stops, refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.app.control import Inspect

from shared.settings import load_settings
from shared.wakes.celery_publisher import CeleryWakePublisher
from tests.support.brokers import OwnBroker
from tests.support.pool_compose_names import WORLD_VARIABLE
from tests.support.pool_world import PoolWorld
from tests.support.waiting import wait_until
from tests.support.worker_process import ROOT, WorkerProcess
from workers.celery import make_app


class Bench:
    """A broker, a world, a publisher, and the workers that a test starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = OwnBroker(folder)
        self.broker.start()
        self.world = PoolWorld(folder)
        self.wakes = CeleryWakePublisher(self.broker.url)
        self.app = make_app(load_settings({"CELERY_BROKER_URL": self.broker.url}))
        self._workers: list[WorkerProcess] = []

    def launch(
        self, *arguments: str, include: str = "tests.support.pool_compose", **settings: str
    ) -> WorkerProcess:
        environment = {
            "CELERY_BROKER_URL": self.broker.url,
            WORLD_VARIABLE: str(self.world.path),
            "TURNKEEPER_UNASKED_CLAIM_S": "3600",
            **{f"TURNKEEPER_{name.upper()}": value for name, value in settings.items()},
        }
        name = f"w{len(self._workers) + 1}"
        log = self.folder / f"{name}.log"
        alone = ("--without-mingle", "--without-gossip")
        worker = WorkerProcess("-I", include, *alone, *arguments, environment=environment, log=log, name=name)
        self._workers.append(worker)
        return worker

    def start(self, *arguments: str, **settings: str) -> WorkerProcess:
        """Start a worker and wait until it consumes, its first claim made."""
        worker = self.launch(*arguments, **settings)
        worker.await_ready()
        self.world.await_note(op="claim")
        return worker

    def inspect(self, worker: WorkerProcess) -> Inspect:
        return self.app.control.inspect([worker.node], timeout=5.0, limit=1)

    def pool(self, worker: WorkerProcess) -> dict[str, Any]:
        """Return what ``inspect stats`` says of the worker's pool."""
        answer = wait_until(
            lambda: self.app.control.inspect([worker.node], timeout=2.0).stats(), what="stats"
        )
        pool: dict[str, Any] = answer[worker.node]["pool"]
        return pool

    def queued(self, queue: str = "turns") -> int:
        length: int = self.broker.client.llen(queue)
        return length

    def await_consuming(self, yes: bool = True) -> None:
        wait_until(lambda: bool(self.broker.waiting_consumers()) is yes, what=f"consuming={yes}")

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self.wakes.close(1.0)
        self.world.close()
        self.app.close()
        self.broker.client.close()
        self.broker.stop()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.behaviour("DST-01", "DST-02", "DST-03", "DST-34")
def test_a_ring_reaches_the_pump_and_inspection_tells_the_truth(bench: Bench) -> None:
    worker = bench.start("-Q", "turns", "-c", "7")
    bench.world.owe("a")
    bench.wakes.ring("turns", ["a"])
    assert bench.world.await_note(op="claim", hints=["a"])["ids"] == ["a"]
    bench.world.await_note(op="started", id="a")

    pool = bench.pool(worker)
    assert (pool["held"], pool["capacity"], pool["ids"]) == (1, 7, ["a"])
    assert pool["jobs"]["turns"]["offered"] == 1
    assert bench.inspect(worker).ping() == {worker.node: {"ok": "pong"}}
    assert [queue["name"] for queue in bench.inspect(worker).active_queues()[worker.node]] == ["turns"]
    assert bench.inspect(worker).active() == {worker.node: []}


@pytest.mark.behaviour("DST-02")
def test_the_celery_command_finds_the_app_by_its_house(bench: Bench) -> None:
    worker = bench.start("-Q", "turns")
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "workers",
        "-b",
        bench.broker.url,
        "inspect",
        "active_queues",
    ]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert worker.node in answer.stdout and "turns" in answer.stdout


@pytest.mark.behaviour("DST-29")
def test_a_full_worker_stops_consuming_stays_listed_and_starts_again(bench: Bench) -> None:
    worker = bench.start("-Q", "turns", "-c", "2")
    bench.world.owe("a", "b", "c")
    bench.wakes.ring("turns", ["a", "b", "c"])
    bench.world.await_note(op="ring")
    bench.await_consuming(False)
    assert [queue["name"] for queue in bench.inspect(worker).active_queues()[worker.node]] == ["turns"]

    bench.wakes.ring("turns", ["late"])
    wait_until(lambda: bench.queued() == 1, what="the wake that nobody takes")
    bench.world.release("a")
    bench.world.await_note(op="started", id="c")
    assert bench.queued() == 1

    bench.world.release("b", "c")
    wait_until(lambda: bench.queued() == 0, what="the wake taken")
    bench.world.await_that(lambda note: "late" in note.get("hints", ()), what="late claim")


@pytest.mark.behaviour("DST-29")
def test_a_full_queue_leaves_the_other_queues_of_its_process_alone(bench: Bench) -> None:
    bench.start("-Q", "turns,remember", "-c", "1")
    bench.world.owe("a")
    bench.wakes.ring("turns", ["a"])
    bench.world.await_note(op="ring", queue="turns")
    bench.world.owe("r", queue="remember")
    bench.wakes.ring("remember", ["r"])
    bench.world.await_note(op="started", id="r")


@pytest.mark.behaviour("DST-04")
def test_a_wake_after_a_flush_arrives(bench: Bench) -> None:
    worker = bench.start("-Q", "turns")
    bench.broker.client.flushall()
    bench.world.owe("a")
    bench.wakes.ring("turns", ["a"])
    bench.world.await_note(op="started", id="a")
    assert bench.pool(worker)["held"] == 1


@pytest.mark.behaviour("DST-05", "DST-28")
def test_a_broker_that_is_away_is_counted_and_served_again_when_it_is_back(bench: Bench) -> None:
    bench.start("-Q", "turns")
    bench.broker.stop()
    bench.wakes.ring("turns", ["a"])
    wait_until(lambda: bench.wakes.stats().failed >= 2, what="two failed publishes")
    assert not bench.wakes.stats().broker_ok

    bench.world.owe("a")
    bench.broker.start()
    bench.world.await_note(op="started", id="a")
    assert bench.wakes.stats().broker_ok


@pytest.mark.behaviour("DST-05", "DST-28")
def test_a_broker_that_answers_nothing_is_counted_too(bench: Bench) -> None:
    bench.wakes.ring("turns")
    wait_until(lambda: bench.wakes.stats().published == 1)
    bench.broker.freeze()
    bench.wakes.ring("turns")
    wait_until(lambda: bench.wakes.stats().failed >= 2, what="two failed publishes")
    bench.broker.thaw()
    wait_until(lambda: bench.wakes.stats().broker_ok, what="the broker back")


@pytest.mark.behaviour("DST-29")
def test_a_full_worker_stays_without_wakes_over_a_broker_restart(bench: Bench) -> None:
    worker = bench.start("-Q", "turns", "-c", "1")
    bench.world.owe("a")
    bench.wakes.ring("turns")
    bench.world.await_note(op="ring")
    bench.broker.stop()
    bench.broker.start()
    worker.await_log("Connected to", times=2)
    wait_until(lambda: bench.inspect(worker).ping(), what="ping")
    bench.await_consuming(False)
    bench.world.release("a")
    bench.await_consuming(True)


@pytest.mark.behaviour("DST-04")
def test_many_wakes_for_one_work_run_it_once(bench: Bench) -> None:
    worker = bench.start("-Q", "turns")
    bench.world.owe("a")
    for _ in range(50):
        bench.wakes.ring("turns", ["a"])
    bench.world.await_note(op="started", id="a")
    published = wait_until(lambda: bench.wakes.stats().published)
    wait_until(
        lambda: bench.pool(worker)["jobs"]["turns"]["offered"] == bench.wakes.stats().published >= published
    )
    assert len(bench.world.seen(op="started")) == 1
    assert bench.world.owed["turns"] == []


@pytest.mark.behaviour("DST-04")
def test_messages_that_are_no_wakes_are_counted_and_dropped(bench: Bench) -> None:
    worker = bench.start("-Q", "turns")
    with bench.app.connection_for_write() as connection, connection.Producer() as producer:
        messages: tuple[list[Any], ...] = (
            [],
            [1, 2],
            [{"ids": []}],
            [["a", 7, "", "x" * 300]],
            [["b"], "more"],
        )
        for arguments in messages:
            producer.publish(
                (arguments, {}, {}),
                routing_key="turns",
                serializer="json",
                headers={"task": "turnkeeper.turns", "id": "x", "lang": "py"},
            )
        producer.publish({"no": "job"}, routing_key="turns", serializer="json")
        producer.publish(
            "\x00", routing_key="turns", content_type="application/json", content_encoding="utf-8"
        )
    bench.world.await_note(op="claim", hints=["a"])
    counts = wait_until(
        lambda: (got := bench.pool(worker)["jobs"]["turns"])["junk"] == 4 and got, what="junk"
    )
    assert counts == {"offered": 1, "junk": 4, "ids_dropped": 3, "not_served": 0}


@pytest.mark.behaviour("DST-18")
def test_a_warm_stop_waits_for_what_is_held_and_claims_no_more(bench: Bench) -> None:
    worker = bench.start("-Q", "turns")
    bench.world.owe("a")
    bench.wakes.ring("turns")
    bench.world.await_note(op="started", id="a")
    bench.world.owe("b")
    worker.send(signal.SIGTERM)
    worker.await_log("Warm shutdown")
    bench.wakes.ring("turns", ["b"])
    bench.world.release("a")
    assert worker.await_exit() == 0
    assert [note["op"] for note in bench.world.notes[-2:]] == ["ended", "closed"]
    assert bench.world.owed["turns"] == ["b"]


@pytest.mark.behaviour("DST-18", "SHD-21", "SHD-32")
def test_a_warm_stop_cancels_what_is_held_past_its_bound_and_closes_its_parts_last(bench: Bench) -> None:
    worker = bench.start("-Q", "turns", drain_s="0.2")
    bench.world.owe("a")
    bench.wakes.ring("turns")
    bench.world.await_note(op="started", id="a")
    bench.world.owe("b")
    worker.send(signal.SIGTERM)
    assert worker.await_exit() == 0
    assert bench.world.owed["turns"] == ["b"]
    assert [note["op"] for note in bench.world.notes[-2:]] == ["cancelled", "closed"]


@pytest.mark.behaviour("DST-18")
def test_a_second_signal_stops_at_once(bench: Bench) -> None:
    worker = bench.start("-Q", "turns", drain_s="600")
    bench.world.owe("a")
    bench.wakes.ring("turns")
    bench.world.await_note(op="started", id="a")
    worker.send(signal.SIGTERM)
    worker.await_log("Warm shutdown")
    worker.send(signal.SIGTERM)
    assert worker.await_exit() == 0
    assert [note["op"] for note in bench.world.notes[-2:]] == ["cancelled", "closed"]


@pytest.mark.behaviour("DST-18")
def test_a_second_signal_stops_at_once_also_beside_a_broker_that_answers_nothing(bench: Bench) -> None:
    worker = bench.start("-Q", "turns", drain_s="600")
    bench.world.owe("a")
    bench.wakes.ring("turns")
    bench.world.await_note(op="started", id="a")
    bench.broker.freeze()
    worker.send(signal.SIGTERM)
    worker.await_log("Warm shutdown")
    worker.send(signal.SIGTERM)
    bench.world.await_note(op="closed")
    worker.await_exit(within_s=15)
    assert [note["op"] for note in bench.world.notes[-2:]] == ["cancelled", "closed"]


@pytest.mark.behaviour("DST-18")
@pytest.mark.parametrize("signals", [[signal.SIGQUIT], [signal.SIGTERM, signal.SIGQUIT]])
def test_a_quit_stops_at_once_also_during_a_drain(bench: Bench, signals: list[signal.Signals]) -> None:
    worker = bench.start("-Q", "turns", drain_s="600")
    bench.world.owe("a")
    bench.wakes.ring("turns")
    bench.world.await_note(op="started", id="a")
    for number in signals:
        worker.send(number)
        worker.await_log("Warm shutdown" if number is signal.SIGTERM else "Cold shutdown")
    worker.await_exit()
    assert [note["op"] for note in bench.world.notes[-2:]] == ["cancelled", "closed"]


@pytest.mark.behaviour("DST-18")
def test_a_warm_stop_needs_no_broker(bench: Bench) -> None:
    worker = bench.start("-Q", "turns")
    bench.world.owe("a")
    bench.wakes.ring("turns")
    bench.world.await_note(op="started", id="a")
    bench.broker.stop()
    worker.await_log("Connection refused")
    worker.send(signal.SIGTERM)
    bench.world.release("a")
    assert worker.await_exit() == 0
    assert [note["op"] for note in bench.world.notes[-2:]] == ["ended", "closed"]


@pytest.mark.behaviour("DST-31")
def test_a_worker_whose_parts_ask_to_leave_drains_and_exits_with_a_failure(bench: Bench) -> None:
    worker = bench.start("-Q", "turns")
    bench.world.owe("a")
    bench.wakes.ring("turns")
    bench.world.await_note(op="started", id="a")
    bench.world.tell({"op": "leave"})
    worker.await_log("the worker leaves")
    bench.world.release("a")
    assert worker.await_exit() == 1
    assert [note["op"] for note in bench.world.notes[-2:]] == ["ended", "closed"]


@pytest.mark.behaviour("DST-30")
def test_a_connected_worker_that_takes_no_wakes_drains_and_exits_with_a_failure(bench: Bench) -> None:
    """B04: the connection stands, the consumer is gone, and the queue is owed."""
    worker = bench.start("-Q", "turns", liveness_s="3")
    bench.world.owe("a")
    bench.wakes.ring("turns", ["a"])
    bench.world.await_note(op="started", id="a")
    bench.app.control.cancel_consumer("turns", destination=[worker.node], reply=True, timeout=10.0)
    bench.wakes.ring("turns", ["b"])
    worker.await_log("turns: 1 wakes wait at the broker and none is taken", within_s=60)
    bench.world.release("a")
    assert worker.await_exit(60) == 1
    assert [note["op"] for note in bench.world.notes[-2:]] == ["ended", "closed"]
    assert bench.queued() == 1


@pytest.mark.behaviour("DST-30")
def test_a_worker_whose_loop_is_blocked_ends_at_once_with_a_failure(bench: Bench) -> None:
    worker = bench.start("-Q", "turns", liveness_s="3")
    bench.world.tell({"op": "block"})
    assert worker.await_exit(60) == 1
    assert "the event loop is blocked" in worker.log


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-P", "threads"], "runs only under its own pool"),
        (["-P", "solo"], "runs only under its own pool"),
        (["--autoscale", "10,1"], "fixed capacity"),
    ],
)
@pytest.mark.behaviour("DST-03")
def test_another_pool_is_refused(bench: Bench, options: list[str], reason: str) -> None:
    worker = bench.launch("-Q", "turns", *options)
    assert worker.await_exit() == 1
    assert reason in worker.log
    assert " ready." not in worker.log


@pytest.mark.behaviour("DST-03")
def test_a_foreign_task_is_refused(bench: Bench) -> None:
    worker = bench.launch("-Q", "turns", include="tests.support.foreign_task")
    assert worker.await_exit() == 1
    assert "host.send_mail" in worker.log
    assert " ready." not in worker.log


@pytest.mark.behaviour("DST-03")
def test_a_worker_whose_parts_cannot_be_built_exits_before_it_consumes(bench: Bench) -> None:
    bench.world.start_failure = "schema 9, code 3"
    bench.wakes.ring("turns", ["a"])
    wait_until(lambda: bench.queued() == 1)
    worker = bench.launch("-Q", "turns")
    assert worker.await_exit() == 1
    assert "the worker cannot start: schema.range: schema 9, code 3" in worker.log
    assert bench.queued() == 1


@pytest.mark.behaviour("DST-04", "DST-22")
def test_a_delivered_wake_costs_the_broker_one_command_and_leaves_nothing_there(bench: Bench) -> None:
    worker = bench.start("-Q", "turns", "-c", "50")
    bench.await_consuming()

    def commands() -> Counter[str]:
        told = bench.broker.client.info("commandstats")
        return Counter({name.removeprefix("cmdstat_"): stats["calls"] for name, stats in told.items()})

    before = commands()
    for n in range(20):
        bench.world.owe(f"w{n}")
        bench.wakes.ring("turns", [f"w{n}"])
        bench.world.await_note(op="started", id=f"w{n}")
    bench.await_consuming()
    spent = commands() - before
    # The last BRPOP still waits: it is counted when it is answered. One that nothing came for is answered too.
    assert spent["lpush"] == 20
    assert spent["brpop"] >= 20
    assert {name for name in spent if name in {"multi", "exec", "zadd", "zrem", "hset", "hdel"}} == set()
    assert bench.broker.client.exists("unacked", "unacked_index") == 0
    assert bench.pool(worker)["jobs"]["turns"]["offered"] == 20


def test_an_unknown_queue_is_refused(bench: Bench) -> None:
    worker = bench.launch("-Q", "turns,nosuch")
    assert worker.await_exit() != 0
    assert "nosuch" in worker.log


@pytest.mark.parametrize("command", [["inspect", "ping"], ["status"], ["worker", "-Q", "turns"]])
def test_a_celery_command_without_a_broker_says_which_variable_is_missing(
    command: list[str], tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CELERY_")}
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "workers", *command],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "CELERY_BROKER_URL is not set" in done.stderr
