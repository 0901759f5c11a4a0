"""The producer as a process: starting, draining on SIGTERM, its log, and what operators ask it."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import httpx2
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.database.schema import VERSION
from shared.domain.ids import WorkerId
from shared.turns.queue import WorkerSeen
from tests.support.producer_process import ProducerProcess
from tests.support.producers import calling, claim_turn, create_session
from tests.support.waiting import wait_until


@contextmanager
def held_head(database_url: str, session: str) -> Iterator[None]:
    """Hold a session's head, so that whoever would write to the session waits."""
    with psycopg.connect(database_url) as holder:
        holder.execute("SELECT 1 FROM sessions WHERE id = %s FOR UPDATE", [session])
        yield
        holder.rollback()


def count_waiting(database_url: str) -> int:
    with psycopg.connect(database_url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        ).fetchone()
        assert row is not None
        return int(row[0])


@pytest.mark.behaviour("API-15", "API-14", "SHD-23", "SHD-24", "SHD-25")
def test_on_sigterm_what_is_in_flight_commits_new_work_is_refused_and_the_process_ends(
    database_url: str, tmp_path: Path
) -> None:
    with (
        ProducerProcess(tmp_path, DATABASE_URL=database_url) as producer,
        ThreadPoolExecutor(2) as threads,
        httpx2.Client(base_url=producer.url, timeout=30.0, trust_env=False) as client,
    ):
        producer.await_ready()
        session = client.post("/v1/sessions", json={}).json()["session_id"]
        path, body = f"/v1/sessions/{session}/turns", {"message": "x"}
        lines: list[str] = []
        opened = threading.Event()

        def follow() -> None:
            with client.stream("GET", f"/v1/sessions/{session}/events") as response:
                for line in response.iter_lines():
                    lines.append(line)
                    opened.set()

        following = threads.submit(follow)
        assert opened.wait(10)
        with held_head(database_url, session):
            posting = threads.submit(lambda: client.post(path, json=body))
            wait_until(lambda: count_waiting(database_url) == 1, what="an admission in flight")
            producer.send(signal.SIGTERM)
            wait_until(lambda: client.get("/readyz").status_code == 503, what="the drain")
            refused = client.post(path, json=body)
            assert (refused.status_code, refused.json()["code"]) == (503, "turn.refused")
            assert refused.json()["fields"] == {"reason": "draining", "session": session}
            following.result(10)
            # While something is in flight the door stays open: new connections are answered, again and again.
            asked = count(1)
            wait_until(
                lambda: (
                    httpx2.get(f"{producer.url}/ping", trust_env=False).json()["status"] == "draining"
                    and next(asked) > 20
                ),
                what="answers during the drain",
            )
            assert not posting.done()
        admitted = posting.result(10)
        assert producer.await_exit() == 0, producer.log
    assert admitted.status_code == 202
    assert any(line.startswith("retry:") for line in lines)
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT id::text FROM turns").fetchall()
    assert rows == [(admitted.json()["turn_id"],)]


@pytest.mark.behaviour("API-15")
def test_what_does_not_end_holds_a_drain_no_longer_than_its_bound(database_url: str, tmp_path: Path) -> None:
    with (
        ProducerProcess(tmp_path, DATABASE_URL=database_url, TURNKEEPER_DRAIN_S="0.5") as producer,
        ThreadPoolExecutor(1) as threads,
        httpx2.Client(base_url=producer.url, timeout=30.0, trust_env=False) as client,
    ):
        producer.await_ready()
        session = client.post("/v1/sessions", json={}).json()["session_id"]
        with held_head(database_url, session):
            posting = threads.submit(
                lambda: client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})
            )
            wait_until(lambda: count_waiting(database_url) == 1, what="an admission in flight")
            producer.send(signal.SIGTERM)
            producer.await_exit()
            cut_off = posting.result(10)
    # No receipt, and no promise that nothing was stored: the caller comes back with its key.
    assert (cut_off.status_code, cut_off.json()["code"]) == (503, "turn.refused")


