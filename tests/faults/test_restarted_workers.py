"""Rolling restarts under load, and processes that follow each other under one name: no turn lost, none run by two."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import SharedServers
from tests.support.system import System, eventually

EXIT_S = 60.0
#: Long enough that a busy machine loses none by itself: whatever is lost here was left by a worker that went.
LONG_LEASE = {"TURNKEEPER_TURN_LEASE_S": "15", "TURNKEEPER_TURN_RENEW_S": "3", "TURNKEEPER_DRAIN_S": "1"}


@pytest.fixture
def system(shared_servers: SharedServers, tmp_path: Path) -> Iterator[System]:
    with System(shared_servers, tmp_path / "run", LONG_LEASE) as system:
        system.start_producer()
        yield system


class Load:
    """A client that admits turns with a tool call to a few sessions, one after another, until it is told to stop."""

    def __init__(self, system: System, sessions: int) -> None:
        self._system = system
        self.sessions = [system.create_session() for _ in range(sessions)]
        self.admitted: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def wait_for(self, more: int) -> None:
        """Wait until so many more turns have been admitted."""
        goal = len(self.admitted) + more
        eventually(lambda: len(self.admitted) >= goal, "the load goes on")

    def _run(self) -> None:
        n = 0
        while not self._stop.is_set():
            text = f'm{n} [[offline: {{"tool": "look", "reply": "r{n}"}}]]'
            self.admitted.append(self._system.admit(self.sessions[n % len(self.sessions)], text)["turn_id"])
            n += 1
            self._stop.wait(0.25)


@pytest.mark.behaviour("DST-19", "DST-18", "SHD-42")
def test_a_rolling_restart_of_every_worker_under_load_loses_doubles_and_holds_up_nothing(
    system: System,
) -> None:
    """C01: a turn longer than the drain is handed on from worker to worker, neither cancelled nor counted."""
    workers = [system.start_worker(), system.start_worker()]
    upkeep = system.start_worker("upkeep")
    long_session = system.create_session()
    system.hold_model(session=long_session)
    long_turn = system.admit(long_session, "Take your time.")["turn_id"]
    system.wait_for_calls(1, session=long_session)
    with Load(system, 6) as load:
        load.wait_for(10)
        for leaving, queue in ((workers[0], "turns"), (upkeep, "upkeep"), (workers[1], "turns")):
            system.start_worker(queue)
            leaving.send_signal(signal.SIGTERM)
            assert leaving.wait(EXIT_S) == 0
            load.wait_for(10)
    system.release_model()

    for turn in [long_turn, *load.admitted]:
        assert system.finished(turn, within_s=90)["outcome"] == "completed"
    for session in [long_session, *load.sessions]:
        system.verify(session)
        kinds = system.kinds(session)
        assert kinds.count("turn.reply") == kinds.count("turn.started")
    # No lease passed, so nobody waited for one; what a worker left was given back.
    lost = "SELECT id FROM turns WHERE attempts <> 0 OR suspect OR alive_losses <> 0"
    assert system.query(lost) == []
    [handed_on] = system.query("SELECT epoch FROM turns WHERE id = %s", long_turn)
    assert handed_on["epoch"] > 1
    assert len(system.query("SELECT 1 FROM turns")) == len(load.admitted) + 1


@pytest.mark.behaviour("DST-10", "DST-18")
def test_a_worker_that_drains_claims_nothing_more_though_its_successor_has_its_name(system: System) -> None:
    """A07: old and new process of one name on one host are two owners."""
    old = system.start_worker(name="same", TURNKEEPER_DRAIN_S="3600")
    session, later = system.create_session(), system.create_session()
    system.hold_model()
    turn = system.admit(session, "Hold on.")["turn_id"]
    system.wait_for_calls(1, session=session)
    old.send_signal(signal.SIGTERM)
    old.wait_for_output("Warm shutdown", timeout_s=EXIT_S)

    new = system.start_worker(name="same")
    owners = {row["pid"]: row["id"] for row in system.query("SELECT id, pid FROM workers")}
    assert owners[old.pid] != owners[new.pid]
    for pid, owner in owners.items():
        assert owner.startswith(f"turns@{socket.gethostname()}:{pid}:")
    others = [system.admit(later, f"And you {n}?")["turn_id"] for n in range(3)]
    system.wait_for_calls(1, session=later)
    [held] = system.query("SELECT lease_owner FROM turns WHERE id = %s", others[0])
    assert held["lease_owner"] == owners[new.pid]
    assert old.is_running

    system.release_model()
    for one in [turn, *others]:
        assert system.finished(one)["outcome"] == "completed"
    assert old.wait(EXIT_S) == 0
    assert system.calls(session) == 1
    for one in (session, later):
        system.verify(one)


@pytest.mark.behaviour("DST-10", "DST-06")
def test_the_turns_of_a_killed_worker_are_found_though_its_name_is_alive_again(system: System) -> None:
    """A16: a pod that comes back under its name is another owner; what it held is lost by its lease, not kept by its name."""
    short = {"TURNKEEPER_TURN_LEASE_S": "3", "TURNKEEPER_TURN_RENEW_S": "1"}
    doomed = system.start_worker(name="same", **short)
    session = system.create_session()
    system.hold_model()
    turn = system.admit(session, "Hold on.")["turn_id"]
    system.wait_for_calls(1, session=session)
    doomed.send_kill()
    assert doomed.wait(EXIT_S) == -signal.SIGKILL
    system.start_worker(name="same", **short)
    system.wait_for_calls(2, session=session)
    system.release_model()
    assert system.finished(turn)["outcome"] == "completed"
    [row] = system.query("SELECT epoch FROM turns WHERE id = %s", turn)
    assert row["epoch"] == 2
    system.verify(session)
