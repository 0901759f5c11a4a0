"""kill -9 of the worker between any two durable steps of a turn: another worker goes on, one reply, no doubled effect."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from shared.database.embedded import EmbeddedServers
from shared.database.migrate import migrate
from shared.domain.failpoints import POINTS
from tests.support.servers import TUNE
from tests.support.system import System, eventually

#: What the turn is made of: a call with an outside effect, then a reply.
PAYING = 'Pay. [[offline: {"tool": "pay", "args": {"amount": 7}, "reply": "It is paid."}]]'

#: Where the effect had happened or could have when the worker died: the model reads that its outcome is unknown.
UNKNOWN_AT = ("turn.response-stored", "turn.tool-started", "turn.tool-done")
TURN_POINTS = (
    "turn.claimed",
    "turn.opened",
    "turn.requested",
    "turn.response-stored",
    "turn.tool-started",
    "turn.tool-done",
    "turn.step-stored",
    "turn.reply-ready",
    "turn.ended",
)

#: Points of a turn whose agent has a body of its own, by the hit that kills: the second of a run's points is its second run's.
BODY_POINTS = (
    ("turn.opened", 1),
    ("turn.response-stored", 1),
    ("turn.step-stored", 1),
    ("turn.run-stored", 1),
    ("turn.requested", 3),
    ("turn.run-stored", 2),
)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    home = tmp_path_factory.mktemp("killed")
    with EmbeddedServers(home / "servers", tune=TUNE) as pair:
        migrate(pair.database_url)
        with System(pair, home / "run") as system:
            system.start_producer()
            system.start_worker("upkeep")
            successor = system.start_worker()
            successor.send_signal(signal.SIGSTOP)
            system.successor = successor  # type: ignore[attr-defined]  # the fixture's own note
            yield system


def test_the_points_of_this_test_are_the_points_of_a_turn() -> None:
    only_in_bodies = {"turn.run-stored"}
    assert [p for p in POINTS if p.startswith("turn.") and p not in only_in_bodies] == list(TURN_POINTS)


@pytest.mark.behaviour("DST-04", "BEY-01", "DST-06", "RSM-37", "TRN-21")
@pytest.mark.parametrize("point", TURN_POINTS)
def test_a_worker_killed_at_any_point_of_a_turn_costs_no_reply_and_doubles_no_effect(
    system: System, point: str
) -> None:
    session = system.create_session()
    doomed = system.start_worker(failpoints=f"{point}=kill")
    receipt = system.admit(session, PAYING)
    assert doomed.wait(30) == -signal.SIGKILL
    system.successor.send_signal(signal.SIGCONT)  # type: ignore[attr-defined]  # see the fixture

    state = system.finished(receipt["turn_id"])
    system.successor.send_signal(signal.SIGSTOP)  # type: ignore[attr-defined]  # see the fixture

    assert (state["status"], state["outcome"]) == ("ended", "completed")
    system.verify(session)
    kinds = system.kinds(session)
    assert kinds.count("turn.reply") == 1
    paid = [e for e in system.effects() if e[1] == receipt["turn_id"]]
    assert len(paid) == (0 if point in ("turn.response-stored", "turn.tool-started") else 1)
    results = [r for r in system.records(session) if r["kind"] == "memory.tool-result"]
    assert len(results) == 1
    assert ('"status":"unknown"' in results[0]["data"]) == (point in UNKNOWN_AT)
    # A stored response is never asked for again: one call for it, one for the reply, and what the dead worker had sent.
    asked_again = point in ("turn.reply-ready",)
    assert system.calls(session) == 2 + asked_again
    eventually(lambda: not system.query("SELECT 1 FROM turns WHERE status = 'running'"), "nothing is held")


@pytest.mark.behaviour("TRN-80", "TRN-21", "BEY-01")
@pytest.mark.parametrize(("point", "hit"), BODY_POINTS)
def test_a_worker_killed_in_a_hosts_body_costs_no_run_and_doubles_no_effect(
    system: System, point: str, hit: int
) -> None:
    session = system.create_session()
    doomed = system.start_worker(failpoints=f"{point}=kill@{hit}")
    receipt = system.admit(session, PAYING, agent="twice")
    assert doomed.wait(30) == -signal.SIGKILL
    system.successor.send_signal(signal.SIGCONT)  # type: ignore[attr-defined]  # see the fixture

    state = system.finished(receipt["turn_id"])
    system.successor.send_signal(signal.SIGSTOP)  # type: ignore[attr-defined]  # see the fixture

    assert (state["status"], state["outcome"]) == ("ended", "completed")
    system.verify(session)
    kinds = system.kinds(session)
    assert [kinds.count(kind) for kind in ("turn.reply", "run.ended", "memory.section")] == [1, 2, 1]
    paid = [e for e in system.effects() if e[1] == receipt["turn_id"]]
    assert len(paid) == (0 if point == "turn.response-stored" else 1)
    # Three calls in all; only the one whose answer died with the worker is made again.
    assert system.calls(session) == 3