@pytest.mark.behaviour("API-15")
def test_a_second_signal_ends_a_drain_at_once_and_leaves_nothing_half_done(
    database_url: str, tmp_path: Path
) -> None:
    with (
        ProducerProcess(tmp_path, DATABASE_URL=database_url, TURNKEEPER_DRAIN_S="600") as producer,
        ThreadPoolExecutor(1) as threads,
        httpx2.Client(base_url=producer.url, timeout=30.0, trust_env=False) as client,
    ):
        producer.await_ready()
        session = client.post("/v1/sessions", json={}).json()["session_id"]
        with held_head(database_url, session):
            posting = threads.submit(
                lambda: client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})
            )
            wait_until(lambda: count_waiting(database_url) == 1, what="an admission in flight")
            producer.send(signal.SIGTERM)
            wait_until(lambda: client.get("/readyz").status_code == 503, what="the drain")
            producer.send(signal.SIGTERM)
            producer.await_exit()
            # Whatever the caller reads, it is no receipt.
            with suppress(httpx2.TransportError):
                assert posting.result(10).status_code == 503
            wait_until(lambda: count_waiting(database_url) == 0, what="the end of the statement")
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM turns").fetchone() == (0,)
        assert connection.execute("SELECT next_position FROM sessions").fetchone() == (1,)


