"""What a real worker says of itself: its own port, its row, the totals of its pool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psycopg
import pytest

from tests.support.brokers import free_port
from tests.support.servers import SharedServers
from tests.support.system import System, eventually


@pytest.fixture
def system(shared_servers: SharedServers, tmp_path: Path) -> Iterator[System]:
    with System(shared_servers, tmp_path / "run") as system:
        system.start_producer()
        yield system


@pytest.mark.behaviour("DST-17", "SHD-20", "DST-32")
def test_metrics_health_and_status_say_what_a_pool_has_done_and_what_its_process_holds(
    system: System,
) -> None:
    port = free_port()
    system.start_worker(TURNKEEPER_METRICS_PORT=str(port))
    session = system.create_session()
    assert system.finished(system.admit(session, "Hello.")["turn_id"])["outcome"] == "completed"
    system.hold_model()
    turn = system.admit(session, "Hold on.")["turn_id"]
    system.wait_for_calls(2, session=session)

    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as worker:
        metrics = worker.get("/metrics").text
        health = worker.get("/healthz").raise_for_status().json()
    assert 'turnkeeper_pool_events_total{event="claimed",pool="turns"} 2.0' in metrics
    for event in ("claims", "lost_claims", "renewals_refused"):
        assert f'turnkeeper_pool_events_total{{event="{event}",pool="turns"}}' in metrics
    assert "turnkeeper_loop_lag_seconds" in metrics
    assert "turnkeeper_loop_overloaded" in metrics
    assert (health["status"], health["busy"], health["pools"]["turns"]["held"]) == ("ok", True, 1)

    def standing() -> dict[str, int] | None:
        found = json.loads(system.operate("status", "--json", module="producer.cli"))["pools"]["turns"]
        totals: dict[str, int] = found["totals"]
        is_there = totals["claimed"] == 2 and totals["wakes_published"] >= 2 and found["held"] == 1
        return totals if is_there else None

    eventually(standing, "status adds up what producer and worker did")
    system.release_model()
    system.finished(turn)


@pytest.mark.behaviour("DST-17")
def test_a_wake_that_a_sweep_had_to_repair_is_counted(system: System) -> None:
    """Nobody is woken for a turn whose wakes were taken from the broker; the sweep rings once it is overdue."""
    session = system.create_session()
    system.admit(session, "Is anybody there?")
    system.start_worker("upkeep")
    repaired = "SELECT total FROM pool_totals WHERE pool = 'turns' AND name = 'wakes_repaired'"
    eventually(lambda: [row["total"] for row in system.query(repaired)][:1] >= [1], "the repair is counted")


@pytest.mark.behaviour("DST-24")
def test_each_process_keeps_within_the_connections_that_it_states(system: System) -> None:
    system.start_worker(TURNKEEPER_WORKER_CONNECTIONS="3")
    system.start_worker("upkeep", TURNKEEPER_UPKEEP_CONNECTIONS="2")
    sessions = [system.create_session() for _ in range(20)]
    turns = [system.admit(session, "Hello.")["turn_id"] for session in sessions for _ in range(3)]
    most: dict[str, int] = {}
    with psycopg.connect(system.servers.database_url, autocommit=True) as connection:

        def look() -> bool:
            counted = connection.execute(
                "SELECT application_name, count(*) FROM pg_stat_activity"
                " WHERE application_name LIKE 'turnkeeper-%' GROUP BY 1"
            ).fetchall()
            for name, n in counted:
                most[name] = max(most.get(name, 0), n)
            owed = connection.execute("SELECT count(*) FROM turns WHERE status <> 'ended'").fetchone()
            return owed == (0,)

        eventually(look, "all is done", within_s=120)
    assert len(turns) == 60
    assert most["turnkeeper-turns"] <= 3
    assert most["turnkeeper-upkeep"] <= 2
    assert most["turnkeeper-producer"] <= 10
    # One for renewals and polls; a turn worker has one more, for claims.
    assert (most["turnkeeper-turns-polls"], most["turnkeeper-upkeep-polls"]) == (2, 1)
