"""kill -9 of the worker of an admitted whole turn: start and end are kept, nothing of what it did, and nobody goes on with it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from shared.database.embedded import EmbeddedServers
from shared.database.migrate import migrate
from tests.support.servers import TUNE
from tests.support.system import System

PAYING = 'Pay. [[offline: {"tool": "pay", "args": {"amount": 7}, "reply": "It is paid."}]]'


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    home = tmp_path_factory.mktemp("whole")
    with EmbeddedServers(home / "servers", tune=TUNE) as pair:
        migrate(pair.database_url)
        with System(pair, home / "run") as system:
            system.start_producer()
            system.start_worker("upkeep")
            yield system


@pytest.mark.behaviour("THR-58", "THR-60")
@pytest.mark.parametrize(
    ("point", "paid"),
    [("turn.opened", 0), ("turn.tool-done", 1), ("turn.reply-ready", 1)],
    ids=["opened", "tool-done", "reply-ready"],
)
def test_a_whole_turn_whose_worker_is_killed_leaves_its_start_and_end(
    system: System, point: str, paid: int
) -> None:
    session = system.create_session()
    doomed = system.start_worker(failpoints=f"{point}=kill")
    receipt = system.admit(session, PAYING, agent="whole")
    assert doomed.wait(30) == -signal.SIGKILL
    state = system.finished(receipt["turn_id"])
    assert (state["status"], state["outcome"], state["code"]) == ("ended", "interrupted", "turn.lease")
    system.verify(session)
    assert system.kinds(session) == ["turn.started", "turn.ended"]
    assert len([e for e in system.effects() if e[1] == receipt["turn_id"]]) == paid
    assert system.query("SELECT 1 FROM tool_calls WHERE turn_id = %s", receipt["turn_id"]) == []


@pytest.mark.behaviour("THR-50", "THR-59")
def test_a_whole_turn_whose_worker_is_killed_after_its_end_is_kept(system: System) -> None:
    session = system.create_session()
    doomed = system.start_worker(failpoints="turn.ended=kill")
    receipt = system.admit(session, PAYING, agent="whole")
    assert doomed.wait(30) == -signal.SIGKILL
    assert system.finished(receipt["turn_id"])["outcome"] == "completed"
    system.verify(session)
    kinds = system.kinds(session)
    assert kinds[0] == "turn.started"
    assert [kinds.count(k) for k in ("memory.message", "memory.tool-result", "turn.reply", "turn.ended")] == [
        2,
        1,
        1,
        1,
    ]
