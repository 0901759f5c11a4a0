"""Leases that cannot be renewed, calls that outlast a lease, workers and sweepers that die: one effect, found in time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.support.servers import SharedServers
from tests.support.system import System, eventually


@pytest.fixture
def system(shared_servers: SharedServers, tmp_path: Path) -> Iterator[System]:
    with System(shared_servers, tmp_path / "run") as system:
        system.start_producer()
        yield system


@pytest.mark.behaviour("DST-08")
def test_a_turn_whose_lease_cannot_be_renewed_is_cut_before_another_worker_can_have_it(
    system: System,
) -> None:
    """A04: what keeps the renewals away is of no matter; the effects of the two attempts never overlap."""
    session = system.create_session()
    first = system.start_worker()
    text = 'Wait. [[offline: {"tool": "linger", "args": {"seconds": 30}, "reply": "Waited."}]]'
    turn = system.admit(session, text)["turn_id"]
    eventually(lambda: moments(system, turn, "begun"), "the tool runs")
    with closing(psycopg.connect(system.servers.database_url)) as other:
        # A row that someone has locked is passed over by renewals, and by takeovers.
        other.execute("SELECT 1 FROM turns WHERE id = %s FOR UPDATE", [turn])
        eventually(lambda: moments(system, turn, "over"), "the tool is cut off")
        [row] = system.query(
            "SELECT epoch, expires_at < clock_timestamp() AS passed FROM turns WHERE id = %s", turn
        )
    assert row["epoch"] == 1
    first.wait_for_output("could not be renewed in time", timeout_s=10)
    eventually(lambda: len(moments(system, turn, "begun")) == 2, "it is done again", within_s=60)
    assert moments(system, turn, "over")[0] < moments(system, turn, "begun")[1]
    assert system.turn(turn)["status"] == "running"


def moments(system: System, turn: str, what: str) -> list[float]:
    """Return when the lingering tool of a turn began, or was over, by one clock."""
    notes = [effect[0].partition("@") for effect in system.effects() if effect[1] == turn]
    return [float(at) for name, _, at in notes if name == f"linger-{what}"]


@pytest.mark.behaviour("DST-13", "DST-04")
def test_a_worker_killed_while_it_waits_for_a_provider_that_is_away_is_followed_by_another(
    system: System,
) -> None:
    """A13: place and row are had again within a lease and a sweep."""
    session = system.create_session()
    doomed = system.start_worker()
    text = 'Hello. [[offline: {"fail": "503", "retry_after_s": 30, "fail_times": 1}]]'
    turn = system.admit(session, text)["turn_id"]
    system.wait_for_calls(1, session=session)
    doomed.send_kill()
    system.start_worker()
    assert system.finished(turn)["outcome"] == "completed"
    system.verify(session)
    assert system.calls(session) == 2


@pytest.mark.behaviour("DST-11", "SHD-40")
def test_when_the_process_that_reaps_is_killed_the_one_that_stands_by_reaps(system: System) -> None:
    """A17, B12: two upkeep processes sweep in turn, never both; a dead worker's turn is ended by whoever is left."""
    first, second = system.start_worker("upkeep"), system.start_worker("upkeep")
    leases = "SELECT name, holder, epoch FROM sweep_leases ORDER BY name"

    def holders() -> dict[str, str]:
        return {row["name"]: row["holder"] for row in system.query(leases)}

    eventually(lambda: "turns.reap" in holders(), "somebody reaps")
    owners = {row["id"]: row["pid"] for row in system.query("SELECT id, pid FROM workers")}
    reaper = {first.pid: first, second.pid: second}[owners[holders()["turns.reap"]]]
    before = system.query(leases)
    # A while under two: whoever had a sweep has it still.
    [seen] = system.query("SELECT max(expires_at) AS last FROM sweep_leases")
    eventually(
        lambda: (
            (
                system.query("SELECT max(expires_at) AS last FROM sweep_leases")[0]["last"] - seen["last"]
            ).total_seconds()
            > 2
        ),
        "sweeps go on",
    )
    assert system.query(leases) == before

    doomed = system.start_worker()
    session = system.create_session()
    system.hold_model()
    turn = system.admit(session, "Do not repeat this.", agent="interrupted")["turn_id"]
    system.wait_for_calls(1, session=session)
    busy = system.http.post(f"/v1/sessions/{session}/turns", json={"message": "x", "on_busy": "reject"})
    assert (busy.status_code, busy.json()["code"]) == (409, "session.busy")
    reaper.send_kill()
    doomed.send_kill()
    state = system.finished(turn, within_s=90)
    assert (state["outcome"], state["code"]) == ("interrupted", "turn.lease")
    assert holders()["turns.reap"] != next(owner for owner, pid in owners.items() if pid == reaper.pid)
    system.release_model()
    system.start_worker()
    after = system.admit(session, "And now?")["turn_id"]
    assert system.finished(after)["outcome"] == "completed"
    system.verify(session)