@pytest.mark.behaviour("API-15")
def test_a_signal_while_it_starts_ends_a_producer_that_waits_for_its_database(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/none"
        with ProducerProcess(tmp_path, DATABASE_URL=url) as producer:
            # It has connected, and waits for a greeting that never comes.
            silent.settimeout(30)
            connection, _ = silent.accept()
            with connection:
                producer.send(signal.SIGTERM)
                assert producer.await_exit(8) == 0, producer.log
    assert "draining" in producer.log


@pytest.mark.behaviour("API-15", "API-07")
def test_a_body_on_its_way_and_a_wait_are_answered_when_the_process_goes_away(
    database_url: str, tmp_path: Path
) -> None:
    with (
        ProducerProcess(tmp_path, DATABASE_URL=database_url) as producer,
        ThreadPoolExecutor(2) as threads,
        httpx2.Client(base_url=producer.url, timeout=60.0, trust_env=False) as client,
    ):
        producer.await_ready()
        session = client.post("/v1/sessions", json={}).json()["session_id"]
        path = f"/v1/sessions/{session}/turns"
        turn = client.post(path, json={"message": "x"}).json()
        begun, go_on = threading.Event(), threading.Event()

        def slowly() -> Iterator[bytes]:
            yield b'{"message":'
            begun.set()
            assert go_on.wait(30)
            yield b'"x"}'

        headers = {"Content-Type": "application/json"}
        posting = threads.submit(lambda: client.post(path, content=slowly(), headers=headers))
        waiting = threads.submit(lambda: client.get(f"{turn['links']['turn']}/wait?timeout=60"))
        assert begun.wait(10)
        wait_until(lambda: client.get("/ping").json()["requests"] == 2, what="both in flight")
        producer.send(signal.SIGTERM)
        # The wait ends with the drain, not with its time; the upload may still end, and is then refused.
        assert (waiting.result(30).status_code, waiting.result().json()["finished"]) == (200, False)
        go_on.set()
        refused = posting.result(30)
        assert (refused.status_code, refused.json()["code"]) == (503, "turn.refused")
        assert int(refused.headers["Retry-After"]) >= 1
        assert producer.await_exit() == 0, producer.log
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM turns").fetchone() == (1,)


@pytest.mark.behaviour("API-15")
def test_a_producer_that_does_nothing_ends_at_once(database_url: str, tmp_path: Path) -> None:
    with ProducerProcess(tmp_path, DATABASE_URL=database_url, TURNKEEPER_DRAIN_S="600") as producer:
        producer.await_ready()
        producer.send(signal.SIGINT)
        assert producer.await_exit() == 0, producer.log


@pytest.mark.behaviour("API-03", "API-05", "API-15")
def test_two_producer_processes_behind_one_address_are_one_service(database_url: str, tmp_path: Path) -> None:
    """G04: twenty equal requests to two processes; then one goes away, and its readers go on at the other."""
    with (
        ProducerProcess(tmp_path, DATABASE_URL=database_url) as one,
        ProducerProcess(tmp_path, DATABASE_URL=database_url) as two,
        ThreadPoolExecutor(20) as threads,
        httpx2.Client(timeout=30.0, trust_env=False) as client,
    ):
        for producer in (one, two):
            producer.await_ready()
        session = client.post(f"{one.url}/v1/sessions", json={}).json()["session_id"]
        path = f"/v1/sessions/{session}/turns"

        def admit(number: int) -> httpx2.Response:
            url = (one, two)[number % 2].url
            return client.post(f"{url}{path}", json={"message": "x"}, headers={"Idempotency-Key": "same"})

        answers = list(threads.map(admit, range(20)))
        assert Counter(a.status_code for a in answers) == {202: 1, 200: 19}
        receipts = {(a.json()["turn_id"], a.json()["run_id"], a.json()["position"]) for a in answers}
        assert len(receipts) == 1
        [(turn, _, _)] = receipts
        # Turns admitted through either stand in one order.
        later = [client.post(f"{p.url}{path}", json={"message": "y"}).json() for p in (two, one, two)]
        assert [receipt["position"] for receipt in later] == [2, 3, 4]
        assert [receipt["status"] for receipt in later] == ["queued"] * 3
        # Whoever followed at one goes on at the other, which the first one's drain tells it to do.
        lines: list[str] = []
        opened = threading.Event()

        def follow() -> None:
            with client.stream("GET", f"{one.url}/v1/turns/{turn}/events") as response:
                for line in response.iter_lines():
                    lines.append(line)
                    opened.set()

        following = threads.submit(follow)
        assert opened.wait(10)
        one.send(signal.SIGTERM)
        following.result(10)
        assert one.await_exit() == 0
        assert any(line.startswith("retry:") for line in lines)
        assert client.post(f"{two.url}/v1/turns/{turn}/cancel").json()["cancelled"]
        rest = client.get(f"{two.url}/v1/turns/{turn}/events", headers={"Last-Event-ID": "0"}).text
        assert "event: end" in rest
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT position FROM turns ORDER BY position").fetchall()
    assert rows == [(1,), (2,), (3,), (4,)]


@pytest.mark.behaviour("OPS-10")
def test_the_log_is_json_with_ids_and_holds_neither_owner_nor_prompt(
    database_url: str, tmp_path: Path
) -> None:
    secret = "hunter2-prompt"
    with (
        ProducerProcess(
            tmp_path,
            DATABASE_URL=database_url,
            TURNKEEPER_LOOPBACK_OWNER="ann-owner",
            TURNKEEPER_LOG_LEVEL="debug",
        ) as producer,
        httpx2.Client(base_url=producer.url, timeout=30.0, trust_env=False) as client,
    ):
        producer.await_ready()
        session = client.post("/v1/sessions", json={"title": secret}).json()["session_id"]
        path = f"/v1/sessions/{session}/turns"
        admitted = client.post(path, json={"message": secret, "meta": {"a": secret}})
        client.post(path, json={"message": secret, "surprise": secret})
        client.post(admitted.json()["links"]["cancel"])
        producer.send(signal.SIGTERM)
        assert producer.await_exit() == 0
        lines = [json.loads(line) for line in producer.log.splitlines()]
    [line] = [line for line in lines if line["event"] == "turn admitted"]
    assert (line["session"], line["turn"]) == (session, admitted.json()["turn_id"])
    assert line["request"] == admitted.headers["X-Request-ID"]
    assert "turn cancelled" in [line["event"] for line in lines]
    assert secret not in producer.log
    assert "ann-owner" not in producer.log


@pytest.mark.behaviour("OPS-05", "OPS-07")
def test_a_producer_that_cannot_run_here_ends_at_once_and_says_why(database_url: str, tmp_path: Path) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE schema SET version = version + 9, compatible_from = version + 5")
    with ProducerProcess(tmp_path, DATABASE_URL=database_url) as producer:
        assert producer.await_exit() != 0
        assert "schema" in producer.log
    with ProducerProcess(tmp_path, DATABASE_URL=database_url, TURNKEEPER_NONSENSE="1") as producer:
        assert producer.await_exit() != 0
        assert "TURNKEEPER_NONSENSE" in producer.log


@pytest.mark.behaviour("API-14")
async def test_readiness_follows_the_schema_and_reports_what_is_not_required(database_url: str) -> None:
    async with calling(database_url) as (_producer, client):
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["schema_version"], ready.json()["standby"]) == (
            200,
            VERSION,
            "none",
        )
        assert ready.json()["feed"] in ("redis", "away")
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("UPDATE schema SET version = version + 9, compatible_from = version + 5")
        unready = await client.get("/readyz")
        assert (unready.status_code, unready.json()["store"]) == (503, "schema.range")
        assert (await client.get("/healthz")).status_code == 200


