"""Cancels and removals through the producer, against turns that real workers run: who stops, and what is then true."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.servers import SharedServers
from tests.support.system import System, eventually

WORKERS: Final = 4
RUNNING: Final = 60
CANCELLED: Final = 50
#: Anything that is waited for; the bounds of the product are far below, and are no matter of a loaded machine.
WITHIN_S: Final = 60.0


@pytest.fixture
def system(shared_servers: SharedServers, tmp_path: Path) -> Iterator[System]:
    with System(shared_servers, tmp_path / "run") as system:
        system.start_producer()
        yield system


def held(system: System) -> int:
    """Return how many turns the workers say that they hold."""
    [row] = system.query("SELECT coalesce(sum(held), 0)::int AS held FROM workers")
    return int(row["held"])


def running(system: System) -> int:
    [row] = system.query(
        "SELECT count(*)::int AS running FROM turns WHERE status = 'running' AND number IS NOT NULL"
    )
    return int(row["running"])


def cancel(system: System, receipt: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = system.http.post(receipt["links"]["cancel"]).raise_for_status().json()
    return answer


@pytest.mark.behaviour("API-07", "SES-125", "SES-126", "SES-127")
def test_fifty_running_turns_that_are_cancelled_stop_and_their_state_says_so(system: System) -> None:
    """C03: a cancel is believed when the state shows it, not when it was sent."""
    for _ in range(WORKERS):
        system.start_worker(TURNKEEPER_TURNS_CAPACITY="20")
    system.hold_model(after_tokens=3)
    sessions = [system.create_session() for _ in range(RUNNING)]
    receipts = [system.admit(one, 'Hello. [[offline: {"tokens": 12}]]') for one in sessions]
    eventually(lambda: running(system) == RUNNING, "all of them run", within_s=WITHIN_S)
    system.wait_for_calls(RUNNING)

    chosen = random.Random(7).sample(receipts, CANCELLED)
    with ThreadPoolExecutor(10) as threads:
        answers = list(threads.map(lambda receipt: cancel(system, receipt), chosen))
    assert {(a["cancelled"], a["status"], a["outcome"]) for a in answers} == {(True, "ended", "cancelled")}
    for receipt in chosen:
        state = system.turn(receipt["turn_id"])
        assert (state["finished"], state["open"], state["outcome"]) == (True, False, "cancelled")
        assert cancel(system, receipt) == {
            "cancelled": True,
            "reason": "cancelled",
            "status": "ended",
            "outcome": "cancelled",
            "code": None,
        }
    # The workers have let go of them while the model still holds: nothing but the cancel ended them.
    eventually(
        lambda: held(system) == RUNNING - CANCELLED, "the workers hold the others only", within_s=WITHIN_S
    )

    system.release_model()
    for session, receipt in zip(sessions, receipts, strict=True):
        outcome = "cancelled" if receipt in chosen else "completed"
        state = system.finished(receipt["turn_id"], within_s=WITHIN_S)
        assert state["outcome"] == outcome
        assert ("turn.reply" in system.kinds(session)) == (outcome == "completed")
        system.verify(session)
        # A worker that a slow machine kept from renewing in time loses its turn, and the next attempt asks anew.
        assert 1 <= system.calls(session) <= state["attempt"]


@pytest.mark.behaviour("API-07")
def test_a_turn_that_is_cancelled_while_no_worker_is_there_never_runs(system: System) -> None:
    """C06."""
    session = system.create_session()
    first, second = (system.admit(session, f"number {n}") for n in range(2))
    answer = cancel(system, first)
    assert (answer["cancelled"], answer["status"], answer["outcome"]) == (True, "cancelled", None)
    system.start_worker()
    assert system.finished(second["turn_id"])["outcome"] == "completed"
    state = system.turn(first["turn_id"])
    assert (state["status"], state["attempt"], state["opened_at"]) == ("cancelled", 0, None)
    assert (system.kinds(session).count("turn.started"), system.calls(session)) == (1, 1)


@pytest.mark.behaviour("API-01", "SES-12")
def test_a_session_that_is_removed_takes_its_running_turn_from_its_worker_and_its_followers(
    system: System,
) -> None:
    system.start_worker()
    system.hold_model(after_tokens=3)
    session = system.create_session()
    receipt = system.admit(session, 'Hello. [[offline: {"tokens": 12}]]')
    system.wait_for_calls(1)
    lines: list[str] = []
    streaming = threading.Event()

    def follow() -> None:
        with system.http.stream("GET", receipt["links"]["events"], timeout=WITHIN_S) as response:
            for line in response.iter_lines():
                lines.append(line)
                if line.startswith("event: turn.started"):
                    streaming.set()

    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(follow)
        assert streaming.wait(WITHIN_S)
        assert system.http.delete(f"/v1/sessions/{session}").status_code == 204
        following.result(WITHIN_S)
    assert "event: end" in lines
    end = json.loads(lines[lines.index("event: end") + 1].removeprefix("data: "))
    assert (end["status"], end["code"]) == ("removed", "session.missing")
    # The model still holds: the worker lets go because the turn is no longer there.
    eventually(lambda: held(system) == 0, "the worker let go", within_s=WITHIN_S)
    for path in (receipt["links"]["turn"], f"/v1/sessions/{session}"):
        assert system.http.get(path).status_code == 404
    system.release_model()
    for table in ("records", "turns", "session_keys", "tool_calls"):
        assert system.query(f"SELECT 1 FROM {table} WHERE session_id = %s", session) == []
    # And the worker goes on with others.
    other = system.create_session()
    assert system.finished(system.admit(other, "Hello.")["turn_id"])["outcome"] == "completed"
