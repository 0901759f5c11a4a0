"""Wakes lost by the thousand, delivered three times, cut off from workers; workers whose clocks are an hour wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from shared.database.embedded import EmbeddedServers
from shared.database.embedded.child import Child
from shared.wakes.celery_publisher import CeleryWakePublisher
from tests.support.system import System, eventually

MANY = 1_000
SESSIONS = 50
#: Pools of the worker processes here, so that the bound that is stated is the one that is looked at.
CONNECTIONS = 4


class OwnSystem(System):
    """A system whose servers may be flushed, and whose clients may be cut off."""

    servers: EmbeddedServers


@pytest.fixture
def system(own_servers: EmbeddedServers, tmp_path: Path) -> Iterator[OwnSystem]:
    bounds = {
        "TURNKEEPER_QUEUED_TURNS_PER_OWNER": "5000",
        "TURNKEEPER_WRITES_PER_S": "5000",
        "TURNKEEPER_WRITES_BURST": "5000",
        "TURNKEEPER_WORKER_CONNECTIONS": str(CONNECTIONS),
        "TURNKEEPER_TURNS_CAPACITY": "40",
    }
    with OwnSystem(own_servers, tmp_path / "run", bounds) as system:
        system.start_producer()
        system.start_worker("upkeep")
        yield system


def admit_many(system: System, sessions: list[str], number: int) -> list[str]:
    """Admit turns, spread over the sessions; return their ids."""

    def admit(n: int) -> str:
        return str(system.admit(sessions[n % len(sessions)], f"message {n}")["turn_id"])

    with ThreadPoolExecutor(8) as clients:
        return list(clients.map(admit, range(number)))


def unfinished(system: System) -> int:
    [row] = system.query("SELECT count(*) AS n FROM turns WHERE status NOT IN ('ended', 'cancelled')")
    return int(row["n"])


def connections(system: System) -> int:
    """Return how many connections turn workers have now."""
    [row] = system.query(
        "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name LIKE 'turnkeeper-turns%%'"
    )
    return int(row["n"])


def verify_all(system: System, sessions: list[str], turns: list[str]) -> None:
    """Assert that every turn was run to its end once, and every log is whole."""
    outcomes = system.query(
        "SELECT outcome, count(*) AS n FROM turns WHERE id = ANY (%s::uuid[]) GROUP BY outcome", turns
    )
    assert outcomes == [{"outcome": "completed", "n": len(turns)}]
    for session in sessions:
        system.verify(session)
        kinds = system.kinds(session)
        assert kinds.count("turn.reply") == kinds.count("turn.started")


@pytest.mark.behaviour("DST-04", "DST-12", "DST-24")
def test_a_thousand_admitted_turns_survive_a_flush_and_the_death_of_all_workers(system: OwnSystem) -> None:
    """B05, G14, B10: all end, counters match rows, connections stay within what the settings say."""
    sessions = [system.create_session() for _ in range(SESSIONS)]
    turns = admit_many(system, sessions, MANY)
    with redis.Redis.from_url(system.servers.redis_url) as broker:
        broker.flushall()
    most = 0
    doomed = [system.start_worker(), system.start_worker()]
    eventually(lambda: unfinished(system) < MANY * 0.8, "a fifth is done", within_s=120)
    most = max(most, connections(system))
    for worker in doomed:
        worker.send_kill()
    for worker in doomed:
        worker.wait(30)
    eventually(lambda: connections(system) == 0, "their connections are gone")

    last: list[Child] = [system.start_worker(), system.start_worker()]

    def is_done() -> bool:
        nonlocal most
        most = max(most, connections(system))
        return unfinished(system) == 0

    eventually(is_done, "everything is done", within_s=240)
    verify_all(system, sessions, turns)
    # One pool, two connections for renewals, polls and claims a process, and the probe that looks at the schema first.
    assert 0 < most <= 2 * (CONNECTIONS + 2 + 1)
    for worker in [*doomed, *last]:
        assert "different loop" not in worker.output()
        assert "loop is closed" not in worker.output()


@pytest.mark.behaviour("DST-04", "DST-07", "DST-06")
def test_wakes_delivered_three_times_and_out_of_order_to_four_workers_run_every_turn_once(
    system: OwnSystem,
) -> None:
    """B01, B02."""
    for _ in range(4):
        system.start_worker()
    sessions = [system.create_session() for _ in range(20)]
    rng = random.Random(7)
    wakes = CeleryWakePublisher(system.servers.redis_url)
    turns = admit_many(system, sessions, 60)
    for _ in range(3):
        for turn in rng.sample(turns, len(turns)):
            wakes.ring("turns", [turn])
    eventually(lambda: unfinished(system) == 0, "everything is done", within_s=120)
    for turn in rng.sample(turns, len(turns)):
        wakes.ring("turns", [turn])
    wakes.close(10)
    assert wakes.stats().failed == 0
    last = system.admit(sessions[0], "And now?")["turn_id"]
    assert system.finished(last)["outcome"] == "completed"
    verify_all(system, sessions, [*turns, last])
    epochs = system.query("SELECT DISTINCT epoch FROM turns")
    assert epochs == [{"epoch": 1}]
    assert sum(system.calls(session) for session in sessions) == len(turns) + 1


@pytest.mark.behaviour("DST-30", "DST-04")
def test_workers_whose_broker_connection_is_cut_three_times_under_load_consume_again(
    system: OwnSystem,
) -> None:
    """B04."""
    worker = system.start_worker()
    sessions = [system.create_session() for _ in range(10)]
    turns: list[str] = []
    with redis.Redis.from_url(system.servers.redis_url) as broker:
        for _ in range(3):
            turns += admit_many(system, sessions, 20)
            eventually(lambda: consumers(broker), "the worker waits for wakes", within_s=60)
            assert broker.client_kill_filter(_type="normal", skipme=True) > 0
        eventually(lambda: unfinished(system) == 0, "the backlog is drained", within_s=120)
        eventually(lambda: consumers(broker), "the worker waits for wakes again", within_s=60)
        turns += admit_many(system, sessions, 5)
        eventually(lambda: broker.llen("turns") == 0, "and takes them")
    eventually(lambda: unfinished(system) == 0, "all is done", within_s=120)
    verify_all(system, sessions, turns)
    assert worker.is_running


def consumers(broker: redis.Redis) -> int:
    """Return how many clients wait for messages of a queue now."""
    return sum(1 for client in broker.client_list() if client["cmd"] == "brpop" and "b" in client["flags"])


@pytest.mark.behaviour("DST-06", "DST-08")
def test_workers_whose_clocks_are_an_hour_ahead_and_behind_keep_and_take_leases_as_others_do(
    system: OwnSystem,
) -> None:
    """Leases are judged by the database's clock, and trusted by a clock that only measures."""
    ahead = system.start_worker(**wrong_clock(3_600))
    session = system.create_session()
    system.hold_model()
    turn = system.admit(session, "What time is it?")["turn_id"]
    system.wait_for_calls(1, session=session)
    system.start_worker(**wrong_clock(-3_600))
    renewed = "SELECT expires_at, epoch FROM turns WHERE id = %s"
    [before] = system.query(renewed, turn)
    # Two leases later it is still its first holder's.
    eventually(
        lambda: (system.query(renewed, turn)[0]["expires_at"] - before["expires_at"]).total_seconds() > 6,
        "renewals",
    )
    assert system.query(renewed, turn)[0]["epoch"] == 1
    ahead.send_kill()
    system.wait_for_calls(2, session=session)
    system.release_model()
    assert system.finished(turn)["outcome"] == "completed"
    assert system.query(renewed, turn)[0]["epoch"] == 2
    system.verify(session)


def wrong_clock(offset_s: int) -> dict[str, str]:
    """Return what gives a process a wall clock that is wrong by so many seconds."""
    return {
        "PYTHONPATH": str(Path(__file__).parents[1] / "support" / "wrong_clock"),
        "WRONG_CLOCK_S": str(offset_s),
    }
