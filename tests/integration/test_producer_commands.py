"""The producer's commands as a user runs them: migrate, keys, status, chat."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
import pytest

from producer.dev.run_file import RunFile, process_start, write_run_file
from producer.dev.talk import Conversation, ServerEvent, Turn
from shared.database.embedded import EmbeddedServers
from shared.database.schema import VERSION
from shared.database.totals import PoolTotals, TotalName
from shared.domain.ids import OwnerId, WorkerId
from shared.feed.redis import RedisFeed
from shared.sessions.vocabulary import ToolCompleted, ToolStarted, draft_of
from shared.turns.queue import Claim, ClaimRequest, WorkerSeen
from tests.support.producer_process import DEAD_BROKER, ROOT, ProducerProcess, clean_environment, run_cli
from tests.support.producers import (
    WORKER,
    Producer,
    calling,
    claim_turn,
    create_session,
    end_turn,
    open_turn,
    running_producer,
)
from tests.support.waiting import await_until

LIGHT_STATUS = """
import sys
import producer.cli.entry, producer.cli.status
heavy = {"fastapi", "starlette", "uvicorn", "celery", "kombu", "alembic", "sqlalchemy", "openai", "redis", "aiohttp",
         "httpx2", "numpy", "psutil", "rich", "structlog", "prometheus_client",
         "shared.sessions", "shared.sessions.vocabulary", "shared.turns.queue", "shared.inbox.port"}
