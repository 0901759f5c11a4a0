"""The inbox end to end: a real producer, real workers that are killed and cancelled, a broker that forgets (INB, API-08)."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import redis

from shared.database.embedded import EmbeddedServers
from shared.database.embedded.ports import find_free_port
from shared.database.migrate import migrate
from shared.database.pool import Database
from shared.domain.ids import OwnerId, SessionId
from shared.inbox.port import Delivery
from shared.inbox.postgres import PostgresInbox
from tests.support.servers import TUNE
from tests.support.sse import frames_of
from tests.support.system import WAIT_S, System, eventually

#: A model's call with an outside effect, then a reply.
PAYING: Final = 'Pay. [[offline: {"tool": "pay", "args": {"amount": 7}, "reply": "It is paid."}]]'


class OwnSystem(System):
    """A system whose servers may be flushed."""

    servers: EmbeddedServers


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnSystem]:
    home = tmp_path_factory.mktemp("inbox")
    with EmbeddedServers(home / "servers", tune=TUNE) as pair:
        migrate(pair.database_url)
        with OwnSystem(pair, home / "run", {"TURNKEEPER_INBOX_RETRY_S": "1"}) as system:
            system.start_producer()
            system.start_worker("upkeep")
            yield system


@pytest.fixture
def worker(system: OwnSystem) -> Iterator[None]:
    """One worker for one test; those of the other tests are gone."""
    child = system.start_worker()
    yield
    child.send_signal(signal.SIGKILL)
    child.wait(30)


def deliver(system: System, session: str, item: str, content: str = "news", **more: Any) -> httpx2.Response:
    body = {"id": item, "source": "test", "content": content} | more
    return system.http.post(f"/v1/sessions/{session}/inbox", json=body)


def delivered(system: System, session: str, item: str, content: str = "news", **more: Any) -> dict[str, Any]:
    answer = deliver(system, session, item, content, **more)
    assert answer.status_code == 202, answer.text
    told: dict[str, Any] = answer.json()
    return told


def session_of_interrupted(system: System) -> str:
    """A session whose last turn was of an agent that is not continued elsewhere: its inbox turns are as that one."""
    session = system.create_session()
    receipt = system.admit(session, "Hello.", agent="interrupted")
    system.http.post(receipt["links"]["cancel"]).raise_for_status()
    return session


def started(system: System, session: str) -> list[dict[str, Any]]:
    """What the inbox turns of a session opened with, in order."""
    opened = [json.loads(r["data"]) for r in system.records(session) if r["kind"] == "turn.started"]
    return [data for data in opened if data["origin"] == "inbox"]


def claimed(system: System, session: str) -> list[list[str]]:
    return [data["claimed"] for data in started(system, session)]


def ends(system: System, session: str) -> list[tuple[str, str | None]]:
    closed = [json.loads(r["data"]) for r in system.records(session) if r["kind"] == "turn.ended"]
    return [(data["reason"], data.get("code")) for data in closed]


def items(system: System, session: str) -> dict[str, int]:
    """The items that wait or are claimed, with their attempts."""
    rows = system.query("SELECT id, attempts FROM inbox_items WHERE session_id = %s", session)
    return {row["id"]: row["attempts"] for row in rows}


def at_rest(system: System, session: str) -> bool:
    """Whether nothing waits in a session and nothing of it runs."""
    unfinished = (
        "SELECT 1 FROM turns WHERE session_id = %s AND status IN ('queued', 'ready', 'running', 'waiting')"
    )
    return not system.query(unfinished, session) and not items(system, session)


@pytest.mark.behaviour("API-08", "INB-01", "INB-08", "INB-09", "INB-19", "FOL-09", "FOL-11")
def test_a_delivery_is_answered_by_the_agent_and_its_reply_followed_over_the_sessions_stream(
    system: OwnSystem, worker: None
) -> None:
    session = system.create_session()
    secret = "s3cr3t-content"
    content = f'{secret} [[offline: {{"reply": "I saw the build."}}]]'
    told = delivered(system, session, "build-17", content)
    assert (told["seq"], told["pending"], told["duplicate"]) == (1, 1, False)
    seen: list[tuple[str, Mapping[str, Any]]] = []
    raw = b""
    with system.http.stream("GET", f"/v1/sessions/{session}/events", params={"after": "0"}) as stream:
        for frame in frames_of(stream.iter_bytes()):
            seen.append((frame.event, frame.data))
            raw += json.dumps(frame.data).encode()
            if frame.event == "turn.ended":
                break
    shown = dict(seen)
    kinds = [event for event, _ in seen if event not in ("delta", "snapshot", "reset")]
    assert kinds[:2] == ["inbox.queued", "turn.started"] and kinds[-2:] == ["turn.reply", "turn.ended"]
    assert (shown["inbox.queued"]["id"], shown["inbox.queued"]["source"]) == ("build-17", "test")
    assert (shown["turn.started"]["origin"], shown["turn.started"]["claimed"]) == ("inbox", ["build-17"])
    assert (shown["turn.reply"]["text"], shown["turn.started"]["turn_id"]) == (
        "I saw the build.",
        told["turn_id"],
    )
    assert secret.encode() not in raw
    state = system.finished(told["turn_id"])
    assert (state["origin"], state["outcome"]) == ("inbox", "completed")
    assert system.http.get(f"/v1/sessions/{session}").json()["title"] is None
    assert at_rest(system, session)
    again = deliver(system, session, "build-17", content)
    assert (again.status_code, again.json()["duplicate"], again.json()["seq"]) == (200, True, 1)
    system.verify(session)
    assert system.calls(session) == 1


@pytest.mark.behaviour("INB-02", "API-08")
def test_one_id_delivered_by_two_processes_at_once_and_again_later_is_one_item_and_one_turn(
    system: OwnSystem, worker: None
) -> None:
    port = find_free_port()
    second = system._start("producer-2", "producer.cli", "serve", "--port", str(port))
    other = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S)
    try:
        eventually(lambda: _is_ready(other), "the second producer")
        session = system.create_session()
        path, body = f"/v1/sessions/{session}/inbox", {"id": "one", "source": "test", "content": "news"}
        with ThreadPoolExecutor(8) as threads:
            answers = list(
                threads.map(lambda n: (system.http, other)[n % 2].post(path, json=body), range(16))
            )
        assert sorted({a.status_code for a in answers}) == [200, 202]
        assert [a.status_code for a in answers].count(202) == 1
        assert {a.json()["seq"] for a in answers} == {1}
        eventually(lambda: at_rest(system, session) and ends(system, session), "it is answered")
        late = other.post(path, json=body)
        assert (late.status_code, late.json()["duplicate"], late.json()["seq"]) == (200, True, 1)
        assert (claimed(system, session), ends(system, session)) == ([["one"]], [("completed", None)])
        assert system.kinds(session).count("inbox.queued") == 1
    finally:
        other.close()
        second.send_signal(signal.SIGKILL)
        second.wait(30)


def _is_ready(client: httpx2.Client) -> bool:
    try:
        return client.get("/readyz", timeout=2.0).status_code == 200
    except httpx2.TransportError:
        return False


@pytest.mark.behaviour("INB-18", "DST-04")
@pytest.mark.parametrize(
    "point", ["turn.claimed", "inbox.read", "turn.opened", "turn.response-stored", "turn.reply-ready"]
)
def test_a_worker_killed_at_an_inbox_turn_that_goes_on_elsewhere_is_one_claim_and_one_answer(
    system: OwnSystem, point: str
) -> None:
    session = system.create_session()
    doomed = system.start_worker(failpoints=f"{point}=kill")
    told = delivered(system, session, "a", PAYING)
    assert doomed.wait(30) == -signal.SIGKILL
    extra = deliver(
        system, session, "b", "later"
    ).json()  # waits, or is claimed with the first when nothing opened
    assert extra["duplicate"] is False
    successor = system.start_worker()
    try:
        state = system.finished(told["turn_id"])
        assert (state["outcome"], state["attempt"]) == ("completed", 2)
        eventually(lambda: at_rest(system, session), "all is answered")
        opened_before = point not in ("turn.claimed", "inbox.read")
        assert claimed(system, session) == ([["a"], ["b"]] if opened_before else [["a", "b"]])
        assert {end for end, _ in ends(system, session)} == {"completed"}
        assert "inbox.dropped" not in system.kinds(session)
        system.verify(session)
    finally:
        successor.send_signal(signal.SIGKILL)
        successor.wait(30)


@pytest.mark.behaviour("INB-13", "INB-14", "INB-16")
@pytest.mark.parametrize("point", ["turn.opened", "turn.response-stored"])
def test_a_worker_killed_twice_with_an_items_turn_drops_the_item_with_a_record(
    system: OwnSystem, point: str
) -> None:
    """Before any write and after one: the holder stopped, so each reap counts an attempt; the second one drops it."""
    session = session_of_interrupted(system)
    doomed = system.start_worker(failpoints=f"{point}=kill")
    delivered(system, session, "a", PAYING)
    assert doomed.wait(30) == -signal.SIGKILL
    eventually(lambda: len(ends(system, session)) == 1, "the first turn is reaped")
    assert items(system, session) == {"a": 1}
    doomed = system.start_worker(failpoints=f"{point}=kill")
    assert doomed.wait(30) == -signal.SIGKILL
    eventually(lambda: len(ends(system, session)) == 2, "the second turn is reaped")
    assert ends(system, session) == [("interrupted", "turn.lease")] * 2
    dropped = [json.loads(r["data"]) for r in system.records(session) if r["kind"] == "inbox.dropped"]
    assert [(d["id"], d["attempts"]) for d in dropped] == [("a", 2)]
    assert system.kinds(session)[-2:] == ["turn.ended", "inbox.dropped"]
    assert at_rest(system, session)
    assert system.effects() == [e for e in system.effects() if e[1] not in turns_of(system, session)]
    system.verify(session)


def turns_of(system: System, session: str) -> list[str]:
    return [str(row["id"]) for row in system.query("SELECT id FROM turns WHERE session_id = %s", session)]


@pytest.mark.behaviour("INB-15")
def test_a_worker_that_drains_before_anything_was_written_gives_the_items_back_uncounted(
    system: OwnSystem,
) -> None:
    session = session_of_interrupted(system)
    leaving = system.start_worker(TURNKEEPER_DRAIN_S="0.2")
    system.hold_model(session=session)
    delivered(system, session, "a")
    system.wait_for_calls(1, session=session)
    leaving.send_signal(signal.SIGTERM)
    leaving.wait(30)
    assert ends(system, session) == [("interrupted", "turn.interrupted")]
    assert items(system, session) == {"a": 0}
    system.release_model()
    successor = system.start_worker()
    try:
        eventually(lambda: at_rest(system, session), "it is answered")
        assert ends(system, session)[1:] == [("completed", None)]
    finally:
        successor.send_signal(signal.SIGKILL)
        successor.wait(30)


@pytest.mark.behaviour("INB-12", "API-08")
def test_a_cancelled_inbox_turn_is_done_and_what_came_after_it_is_answered_once(
    system: OwnSystem, worker: None
) -> None:
    session = system.create_session()
    system.hold_model(session=session)
    told = delivered(system, session, "a")
    system.wait_for_calls(1, session=session)
    delivered(system, session, "b")
    cancelled = system.http.post(told["links"]["cancel"]).json()
    assert (cancelled["cancelled"], cancelled["outcome"]) == (True, "cancelled")
    delivered(system, session, "c")  # right after the cancel
    system.release_model()
    eventually(lambda: at_rest(system, session), "the rest is answered")
    turns = claimed(system, session)
    assert turns[0] == ["a"]
    assert sorted(item for turn in turns for item in turn) == ["a", "b", "c"]
    assert ends(system, session)[0] == ("cancelled", None)
    assert {end for end, _ in ends(system, session)[1:]} == {"completed"}


@pytest.mark.behaviour("INB-06", "INB-11", "INB-30", "INB-31")
def test_what_arrives_at_a_turns_last_step_or_as_it_ends_or_after_a_cancel_is_answered_once(
    system: OwnSystem, worker: None
) -> None:
    session = system.create_session()
    expected: list[str] = []
    for n in range(6):
        expected.append(f"during-{n}")
        receipt = system.admit(session, "Hello.")
        with ThreadPoolExecutor(2) as threads:  # beside the turn's steps and its closing commit
            sent = threads.submit(delivered, system, session, f"during-{n}")
            if n % 3 == 2:
                system.http.post(receipt["links"]["cancel"]).raise_for_status()
            sent.result()
        system.finished(receipt["turn_id"])
        expected.append(f"after-{n}")
        delivered(system, session, f"after-{n}")
        system.admit(session, "And a message of the user's.")
    eventually(lambda: at_rest(system, session), "everything is answered")
    taken = [item for turn in claimed(system, session) for item in turn]
    assert sorted(taken) == sorted(expected)
    users = [r for r in system.records(session) if r["kind"] == "turn.started"]
    opened = len([r for r in users if json.loads(r["data"])["origin"] == "user"])
    # Of the two that were cancelled either may not have opened.
    assert opened in (10, 11, 12)
    assert all(json.loads(r["data"])["claimed"] == [] for r in users if '"origin":"user"' in r["data"])
    system.verify(session)


@pytest.mark.behaviour("INB-03", "API-08")
def test_the_twenty_first_waiting_item_is_refused_and_the_twenty_are_answered(system: OwnSystem) -> None:
    session = system.create_session()
    for n in range(20):
        delivered(system, session, f"item-{n}", f"number {n}")
    before = system.records(session)
    full = deliver(system, session, "one-more")
    assert (full.status_code, full.json()["code"]) == (429, "inbox.full")
    assert int(full.headers["Retry-After"]) >= 1
    assert system.records(session) == before
    assert len(items(system, session)) == 20
    assert deliver(system, session, "item-3", "number 3").status_code == 200  # a repeat is no new item
    child = system.start_worker()
    try:
        eventually(lambda: at_rest(system, session), "all are answered")
        assert claimed(system, session) == [[f"item-{n}" for n in range(20)]]
        assert deliver(system, session, "one-more").status_code == 202
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(30)


@pytest.mark.behaviour("INB-07", "INB-30")
async def test_more_notices_than_one_commit_holds_are_each_answered_once_and_none_is_dropped(
    system: OwnSystem,
) -> None:
    session = system.create_session()
    notices = [f"task:{n:03}" for n in range(120)]
    database = Database(system.servers.database_url, connections=1, name="notices")
    await database.open()
    try:
        for notice in notices:
            content = f"{notice} " + "x" * 48 * 1024
            await PostgresInbox(database).deliver(
                Delivery(SessionId(session), OwnerId("dev"), notice, "task", content),
                max_pending=len(notices),
            )
    finally:
        await database.close()
    child = system.start_worker()
    try:
        eventually(lambda: at_rest(system, session), "all are answered")
        assert [notice for each in claimed(system, session) for notice in each] == notices
        assert ends(system, session) == [("completed", None)] * len(claimed(system, session))
        assert "inbox.dropped" not in [record["kind"] for record in system.records(session)]
        system.verify(session)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(30)


@pytest.mark.behaviour("INB-35", "INB-30")
def test_items_whose_wakes_a_flushed_broker_forgot_are_found_by_the_sweep(system: OwnSystem) -> None:
    """The worker claims nothing unasked, so that only the sweep can ring for them."""
    sessions = [system.create_session() for _ in range(5)]
    for session in sessions:
        delivered(system, session, "a")
    redis.Redis.from_url(system.servers.redis_url).flushall()
    child = system.start_worker(TURNKEEPER_UNASKED_CLAIM_S="60")
    try:
        for session in sessions:
            eventually(partial(at_rest, system, session), "the sweep rang for it")
            assert ends(system, session) == [("completed", None)]
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(30)


@pytest.mark.behaviour("API-08", "INB-35")
def test_a_producer_killed_between_commit_and_answer_leaves_an_item_that_is_answered_once(
    system: OwnSystem, tmp_path: Path
) -> None:
    port = find_free_port()
    env = {"TURNKEEPER_FAILPOINTS": "delivery.committed=kill"}
    doomed = system._start("producer-3", "producer.cli", "serve", "--port", str(port), env=env)
    session = system.create_session()
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as client:
        eventually(lambda: _is_ready(client), "the doomed producer")
        with pytest.raises(httpx2.TransportError):
            client.post(
                f"/v1/sessions/{session}/inbox", json={"id": "a", "source": "test", "content": "news"}
            )
    assert doomed.wait(30) == -signal.SIGKILL
    again = deliver(system, session, "a")
    assert (again.status_code, again.json()["duplicate"]) == (200, True)
    child = system.start_worker()
    try:
        eventually(lambda: at_rest(system, session), "it is answered")
        assert claimed(system, session) == [["a"]]
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(30)
