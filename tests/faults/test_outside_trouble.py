"""Workers paused past their lease, a flushed and a stopped broker, a restarted database: nothing is lost or doubled."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from shared.database.embedded import EmbeddedServers
from shared.database.embedded.child import Child
from shared.wakes.celery_publisher import CeleryWakePublisher
from tests.support.system import LEASE_S, System, eventually


def has_ended(system: System, receipt: dict[str, Any]) -> bool:
    return bool(system.turn(receipt["turn_id"])["status"] == "ended")


def is_over(system: System, receipt: dict[str, Any], worker: Child) -> bool:
    return not worker.is_running or has_ended(system, receipt)


class OwnSystem(System):
    """A system whose servers may be stopped, flushed and restarted."""

    servers: EmbeddedServers


@pytest.fixture
def system(own_servers: EmbeddedServers, tmp_path: Path) -> Iterator[OwnSystem]:
    with OwnSystem(own_servers, tmp_path / "run") as system:
        system.start_producer()
        system.start_worker("upkeep")
        yield system


@pytest.mark.behaviour("DST-09", "DST-06", "API-06")
def test_a_worker_paused_past_its_lease_stores_nothing_once_another_has_gone_on(system: OwnSystem) -> None:
    session = system.create_session()
    paused = system.start_worker()
    system.hold_model(after_tokens=3)
    receipt = system.admit(session, 'Hello. [[offline: {"tokens": 12}]]')
    system.wait_for_calls(1)
    paused.send_signal(signal.SIGSTOP)

    system.start_worker()
    # The successor takes the turn over by the database's clock, once the lease has passed, and asks the model anew.
    system.wait_for_calls(2)
    system.release_model()
    state = system.finished(receipt["turn_id"])
    before = system.records(session)
    paused.send_signal(signal.SIGCONT)

    # What it finds first is that the turn is no longer its own; it then works on with other turns.
    other = system.create_session()
    followers = [system.admit(other, f"again {n}")["turn_id"] for n in range(4)]
    for turn in followers:
        system.finished(turn)
    eventually(
        lambda: "no longer held" in paused.output() or "could not be renewed" in paused.output(), "it noticed"
    )
    assert state["outcome"] == "completed"
    assert system.records(session) == before
    assert system.kinds(session).count("turn.reply") == 1
    system.verify(session)


@pytest.mark.behaviour("DST-08")
def test_a_tool_that_outlasts_the_lease_runs_once_while_its_lease_is_renewed(system: OwnSystem) -> None:
    """A01: three lease lengths in a blocking tool."""
    session = system.create_session()
    system.start_worker()
    system.start_worker()
    text = (
        f'Wait. [[offline: {{"tool": "dawdle", "args": {{"seconds": {3 * LEASE_S:g}}}, "reply": "Waited."}}]]'
    )
    receipt = system.admit(session, text)
    state = system.finished(receipt["turn_id"])

    assert state["outcome"] == "completed"
    assert len(system.effects()) == 1
    [row] = system.query("SELECT epoch, attempts, suspect FROM turns WHERE id = %s", receipt["turn_id"])
    assert (row["epoch"], row["attempts"], row["suspect"]) == (1, 0, False)


@pytest.mark.behaviour("DST-04", "DST-12")
def test_fifty_queued_turns_survive_a_flush_of_the_broker(system: OwnSystem) -> None:
    """B05 with 50 turns."""
    sessions = [system.create_session() for _ in range(10)]
    receipts = [system.admit(sessions[n % 10], f"message {n}") for n in range(50)]
    with redis.Redis.from_url(system.servers.redis_url) as broker:
        broker.flushall()
    system.start_worker()
    for receipt in receipts:
        assert system.finished(receipt["turn_id"])["outcome"] == "completed"
    for session in sessions:
        system.verify(session)
        assert system.kinds(session).count("turn.reply") == 5


@pytest.mark.behaviour("DST-05")
def test_a_dead_broker_stops_no_admission_and_its_turns_run_once_it_is_back(system: OwnSystem) -> None:
    """G06: 202 without a broker."""
    system.start_worker()
    session = system.create_session()
    system.servers.stop_valkey()
    receipts = [system.admit(session, f"message {n}") for n in range(5)]
    # Workers claim unasked: the turns do not even wait for the broker.
    for receipt in receipts:
        assert system.finished(receipt["turn_id"])["outcome"] == "completed"
    system.servers.start_valkey()
    later = system.admit(session, "and now")
    assert system.finished(later["turn_id"])["outcome"] == "completed"
    system.verify(session)


@pytest.mark.behaviour("DST-25")
def test_a_database_restart_under_load_loses_and_doubles_nothing(system: OwnSystem) -> None:
    system.start_worker()
    sessions = [system.create_session() for _ in range(4)]
    acknowledged: list[str] = []
    refused: list[int] = []
    stop = threading.Event()

    def load() -> None:
        for n in range(400):
            if stop.is_set():
                return
            body = {"message": f'm{n} [[offline: {{"tool": "look", "reply": "r{n}"}}]]', "key": f"k{n}"}
            answer = system.http.post(f"/v1/sessions/{sessions[n % 4]}/turns", json=body)
            if answer.status_code in (200, 202):
                acknowledged.append(answer.json()["turn_id"])
            else:
                refused.append(answer.status_code)

    thread = threading.Thread(target=load)
    thread.start()
    eventually(lambda: len(acknowledged) >= 30, "load")
    system.servers.restart_postgres(immediate=True)
    seen = len(acknowledged)
    eventually(lambda: len(acknowledged) >= seen + 30, "load after the restart")
    stop.set()
    thread.join(30)

    assert set(refused) <= {503}
    for turn in acknowledged:
        assert system.finished(turn, within_s=60)["outcome"] == "completed"
    for session in sessions:
        system.verify(session)
        replies = [r["turn"] for r in system.records(session) if r["kind"] == "turn.reply"]
        assert len(replies) == len(set(replies))


@pytest.mark.behaviour("DST-18", "SHD-42")
def test_a_drained_worker_hands_its_long_turn_back_uncounted_and_another_finishes_it(
    system: OwnSystem,
) -> None:
    """C01: SIGTERM of a worker whose turn is longer than the drain."""
    session = system.create_session()
    leaving = system.start_worker(TURNKEEPER_DRAIN_S="1")
    system.hold_model()
    receipt = system.admit(session, "Take your time.")
    system.wait_for_calls(1)
    leaving.send_signal(signal.SIGTERM)
    assert leaving.wait(30) == 0

    [row] = system.query("SELECT status, attempts, suspect FROM turns WHERE id = %s", receipt["turn_id"])
    assert (row["status"], row["attempts"], row["suspect"]) == ("ready", 0, False)
    system.release_model()
    system.start_worker()
    state = system.finished(receipt["turn_id"])
    assert state["outcome"] == "completed"
    system.verify(session)


@pytest.mark.behaviour("SES-125", "SES-126", "DST-08")
def test_a_cancel_is_durable_at_once_and_no_step_or_tool_starts_after_it(system: OwnSystem) -> None:
    """C04: cancel, then watch the tools."""
    session = system.create_session()
    system.start_worker()
    system.hold_model()
    text = 'Pay. [[offline: {"tool": "pay", "args": {"amount": 1}, "reply": "Paid."}]]'
    receipt = system.admit(session, text)
    system.wait_for_calls(1)

    answer = system.http.post(f"/v1/turns/{receipt['turn_id']}/cancel").json()
    assert (answer["cancelled"], answer["status"], answer["outcome"]) == (True, "ended", "cancelled")
    records = system.records(session)
    system.release_model()
    follower = system.admit(session, "And then?")
    assert system.finished(follower["turn_id"])["outcome"] == "completed"

    assert system.effects() == []
    mine = [r for r in system.records(session) if r["turn"] == 1]
    assert mine == [r for r in records if r["turn"] == 1]
    assert mine[-1]["kind"] == "turn.ended"
    assert re.search('"reason":"cancelled"', mine[-1]["data"])


@pytest.mark.behaviour("DST-07")
def test_a_turn_cancelled_while_all_workers_are_down_never_runs(system: OwnSystem) -> None:
    """C06."""
    session = system.create_session()
    receipt = system.admit(session, "Do not do this.")
    answer = system.http.post(f"/v1/turns/{receipt['turn_id']}/cancel").json()
    assert (answer["cancelled"], answer["status"]) == (True, "cancelled")
    system.start_worker()
    other = system.admit(session, "But do this.")
    system.finished(other["turn_id"])

    assert system.turn(receipt["turn_id"])["status"] == "cancelled"
    assert system.calls(session) == 1
    assert system.kinds(session).count("turn.started") == 1


@pytest.mark.behaviour("DST-20", "DST-13", "KIT-51")
def test_a_turn_that_kills_every_worker_ends_interrupted_and_its_session_is_free_again(
    system: System,
) -> None:
    """A05: the fourth dead process is the last."""
    session = system.create_session()
    receipt = system.admit(session, "Poison.")
    dead = 0
    while not has_ended(system, receipt) and dead < 7:
        doomed = system.start_worker(failpoints="turn.requested=kill")
        eventually(partial(is_over, system, receipt, doomed), "the worker's or the turn's end")
        dead += doomed.returncode == -signal.SIGKILL
    # The first loss is free and so is one that finds the process's row still fresh; the third counted one is the last.
    assert 4 <= dead <= 6
    state = system.finished(receipt["turn_id"], within_s=60)
    assert (state["status"], state["outcome"], state["code"]) == ("ended", "interrupted", "turn.lease")

    system.start_worker()
    after = system.admit(session, "Are you there?")
    assert system.finished(after["turn_id"])["outcome"] == "completed"
    system.verify(session)


@pytest.mark.behaviour("DST-04", "DST-07")
def test_wakes_replayed_while_a_turn_runs_and_after_it_ended_change_nothing(system: OwnSystem) -> None:
    """B01, B02: the same wake fifty times, to two workers."""
    session = system.create_session()
    system.start_worker()
    system.start_worker()
    system.hold_model()
    receipt = system.admit(
        session, 'Pay. [[offline: {"tool": "pay", "args": {"amount": 1}, "reply": "Paid."}]]'
    )
    system.wait_for_calls(1)
    wakes = CeleryWakePublisher(system.servers.redis_url)

    def ring_fifty_times() -> None:
        published = wakes.stats().published
        for _ in range(50):
            wakes.ring("turns", [receipt["turn_id"]])
        eventually(lambda: wakes.stats().published > published, "the wakes are out")

    ring_fifty_times()
    system.release_model()
    assert system.finished(receipt["turn_id"])["outcome"] == "completed"
    ring_fifty_times()
    after = system.admit(session, "And?")
    system.finished(after["turn_id"])
    wakes.close(5)

    assert len(system.effects()) == 1
    assert system.calls(session) == 3
    assert system.kinds(session).count("turn.reply") == 2
    system.verify(session)