@pytest.mark.behaviour("SES-126", "DST-08")
def test_fifty_running_turns_of_four_workers_stop_when_they_are_cancelled(system: System) -> None:
    """C03, C04: a cancel is confirmed by the state, and no step or tool begins after it."""
    for _ in range(4):
        system.start_worker(TURNKEEPER_TURNS_CAPACITY="20")
    sessions = [system.create_session() for _ in range(60)]
    system.hold_model()
    paying = 'Pay. [[offline: {"tool": "pay", "args": {"amount": 1}, "reply": "Paid."}]]'
    with ThreadPoolExecutor(8) as clients:
        turns = list(clients.map(lambda session: str(system.admit(session, paying)["turn_id"]), sessions))
        for session in sessions:
            system.wait_for_calls(1, session=session)
        held = "SELECT sum(held) AS n FROM workers"
        eventually(lambda: system.query(held)[0]["n"] == 60, "all are held")
        rng = random.Random(3)
        gone = set(rng.sample(range(60), 50))
        answers = list(
            clients.map(lambda n: system.http.post(f"/v1/turns/{turns[n]}/cancel").json(), sorted(gone))
        )
    assert {(a["cancelled"], a["status"], a["outcome"]) for a in answers} == {(True, "ended", "cancelled")}
    records = {n: system.records(sessions[n]) for n in gone}
    # Their places are free though the model has not said a word: the work itself was stopped.
    eventually(lambda: system.query(held)[0]["n"] == 10, "fifty have stopped")
    system.release_model()
    for n in range(60):
        outcome = system.finished(turns[n])["outcome"]
        assert outcome == ("cancelled" if n in gone else "completed")
        system.verify(sessions[n])
    assert {n: system.records(sessions[n]) for n in gone} == records
    assert sorted(effect[1] for effect in system.effects()) == sorted(
        turns[n] for n in range(60) if n not in gone
    )


@pytest.fixture
def remembering(shared_servers: SharedServers, tmp_path: Path) -> Iterator[System]:
    memory = {
        "TURNKEEPER_APP": "tests.support.memory_app:app",
        "TURNKEEPER_MEMORY_LEASE_S": "2",
        "TURNKEEPER_ACTIVITY_DEADLINE_S": "5",
    }
    with System(shared_servers, tmp_path / "run", memory) as system:
        system.start_producer()
        yield system


@pytest.mark.behaviour("DST-08", "DST-33")
def test_an_extraction_five_times_as_long_as_its_lease_is_asked_for_once(remembering: System) -> None:
    """A12: its lease is renewed during the one long call; a second worker finds nothing to take."""
    system = remembering
    for pool in ("turns", "activity", "remember", "remember"):
        system.start_worker(pool)
    slow = 'My favourite colour is teal. [[offline: {"on": "structured", "first_token_ms": 10000}]]'
    turn = system.admit(system.create_session(), slow)["turn_id"]
    assert system.finished(turn)["outcome"] == "completed"
    eventually(
        lambda: system.query("SELECT 1 FROM memory_intents WHERE outcome = 'applied'"),
        "the fact is remembered",
        within_s=90,
    )
    [job] = system.query("SELECT epoch, attempts FROM jobs WHERE pool = 'remember'")
    assert (job["epoch"], job["attempts"]) == (1, 0)
    asked = [call for call in system.model_calls() if call["route"] == "structured"]
    assert len(asked) == 1
