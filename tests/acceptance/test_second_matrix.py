"""One conversation on the machine's own servers: PostgreSQL, Redis and RabbitMQ as they come with a distribution.

Marked ``second_matrix``; each case is passed over where its servers do not answer. Nothing is flushed, stopped or left: the
database is the test's own, Redis keys are named by ids or lie in a database of their own, queues are deleted at the end.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from kombu.connection import Connection
from kombu.exceptions import ChannelError
from psycopg import sql

from shared.database.migrate import migrate
from shared.wakes.broker import waiting_wakes
from shared.wakes.celery_publisher import CeleryWakePublisher
from shared.wakes.names import QUEUES
from tests.support.sse import read_frames
from tests.support.system import System, eventually

POSTGRES = "postgresql://postgres@127.0.0.1:5432"
REDIS = "redis://127.0.0.1:6379/9"
BROKERS = {"redis": REDIS, "rabbitmq": "amqp://guest:guest@127.0.0.1:5672//"}
PORTS = {"redis": 6379, "rabbitmq": 5672}

#: Nothing but a wake brings a worker to a turn in the time of this test.
ON_WAKES_ALONE = {
    "TURNKEEPER_UNASKED_CLAIM_S": "600",
    "TURNKEEPER_SWEEP_S": "600",
    "TURNKEEPER_SWEEP_LEASE_S": "1200",
}


@dataclass(frozen=True, slots=True)
class MachineServers:
    """A database of the test's own on the machine's PostgreSQL, and the machine's Redis."""

    database_url: str
    redis_url: str = REDIS


def answers(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def machine() -> Iterator[MachineServers]:
    if not (answers(5432) and answers(6379)):
        pytest.skip("the machine's PostgreSQL and Redis do not answer")
    name = f"turnkeeper_test_{os.getpid()}"
    with psycopg.connect(f"{POSTGRES}/postgres", autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        migrate(f"{POSTGRES}/{name}")
        yield MachineServers(f"{POSTGRES}/{name}")
    finally:
        with psycopg.connect(f"{POSTGRES}/postgres", autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.second_matrix
@pytest.mark.behaviour("DST-21", "DST-27")
@pytest.mark.parametrize("broker", BROKERS)
def test_a_turn_runs_on_wakes_alone_over_the_machines_own_servers(
    machine: MachineServers, tmp_path: Path, broker: str
) -> None:
    if not answers(PORTS[broker]):
        pytest.skip(f"the machine's {broker} does not answer")
    url = BROKERS[broker]
    try:
        with System(machine, tmp_path, ON_WAKES_ALONE | {"CELERY_BROKER_URL": url}) as system:
            system.start_producer()
            system.start_worker()
            session = system.create_session()
            body = {"message": 'Look. [[offline: {"tool": "look", "reply": "All is fine."}]]'}
            frames = read_frames(system.http, f"/v1/sessions/{session}/turns?stream=true", body=body)
            assert frames[-1].data["outcome"] == "completed"
            assert [f.data["text"] for f in frames if f.event == "turn.reply"] == ["All is fine."]
            system.verify(session)
    finally:
        delete_queues(url)


@pytest.mark.second_matrix
@pytest.mark.behaviour("DST-21", "DST-04", "DST-07")
@pytest.mark.parametrize("broker", BROKERS)
def test_wakes_replayed_over_the_machines_brokers_and_a_killed_worker_cost_and_double_nothing(
    machine: MachineServers, tmp_path: Path, broker: str
) -> None:
    if not answers(PORTS[broker]):
        pytest.skip(f"the machine's {broker} does not answer")
    url = BROKERS[broker]
    wakes = CeleryWakePublisher(url, bound_s=2.0)
    try:
        with System(machine, tmp_path, {"CELERY_BROKER_URL": url}) as system:
            system.start_producer()
            doomed = system.start_worker()
            sessions = [system.create_session() for _ in range(4)]
            turns = [system.admit(session, f"{n}")["turn_id"] for n in range(3) for session in sessions]
            for _ in range(3):
                for turn in reversed(turns):
                    wakes.ring("turns", [turn])
            system.finished(turns[0])
            doomed.send_kill()
            system.start_worker()
            for turn in turns:
                assert system.finished(turn)["outcome"] == "completed"
                wakes.ring("turns", [turn])
            for session in sessions:
                system.verify(session)
                assert system.kinds(session).count("turn.reply") == 3
            eventually(lambda: waiting_wakes(url, ["turns"], bound_s=5.0) == {"turns": 0}, "all are taken")
    finally:
        wakes.close(5.0)
        delete_queues(url)
    assert wakes.stats().failed == 0


def delete_queues(url: str) -> None:
    with Connection(url) as connection:  # type: ignore[no-untyped-call]  # kombu types only some of itself
        for name in QUEUES:
            with suppress(ChannelError), connection.channel() as channel:
                channel.queue_delete(name)
