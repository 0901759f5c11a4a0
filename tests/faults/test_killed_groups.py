"""kill -9 of a process with a group commit under way: all that was acknowledged is there, and nothing of it twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from shared.database.embedded import EmbeddedServers
from shared.database.migrate import migrate
from tests.support.servers import TUNE
from tests.support.system import System

MANY = 24
ROUNDS_MAX = 20
PAYING = 'Pay. [[offline: {"tool": "pay", "args": {"amount": 7}, "reply": "It is paid."}]]'


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServers]:
    with EmbeddedServers(tmp_path_factory.mktemp("groups") / "servers", tune=TUNE) as pair:
        migrate(pair.database_url)
        yield pair


@pytest.fixture
def system(pair: EmbeddedServers, tmp_path: Path) -> Iterator[System]:
    # A worker that dies takes many turns with it, and each of them is suspect then: one process may take them all.
    with System(pair, tmp_path / "run", {"TURNKEEPER_SUSPECTS_MAX": "100"}) as system:
        yield system


@pytest.mark.behaviour("DST-04", "BEY-01")
@pytest.mark.parametrize(
    ("point", "hit"), [("group.gathered", 1), ("group.committed", 1), ("group.committed", 4)]
)
def test_a_worker_killed_with_a_group_under_way_costs_no_reply_and_doubles_no_effect(
    system: System, point: str, hit: int
) -> None:
    system.start_producer()
    sessions = [system.create_session() for _ in range(MANY)]
    turns = [system.admit(session, PAYING)["turn_id"] for session in sessions]
    doomed = system.launch_worker("turns", failpoints=f"{point}=kill@{hit}")
    assert doomed.wait(60) == -signal.SIGKILL
    paid_before = {effect[1] for effect in system.effects()}
    responses = {
        str(row["id"])
        for row in system.query(
            "SELECT t.id FROM turns t JOIN records r ON r.session_id = t.session_id AND r.kind = 'step.response'"
            " WHERE t.id = ANY (%s::uuid[])",
            turns,
        )
    }
    assert paid_before & set(turns) <= responses, "an effect whose call was acknowledged and is not stored"

    successor = system.start_worker()
    for session, turn in zip(sessions, turns, strict=True):
        state = system.finished(turn)
        assert (state["status"], state["outcome"]) == ("ended", "completed")
        system.verify(session)
        assert system.kinds(session).count("turn.reply") == 1
    paid = [effect[1] for effect in system.effects() if effect[1] in set(turns)]
    assert len(paid) == len(set(paid)), "paid twice"
    successor.send_signal(signal.SIGTERM)
    assert successor.wait(30) == 0


@pytest.mark.behaviour("API-02", "BEY-01")
@pytest.mark.parametrize("point", ["group.gathered", "group.committed"])
def test_a_producer_killed_with_a_group_under_way_admits_each_turn_once(system: System, point: str) -> None:
    doomed = system.start_producer(TURNKEEPER_FAILPOINTS=f"{point}=kill")
    sessions = [system.create_session() for _ in range(MANY)]

    def admit(one: tuple[str, str]) -> str | None:
        """The id in the receipt; None when there was no answer."""
        session, key = one
        body, headers = {"message": "x"}, {"Idempotency-Key": key}
        try:
            answer = system.http.post(f"/v1/sessions/{session}/turns", json=body, headers=headers)
        except httpx2.TransportError:
            return None
        assert answer.status_code in (200, 202), answer.text
        return str(answer.json()["turn_id"])

    asked: list[tuple[str, str]] = []
    told: list[str | None] = []
    with ThreadPoolExecutor(MANY) as clients:
        for n in range(ROUNDS_MAX):
            wave = [(session, f"{point} {n}") for session in sessions]
            told += clients.map(admit, wave)
            asked += wave
            if None in told:
                break
        assert doomed.wait(30) == -signal.SIGKILL, "no group was gathered"
        system.start_producer()
        again = list(clients.map(admit, asked))
    assert None not in again
    assert all(first in (None, second) for first, second in zip(told, again, strict=True)), (
        "a receipt was broken"
    )
    rows = system.query(
        "SELECT count(*) AS n, count(DISTINCT (session_id, key)) AS keys FROM turns WHERE key LIKE %s",
        f"{point} %",
    )
    assert rows == [{"n": len(asked), "keys": len(asked)}]