print(sorted(heavy & set(sys.modules)))
"""


@pytest.fixture
def empty_database(servers: EmbeddedServers) -> Iterator[str]:
    name = f"empty_{os.getpid()}"
    yield servers.create_database(name)
    servers.drop_database(name)


@pytest.mark.behaviour("OPS-05")
def test_migrate_brings_an_empty_database_up_and_check_changes_nothing(
    empty_database: str, tmp_path: Path
) -> None:
    behind = run_cli("migrate", "--check", cwd=tmp_path, DATABASE_URL=empty_database)
    assert (behind.returncode, "turnkeeper migrate" in behind.stderr) == (2, True)
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("SELECT to_regclass('turns')").fetchone() == (None,)
    for arguments in (("migrate",), ("migrate",), ("migrate", "--check")):
        done = run_cli(*arguments, cwd=tmp_path, DATABASE_URL=empty_database)
        assert (done.returncode, done.stdout) == (0, f"schema {VERSION}\n"), done.stderr


@pytest.mark.behaviour("API-16")
def test_a_key_is_printed_once_works_and_ends_when_revoked(database_url: str, tmp_path: Path) -> None:
    made = run_cli(
        "keys", "create", "--owner", "ann", "--name", "ci", cwd=tmp_path, DATABASE_URL=database_url
    )
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    key_id = key.split("_")[1]
    listed = run_cli("keys", "list", cwd=tmp_path, DATABASE_URL=database_url).stdout
    assert (key_id in listed, "ann" in listed, key in listed) == (True, True, False)

    async def ask() -> int:
        async with running_producer(database_url) as producer, producer.client(key) as client:
            return (await client.get("/v1/sessions")).status_code

    assert asyncio.run(ask()) == 200
    assert run_cli("keys", "revoke", key_id, cwd=tmp_path, DATABASE_URL=database_url).returncode == 0
    assert asyncio.run(ask()) == 401
    assert (
        "revoked" in run_cli("keys", "list", "--owner", "ann", cwd=tmp_path, DATABASE_URL=database_url).stdout
    )
    for arguments in (
        ("revoke", "nobody"),
        ("create", "--owner", ""),
        ("create", "--owner", "a", "--name", "x" * 81),
    ):
        assert run_cli("keys", *arguments, cwd=tmp_path, DATABASE_URL=database_url).returncode == 2


@pytest.mark.behaviour("OPS-04")
async def test_status_shows_pools_workers_and_what_is_owed(database_url: str, tmp_path: Path) -> None:
    async with calling(database_url) as (producer, client):
        seen = WorkerSeen(WorkerId("w1"), "host1", 77, ["turns"], ["1"], 40, 1, "0.1.0")
        await producer.parts.queue.seen(seen)
        session = await create_session(client)
        for _ in range(3):
            await client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})
        await claim_turn(producer.parts)
        other = await create_session(client)
        await client.post(f"/v1/sessions/{other}/turns", json={"message": "x", "agent": "other"})
        item = {"id": "a", "source": "ci", "content": "x"}
        assert (await client.post(f"/v1/sessions/{session}/inbox", json=item)).status_code == 202

    def status(*arguments: str) -> str:
        done = run_cli("status", *arguments, cwd=tmp_path, DATABASE_URL=database_url)
        assert done.returncode == 0, done.stderr
        return done.stdout

    found = json.loads(await asyncio.to_thread(status, "--json"))
    assert list(found["pools"]) == ["turns", "activity", "remember", "index", "upkeep"]
    turns = found["pools"]["turns"]
    assert (turns["workers"], turns["held"], turns["capacity"]) == (1, 1, 40)
    assert (turns["ready"], turns["queued"], turns["running"], turns["unserved"]) == (1, 3, 1, {"2": 1})
    assert turns["oldest_due_s"] > 0
    assert (found["inbox"]["waiting"], found["inbox"]["oldest_s"] > 0) == (1, True)
    [worker] = found["workers"]
    assert (worker["id"], worker["held"], worker["capacity"], worker["silent_s"] >= 0) == ("w1", 1, 40, True)
    screen = await asyncio.to_thread(status)
    assert "1 ready, 3 queued behind, 1 running" in screen
    assert "inbox: 1 waiting, oldest " in screen
    assert "no worker serves revision '2': 1 ready" in screen
    assert "pid 77" in screen


@pytest.mark.behaviour("DST-17", "DST-32", "OPS-04")
async def test_status_shows_what_each_pool_has_done_over_all_processes_and_who_is_overloaded(
    database_url: str, tmp_path: Path
) -> None:
    counts: dict[tuple[str, TotalName], int] = {("turns", "claims"): 5, ("turns", "wakes_repaired"): 2}
    async with calling(database_url) as (producer, _):
        seen = WorkerSeen(WorkerId("w1"), "h", 77, ["turns"], ["1"], 40, 3, "1", lag_s=0.5, overloaded=True)
        await producer.parts.queue.seen(seen)
        for _ in range(2):  # two processes, one after the other
            totals = PoolTotals(producer.parts.database, lambda: counts, every_s=60)
            await totals.write()
            await totals.write()
        counts["turns", "claims"] += 1
        await totals.write()

    found = json.loads(
        (await asyncio.to_thread(run_cli, "status", "--json", cwd=tmp_path, DATABASE_URL=database_url)).stdout
    )
    assert found["pools"]["turns"]["totals"] == {
        "claims": 11,
        "claimed": 0,
        "lost_claims": 0,
        "renewals_refused": 0,
        "wakes_published": 0,
        "wakes_repaired": 4,
    }
    screen = (await asyncio.to_thread(run_cli, "status", cwd=tmp_path, DATABASE_URL=database_url)).stdout
    assert re.search(r"^turns +11 +0 +0 +0 +4$", screen, re.MULTILINE)
    assert "overloaded, its loop lags 0.50 s: it claims nothing" in screen


@pytest.mark.behaviour("DST-13", "OPS-04")
def test_a_parked_item_is_listed_with_its_failure_and_put_back_by_retry(
    database_url: str, tmp_path: Path
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO jobs (pool, id, owner, status, attempts, last_failure, settled_at)"
            " SELECT 'remember', 'j' || n, 'secret-owner', 'parked', 5, 'model.refused', now() FROM generate_series(1, 3) n"
        )
    shown = run_cli("status", cwd=tmp_path, DATABASE_URL=database_url).stdout
    assert "remember: 0 ready, 0 running, 3 parked" in shown
    assert "parked: remember j1 after 5 tries: model.refused" in shown
    assert "secret-owner" not in shown

    assert (
        run_cli("retry", "remember", "j1", cwd=tmp_path, DATABASE_URL=database_url).stdout == "1 put back\n"
    )
    assert (
        run_cli("retry", "remember", "--all", cwd=tmp_path, DATABASE_URL=database_url).stdout
        == "2 put back\n"
    )
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT DISTINCT status, attempts FROM jobs").fetchall()
    assert rows == [("ready", 0)]
    refused = run_cli("retry", "remember", cwd=tmp_path, DATABASE_URL=database_url)
    assert refused.returncode == 2
    assert "--all" in refused.stderr


@pytest.mark.behaviour("DST-26")
async def test_turns_of_a_revision_that_nobody_serves_are_moved_to_another(
    tmp_path: Path, database_url: str
) -> None:
    async with calling(database_url) as (producer, client):
        for _ in range(2):
            session = await create_session(client)
            for _ in range(2):
                await client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})
        with psycopg.connect(database_url) as connection:
            connection.execute("UPDATE turns SET agent_revision = 'old'")

        def move(*words: str) -> subprocess.CompletedProcess[str]:
            return run_cli("move-revision", *words, cwd=tmp_path, DATABASE_URL=database_url)

        assert (await asyncio.to_thread(move, "old", "1")).stdout == "4 moved\n"
        assert (await asyncio.to_thread(move, "old", "1")).stdout == "0 moved\n"
        assert (await asyncio.to_thread(move, "1", "1")).returncode == 2
        await claim_turn(producer.parts)


@pytest.mark.behaviour("DST-13", "OPS-04")
async def test_a_turn_that_was_lost_with_its_workers_is_listed_and_retried_once_by_a_turn_that_resumes_it(
    database_url: str, tmp_path: Path
) -> None:
    async with calling(database_url, attempts_max=1) as (producer, client):
        lost, ended = [await create_session(client) for _ in range(2)]
        turn = (await client.post(f"/v1/sessions/{lost}/turns", json={"message": "x"})).json()["turn_id"]
        claim = await claim_turn(producer.parts, turn)
        await open_turn(producer.parts, claim)
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(
                "UPDATE turns SET expires_at = now() - interval '1 h', on_worker_loss = 'interrupt' WHERE id = %s",
                [turn],
            )
        # Asking to cancel it finds that nobody will go on with it.
        assert (await client.post(f"/v1/turns/{turn}/cancel")).json()["outcome"] == "interrupted"
        await client.post(f"/v1/sessions/{ended}/turns", json={"message": "x"})
        claim = await claim_turn(producer.parts)
        await open_turn(producer.parts, claim)
        await end_turn(producer.parts, claim, "done")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_cli(*arguments, cwd=tmp_path, DATABASE_URL=database_url)

    shown = await asyncio.to_thread(run, "status", "--json")
    [parked] = json.loads(shown.stdout)["parked"]
    assert (parked["pool"], parked["id"], parked["last_failure"]) == ("turns", turn, "turn.lease")
    assert f"parked: turns {turn}" in (await asyncio.to_thread(run, "status")).stdout
    done, again = [await asyncio.to_thread(run, "retry", "turns", turn) for _ in range(2)]
    assert (done.returncode, done.stdout.endswith(" resumes it\n")) == (0, True), done.stderr
    resuming = done.stdout.split()[1]
    assert (again.returncode, again.stdout) == (0, f"it was retried before: turn {resuming}\n")


@pytest.mark.behaviour("OPS-04")
def test_status_loads_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIGHT_STATUS], capture_output=True, text=True, cwd=ROOT, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


def test_without_a_database_a_command_says_which_setting_is_missing(tmp_path: Path) -> None:
    for arguments in (("status",), ("migrate",), ("keys", "list")):
        done = run_cli(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert "DATABASE_URL" in done.stderr


def test_commands_find_what_a_running_dev_started(database_url: str, tmp_path: Path) -> None:
    home = tmp_path / ".turnkeeper"
    home.mkdir()
    run = RunFile(os.getpid(), process_start(), "http://127.0.0.1:1", "", database_url, DEAD_BROKER, "", "")
    write_run_file(home, run)
    assert run_cli("status", cwd=tmp_path).returncode == 0
    chat = run_cli("chat", "--once", "hi", cwd=tmp_path)
    assert (chat.returncode, "http://127.0.0.1:1" in chat.stderr) == (2, True)


class Chat:
    """``turnkeeper chat`` in a terminal of its own."""

    def __init__(self, url: str, folder: Path, *arguments: str) -> None:
        self._terminal, inside = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "producer.cli", "chat", "--url", url, *arguments],
            cwd=folder,
            env=clean_environment(),
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inside)
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(10)
        os.close(self._terminal)

    def type(self, text: str) -> None:
        """Type keys; Ctrl-C is \\x03, Ctrl-D \\x04."""
        os.write(self._terminal, text.encode())

    async def until(self, text: str) -> str:
        """Return what was shown up to this text, and forget it."""

        def look() -> bool:
            while text not in self.shown and select.select([self._terminal], [], [], 0)[0]:
                self.shown += os.read(self._terminal, 4096).decode()
            return text in self.shown

        await await_until(look, within_s=20.0, what=f"{text!r} after {self.shown!r}")
        before, _, self.shown = self.shown.partition(text)
        return before + text

    async def exit_status(self) -> int:
        return await asyncio.to_thread(self._process.wait, 20)


async def await_claim(producer: Producer) -> Claim:
    """Claim the next turn once there is one, and open it."""
    request = ClaimRequest(worker=WORKER, places=1, lease_s=60.0)
    async with asyncio.timeout(20):
        claims: Sequence[Claim] = []
        while not claims:
            claims = await producer.parts.queue.claim(request)
    await open_turn(producer.parts, claims[0])
    return claims[0]


async def start_chat(*arguments: str, folder: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "producer.cli",
        "chat",
        *arguments,
        cwd=folder,
        env=clean_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.behaviour("OPS-03")
async def test_chat_streams_a_reply_shows_its_tool_calls_and_says_how_it_ended(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    feed = RedisFeed(redis_url, interval_s=0.01)
    feed.open()
    async with calling(database_url, redis_url=redis_url) as (producer, client):
        key = client.headers["Authorization"].removeprefix("Bearer ")
        chat = await start_chat("--url", producer.url, "--key", key, "--once", "hi", folder=tmp_path)
        claim = await await_claim(producer)
        started = ToolStarted(run=0, step=0, invocation_id="i1", name="clock")
        completed = ToolCompleted(run=0, step=0, invocation_id="i1", name="clock", status="ok")
        drafts = [draft_of(started), draft_of(completed)]
        await producer.parts.queue.append(claim, "c1", drafts)
        text = feed.writer(claim.turn_id, claim.fence.epoch)
        text.begin(0, 1)
        text.push(0, 1, "Hello ")
        await text.flush()
        await end_turn(producer.parts, claim, "Hello there")
        out, err = await asyncio.wait_for(chat.communicate(), 20)
        assert (chat.returncode, err) == (0, b"")
        assert out.decode() == "  [clock …]\n  [clock: ok]\nHello there\n"
        [session] = (await client.get("/v1/sessions")).json()["sessions"]
        again = await start_chat(
            *("--url", producer.url, "--key", key, "--once", "ho", "--session", session["session_id"]),
            folder=tmp_path,
        )
        claim = await await_claim(producer)
        await producer.parts.queue.cancel(claim.turn_id, claim.owner)
        out, _ = await asyncio.wait_for(again.communicate(), 20)
        assert (again.returncode, out.decode()) == (1, "  [cancelled]\n")
        for arguments, code in (
            (("--key", key, "--session", "ses_nobody"), "session.missing"),
            (("--key", "tk_wrong"), "auth.invalid"),
        ):
            refused = await start_chat("--url", producer.url, *arguments, "--once", "x", folder=tmp_path)
            _, err = await asyncio.wait_for(refused.communicate(), 20)
            assert (refused.returncode, code in err.decode()) == (2, True), err
    await feed.close()


@pytest.mark.behaviour("OPS-03")
async def test_ctrl_c_cancels_the_running_turn_and_returns_to_the_prompt(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    feed = RedisFeed(redis_url, interval_s=0.01)
    feed.open()
    async with calling(database_url, redis_url=redis_url, loopback_owner="dev") as (producer, _client):
        with Chat(producer.url, tmp_path) as chat:
            await chat.until("> ")
            chat.type("hi\n")
            claim = await await_claim(producer)
            text = feed.writer(claim.turn_id, claim.fence.epoch)
            text.begin(0, 1)
            text.push(0, 1, "Hel")
            await text.flush()
            await chat.until("Hel")
            chat.type("\x03")
            assert "[cancelled]" in await chat.until("> ")
            view = await producer.parts.queue.get(claim.turn_id, OwnerId("dev"))
            assert (view.status, view.outcome) == ("ended", "cancelled")
            chat.type("again\n")
            claim = await await_claim(producer)
            await end_turn(producer.parts, claim, "Still here")
            assert "Still here" in await chat.until("> ")
            chat.type("\x04")
            assert await chat.exit_status() == 0
    await feed.close()


@pytest.mark.behaviour("OPS-03", "RSM-24")
async def test_a_turn_that_ctrl_c_cancelled_is_gone_on_with_when_the_user_says_so(
    database_url: str, tmp_path: Path
) -> None:
    async with calling(database_url, loopback_owner="dev") as (producer, _client):
        with Chat(producer.url, tmp_path) as chat:
            await chat.until("> ")
            chat.type("/resume\n")
            assert "nothing to resume" in await chat.until("> ")
            chat.type("hi\n")
            first = await await_claim(producer)
            chat.type("\x03")
            assert "[/resume goes on from here]" in await chat.until("> ")
            chat.type("/resume\n")
            second = await await_claim(producer)
            assert (second.resumes, second.message) == (1, {"text": "Continue where you stopped."})
            await producer.parts.queue.cancel(second.turn_id, second.owner)
            assert "[cancelled]" in await chat.until("> ")
            chat.type("/resume but shorter\n")
            third = await await_claim(producer)
            assert (third.resumes, third.message) == (2, {"text": "but shorter"})
            await end_turn(producer.parts, third, "Shorter")
            assert "Shorter" in await chat.until("> ")
            chat.type("/resume\n")
            assert "nothing to resume" in await chat.until("> ")
            view = await producer.parts.queue.get(third.turn_id, OwnerId("dev"))
            assert view.resumes == second.turn_id
            view = await producer.parts.queue.get(second.turn_id, OwnerId("dev"))
            assert view.resumes == first.turn_id
            chat.type("\x04")
            assert await chat.exit_status() == 0


@pytest.mark.behaviour("OPS-03")
async def test_a_second_ctrl_c_leaves(database_url: str, tmp_path: Path) -> None:
    async with calling(database_url, loopback_owner="dev") as (producer, _client):
        with Chat(producer.url, tmp_path) as chat:
            await chat.until("> ")
            chat.type("\x03")
            assert await chat.exit_status() == 0


@pytest.mark.behaviour("OPS-03", "API-05")
async def test_a_conversation_goes_on_over_a_producer_that_is_killed(
    database_url: str, tmp_path: Path
) -> None:
    async with calling(database_url, owner="dev") as (worker, _client):
        with ProducerProcess(tmp_path, DATABASE_URL=database_url, TURNKEEPER_LOG_LEVEL="debug") as first:
            await asyncio.to_thread(first.await_ready)
            events: list[ServerEvent] = []

            def converse() -> None:
                with Conversation(first.url) as conversation:
                    session = conversation.create_session()
                    events.extend(conversation.say(session, "hi", Turn()))

            talking = asyncio.create_task(asyncio.to_thread(converse))
            claim = await await_claim(worker)
            await await_until(lambda: "turn admitted" in first.log, what="the receipt")
            first.send(signal.SIGKILL)
            await asyncio.to_thread(first.await_exit)
            with ProducerProcess(tmp_path, port=first.port, DATABASE_URL=database_url):
                await end_turn(worker.parts, claim, "done")
                await asyncio.wait_for(talking, 30)
    # By their seq: an event without an id of its own carries the last one's.
    assert [e.data["seq"] for e in events if "seq" in e.data] == [1, 2, 3]
    assert (events[-1].event, events[-1].data["outcome"]) == ("end", "completed")