@pytest.mark.behaviour("API-14")
async def test_one_scrape_shows_the_producer_the_queue_and_the_workers(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        seen = WorkerSeen(WorkerId("w1"), "host", 1, ["turns"], ["1"], 40, 3, "0.1.0")
        await producer.parts.queue.seen(seen)
        session = await create_session(client)
        path = f"/v1/sessions/{session}/turns"
        for body in (
            {"message": "x", "key": "k"},
            {"message": "x", "key": "k"},
            {"message": "y", "key": "k"},
        ):
            await client.post(path, json=body)
        other = await create_session(client)
        await client.post(f"/v1/sessions/{other}/turns", json={"message": "x", "agent": "other"})
        await claim_turn(producer.parts)
        response = await client.get("/metrics")
    values = {
        (s.name, *sorted(s.labels.values())): s.value
        for family in text_string_to_metric_families(response.text)
        for s in family.samples
    }
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert values["turnkeeper_admissions_total", "admitted"] == 2
    assert values["turnkeeper_admissions_total", "duplicate"] == 1
    assert values["turnkeeper_admissions_total", "turn.key-conflict"] == 1
    assert values["turnkeeper_admission_seconds_count",] == 3
    assert values["turnkeeper_store_round_trips_total", "turn.admit"] == 4
    assert values["turnkeeper_store_commits_total", "turn.admit"] == 4
    assert values["turnkeeper_wakes_total", "published"] == 3
    assert values["turnkeeper_workers", "turns"] == 1
    assert values["turnkeeper_worker_places", "capacity", "turns"] == 40
    assert values["turnkeeper_worker_places", "held", "turns"] == 3
    assert values["turnkeeper_backlog_turns", "running", "turns"] == 1
    assert values["turnkeeper_backlog_turns", "ready", "turns"] == 1
    assert values["turnkeeper_unserved_turns", "2", "turns"] in (0, 1)
    assert values["turnkeeper_requests_in_flight",] == 1
    assert values["turnkeeper_store_up",] == 1
    assert session not in response.text


@pytest.mark.behaviour("API-14")
async def test_ping_tells_what_is_in_flight(database_url: str) -> None:
    async with calling(database_url) as (_producer, client):
        assert (await client.get("/ping")).json()["status"] == "idle"
        session = await create_session(client)
        async with client.stream("GET", f"/v1/sessions/{session}/events") as response:
            await anext(response.aiter_lines())
            busy = (await client.get("/ping")).json()
    assert busy == {"status": "busy", "requests": 1, "admissions": 0, "streams": 1}
