"""The tour: one message from the HTTP door to the streamed reply, with what is true at every station.

Read it beside the README's list of files. Real processes: PostgreSQL, Valkey, the offline model over HTTP, the producer, a
Celery worker and upkeep.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from producer.dev.processes import Program
from shared.database.embedded import EmbeddedServers
from shared.database.embedded.ports import find_free_port
from shared.database.migrate import migrate
from tests.support.servers import TUNE
from tests.support.sse import Frame, read_frames
from tests.support.system import System, eventually

ADD = (
    'What is 2 and 2? [[offline: {"tool": "look", "args": {"subject": "sums"}, "reply": "Four, they say."}]]'
)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    home = tmp_path_factory.mktemp("tour")
    with EmbeddedServers(home / "servers", tune=TUNE) as pair:
        migrate(pair.database_url)
        with System(pair, home / "run") as system:
            system.start_producer()
            yield system


@pytest.mark.behaviour("API-02", "API-04", "API-06", "TRN-01", "TRN-21", "SES-36", "REQ-01", "BEY-01")
def test_follow_one_message(system: System) -> None:
    # 1. The door. A session, then a turn: 202 says that the admission is committed, and where to follow it.
    session = system.create_session()
    receipt = system.admit(session, ADD, key="the-first")
    assert (receipt["status"], receipt["position"], receipt["after"]) == ("ready", 1, 0)

    # 2. The queue. Nobody works yet, and nothing is in the log: the row in Postgres is all there is to lose.
    [row] = system.query("SELECT status, number, epoch, key FROM turns WHERE id = %s", receipt["turn_id"])
    assert (row["status"], row["number"], row["epoch"], row["key"]) == ("ready", None, 0, "the-first")
    assert system.records(session) == []

    # 3. The wake is a doorbell with the id, no more; it may be lost. A worker starts, hears it or claims unasked.
    system.start_worker()
    state = system.finished(receipt["turn_id"])
    assert (state["status"], state["outcome"], state["attempt"], state["number"]) == (
        "ended",
        "completed",
        1,
        1,
    )

    # 4. The log. What leads to an outside effect was saved before it; call and result stand together; one end.
    assert system.kinds(session) == [
        "turn.started",
        "step.started",
        "request.prepared",
        "step.response",
        "tool.started",
        "tool.completed",
        "memory.message",
        "memory.tool-result",
        "step.usage",
        "step.ended",
        "step.started",
        "request.prepared",
        "memory.message",
        "step.usage",
        "step.ended",
        "turn.reply",
        "turn.ended",
    ]
    system.verify(session)

    follow_it_afterwards(system, session, receipt)
    ask_again_and_stream(system, session, receipt)


def follow_it_afterwards(system: System, session: str, receipt: dict[str, Any]) -> None:
    # 5. The ledger. The call was settled once, under the token that its handler got.
    [call] = system.query("SELECT * FROM tool_calls WHERE session_id = %s", session)
    assert (call["name"], call["state"]) == ("look", "done")
    assert [effect[2] for effect in system.effects()] == [call["token"]]

    # 6. The model was asked twice, over HTTP, with the key of the session's prompt cache.
    assert system.calls(session) == 2

    # 7. Following it afterwards, from the receipt's cursor: records only, then the end. Prompts stay on the server.
    frames = read_frames(system.http, receipt["links"]["events"])
    assert [f.event for f in frames if f.id] == [
        k
        for k in system.kinds(session)
        if k not in ("request.prepared", "step.response") and k[:6] != "memory"
    ]
    assert frames[-1].event == "end"
    assert frames[-1].data["outcome"] == "completed"
    assert "You are under test." not in json.dumps([f.data for f in frames])


def ask_again_and_stream(system: System, session: str, receipt: dict[str, Any]) -> None:
    # 8. The same key and content again is the same receipt, however the turn ended.
    again = system.http.post(f"/v1/sessions/{session}/turns", json={"message": ADD, "key": "the-first"})
    assert (again.status_code, again.json()["turn_id"], again.json()["duplicate"]) == (
        200,
        receipt["turn_id"],
        True,
    )

    # 9. Streaming on the same request: the text arrives piece by piece, and the pieces are the stored reply.
    body = {"message": 'Count. [[offline: {"tokens": 20, "delay_ms": 20}]]'}
    streamed = read_frames(system.http, f"/v1/sessions/{session}/turns?stream=true", body=body)
    assert streamed[0].event == "admitted"
    assert streamed[-1].event == "end"
    [reply] = [f for f in streamed if f.event == "turn.reply"]
    assert text_of(streamed) == reply.data["text"]
    assert len([f for f in streamed if f.event == "delta"]) > 3
    system.verify(session)


@pytest.mark.behaviour("DST-02", "DST-34")
def test_inspect_and_flower_tell_what_a_worker_runs(system: System) -> None:
    system.hold_model()
    worker = system.start_worker()
    session = system.create_session()
    receipt = system.admit(session, "Hold on.")
    system.wait_for_calls(1, session=session)
    queues = inspect(system, "active_queues")
    assert queues
    assert all([q["name"] for q in answer] == ["turns"] for answer in queues.values())
    stats = inspect(system, "stats")
    held = {t for answer in stats.values() for t in answer["pool"]["ids"]}
    assert receipt["turn_id"] in held

    port = find_free_port()
    argv = (
        sys.executable,
        "-m",
        "celery",
        "-A",
        "workers",
        "flower",
        "--address=127.0.0.1",
        f"--port={port}",
    )
    env = system.environment() | {"FLOWER_UNAUTHENTICATED_API": "true"}
    system.processes.start(Program("flower", argv, env=env, restart=False))

    def flower_shows_it() -> bool:
        try:
            answer = httpx2.get(f"http://127.0.0.1:{port}/api/workers?refresh=1", timeout=10)
        except httpx2.TransportError:
            return False
        workers: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return any(
            receipt["turn_id"] in w.get("stats", {}).get("pool", {}).get("ids", ()) for w in workers.values()
        )

    eventually(flower_shows_it, "Flower shows the held turn")
    system.release_model()
    assert system.finished(receipt["turn_id"])["outcome"] == "completed"
    assert worker.is_running


def inspect(system: System, what: str) -> dict[str, Any]:
    """Run ``celery -A workers inspect`` as an operator would."""
    answer: dict[str, Any] = json.loads(
        system.operate("-A", "workers", "inspect", what, "--json", "--timeout=5")
    )
    return answer


def text_of(frames: list[Frame]) -> str:
    """Return what a reader holds who follows the rules: deltas add, a snapshot replaces, a reset voids."""
    text = ""
    for frame in frames:
        match frame.event:
            case "delta":
                text += frame.data["text"]
            case "snapshot":
                text = frame.data["text"]
            case "reset":
                text = ""
    return text
