"""kill -9 of a background worker between any two saves of its pool: the fact is remembered once, nothing doubled or lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from shared.database.embedded import EmbeddedServers
from shared.database.embedded.child import Child
from shared.database.migrate import migrate
from tests.support.servers import TUNE
from tests.support.system import System, eventually

ACTIVITY_POINTS = (
    "activity.claimed",
    "activity.extracted",
    "activity.pinned",
    "activity.applied",
    "activity.advanced",
)
REMEMBER_POINTS = (
    "remember.claimed",
    "remember.extracted",
    "remember.proposed",
    "remember.merged",
    "remember.prepared",
    "remember.dispatched",
    "remember.settled",
)
INDEX_POINTS = ("index.claimed", "index.embedded", "index.reread", "index.replaced")
#: Where the extraction had not been saved yet: only there is the model asked again.
ASKED_AGAIN = ("remember.extracted",)

MEMORY = {
    "TURNKEEPER_APP": "tests.support.memory_app:app",
    "TURNKEEPER_MEMORY_LEASE_S": "2",
    "TURNKEEPER_ACTIVITY_DEADLINE_S": "1",
}


class MemorySystem(System):
    """A system with a warm successor for each background pool, stopped until it is needed."""

    successors: dict[str, Child]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemorySystem]:
    home = tmp_path_factory.mktemp("memory")
    with EmbeddedServers(home / "servers", tune=TUNE) as pair:
        migrate(pair.database_url)
        with MemorySystem(pair, home / "run", MEMORY) as system:
            system.start_producer()
            system.start_worker("turns")
            system.successors = {
                pool: system.start_worker(pool) for pool in ("activity", "remember", "index")
            }
            yield system


def tell(system: System, fact: str) -> str:
    """Tell a fact in a session of its own; return the session."""
    session = system.create_session()
    receipt = system.admit(session, fact)
    assert system.finished(receipt["turn_id"])["outcome"] == "completed"
    return session


def lines(system: System) -> list[str]:
    """Return what is remembered, line by line."""
    rows = system.query("SELECT body FROM memory_documents WHERE status = 'active'")
    return [line for row in rows for line in row["body"].split("\n")]


def settled(system: System) -> bool:
    """Whether nothing is owed or held in any background pool."""
    return not system.query("SELECT 1 FROM jobs WHERE status <> 'idle'")


def extractions(system: System, fact: str) -> int:
    """Return how often the model was asked to extract from this text."""
    calls: list[dict[str, Any]] = system.model_calls()
    return sum(call["route"] == "structured" and fact in call["text"] for call in calls)


@pytest.mark.behaviour("ACT-19", "ACT-17", "REM-21", "REM-22", "REM-23", "SEM-50", "DST-04")
@pytest.mark.parametrize("point", ACTIVITY_POINTS + REMEMBER_POINTS + INDEX_POINTS)
def test_a_background_worker_killed_between_two_saves_costs_and_doubles_nothing(
    system: MemorySystem, point: str
) -> None:
    pool = point.partition(".")[0]
    eventually(lambda: settled(system), "the former case is settled")
    successor = system.successors[pool]
    successor.send_signal(signal.SIGSTOP)
    doomed = system.start_worker(pool, failpoints=f"{point}=kill")
    fact = f"My favourite {point.replace('.', ' ')} is teal."
    tell(system, fact)
    assert doomed.wait(30) == -signal.SIGKILL
    successor.send_signal(signal.SIGCONT)
    eventually(lambda: settled(system), f"settled after {point}")

    about = [line for line in lines(system) if point.replace(".", " ") in line]
    assert len(about) == 1, about
    assert extractions(system, fact) == 1 + (point in ASKED_AGAIN)
    [sums] = system.query(
        "SELECT count(*) FILTER (WHERE outcome = 'applied') AS applied, count(*) AS intents FROM memory_intents"
    )
    assert sums["applied"] == sums["intents"]
    assert not system.query(
        "SELECT 1 FROM index_sources s JOIN memory_documents d USING (namespace, id) WHERE s.generation <> d.generation"
    )
    assert not system.query(
        "SELECT 1 FROM memory_chunks c JOIN memory_documents d ON d.namespace = c.namespace AND d.id = c.source_id"
        " WHERE c.generation <> d.generation"
    )


@pytest.mark.behaviour("REM-14", "DST-13", "REM-58")
def test_a_model_that_is_away_over_a_restart_delays_the_fact_and_says_so(system: MemorySystem) -> None:
    """F13: the receipt shows why it waits, and the fact is remembered once everything is back."""
    eventually(lambda: settled(system), "the former cases are settled")
    for pool in ("remember", "index"):
        system.successors[pool].send_signal(signal.SIGSTOP)
    tell(system, "My favourite outage is short.")
    eventually(lambda: pending(system), "the intent is admitted")
    [intent] = pending(system)
    system.processes.stop(["model"])
    worker = system.start_worker("remember")
    waits = eventually(lambda: receipt(system, intent)["status"] == "retrying", "a first try")
    assert waits
    assert receipt(system, intent)["last_failure"].startswith("model.")

    worker.kill()
    system.start_model()
    for pool in ("remember", "index"):
        system.successors[pool].send_signal(signal.SIGCONT)
    eventually(lambda: receipt(system, intent)["status"] == "completed", "the fact is settled")
    assert receipt(system, intent)["outcome"] == "applied"
    assert [line for line in lines(system) if "outage" in line] == ["The user's favourite outage is short."]


def pending(system: System) -> list[str]:
    """Return the ids of intents that are not completed."""
    return [row["id"] for row in system.query("SELECT id FROM memory_intents WHERE progress <> 'completed'")]


def receipt(system: System, intent: str) -> dict[str, Any]:
    """Return an intent's receipt as its owner reads it."""
    answer: dict[str, Any] = system.http.get(f"/v1/memory/intents/{intent}").raise_for_status().json()
    return answer
