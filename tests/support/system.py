"""The whole system as real processes: offline model, producer, workers; and what a test asks of them over HTTP and SQL."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import httpx2
import psycopg
from psycopg.rows import dict_row

from producer.dev.processes import Processes, Program
from shared.database.embedded.child import Child
from shared.database.embedded.ports import find_free_port
from shared.domain.canonical import chain_tail, first_tail, record_digest

WAIT_S = 30.0
LEASE_S = 3.0

#: Short leases and sweeps, by settings (core 12).
QUICK = {
    "TURNKEEPER_ENV": "test",
    "TURNKEEPER_TURN_LEASE_S": f"{LEASE_S:g}",
    "TURNKEEPER_TURN_RENEW_S": "1",
    "TURNKEEPER_WORKER_SEEN_S": "0.5",
    "TURNKEEPER_SWEEP_S": "0.5",
    "TURNKEEPER_UNASKED_CLAIM_S": "0.5",
    "TURNKEEPER_CANCEL_POLL_S": "0.3",
    "TURNKEEPER_DRAIN_S": "5",
    "TURNKEEPER_WRITES_BURST": "100000",
    "TURNKEEPER_APP": "tests.support.fault_app:app",
    "TURNKEEPER_LOG_FORMAT": "console",
}


def eventually(look: Callable[[], Any], what: str, *, within_s: float = WAIT_S) -> Any:
    """Return the first true answer of ``look``, asked again and again for a bounded time."""
    deadline = time.monotonic() + within_s
    while True:
        if answer := look():
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what}")
        time.sleep(0.02)  # a poll's pause, not a wait to be sure


class Servers(Protocol):
    """Where a system's database and Redis are."""

    @property
    def database_url(self) -> str: ...

    @property
    def redis_url(self) -> str: ...


@dataclass
class System:
    """Real processes over a pair of servers. Leaving it stops everything it started."""

    servers: Servers
    home: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.said: list[str] = []
        self.processes = Processes(self.home / "logs", say=self.said.append)
        self.model_port = find_free_port()
        self.port = find_free_port()
        self._model = httpx2.Client(base_url=f"http://127.0.0.1:{self.model_port}", timeout=WAIT_S)
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=WAIT_S)
        self._names = 0

    def __enter__(self) -> Self:
        self.start_model()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()
        self._model.close()
        # A process that was stopped (SIGSTOP) cannot end by itself; everything here may be killed.
        self.processes.kill()
        self.processes.stop()

    # --- processes -------------------------------------------------------------------------------------------

    def start_model(self) -> Child:
        """Start the offline model, always on the same port, and wait until it answers."""
        child = self._start("model", "producer.dev.offline", "--port", str(self.model_port))
        eventually(lambda: _ok(self._model, "/healthz"), "the offline model")
        return child

    def start_producer(self, **env: str) -> Child:
        """Start the producer and wait until it is ready."""
        child = self._start("producer", "producer.cli", "serve", "--port", str(self.port), env=env)
        eventually(lambda: _ok(self.http, "/readyz"), "the producer")
        return child

    def start_worker(
        self, queue: str = "turns", *, name: str = "", failpoints: str = "", **env: str
    ) -> Child:
        """Start a worker process and wait until its row says that it is there."""
        known = self.worker_pids()
        child = self.launch_worker(queue, name=name, failpoints=failpoints, **env)
        eventually(
            lambda: (self.worker_pids() - known) or _fail_if_ended(child),
            f"worker {queue}\n{child.output_tail()}",
        )
        return child

    def launch_worker(self, queue: str, *, name: str = "", failpoints: str = "", **env: str) -> Child:
        """Start a worker process and wait for nothing. ``name`` is its node's; each has its own by default."""
        self._names += 1
        settings = {"TURNKEEPER_FAILPOINTS": failpoints} if failpoints else {}
        return self._start(
            f"{queue}-{self._names}",
            "celery",
            "-A",
            "workers",
            "worker",
            "-Q",
            queue,
            "-n",
            f"{name or f'{queue}-{self._names}'}@%h",
            "--without-gossip",
            "--without-mingle",
            env=settings | env,
        )

    def operate(self, *arguments: str, module: str = "celery") -> str:
        """Run a command as an operator would and return its output."""
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            capture_output=True,
            text=True,
            env=dict(os.environ) | self.environment(),
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def worker_pids(self) -> set[int]:
        """Return the pids that ever wrote a worker row here."""
        return {row["pid"] for row in self.query("SELECT pid FROM workers")}

    def _start(self, name: str, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> Child:
        argv = (sys.executable, "-m", module, *arguments)
        return self.processes.start(
            Program(name, argv, env=self.environment() | dict(env or {}), restart=False)
        )

    def environment(self) -> dict[str, str]:
        """Return what every process of the system is told by its environment."""
        return {
            "DATABASE_URL": self.servers.database_url,
            "CELERY_BROKER_URL": self.servers.redis_url,
            "FEED_URL": self.servers.redis_url,
            "OPENAI_BASE_URL": f"http://127.0.0.1:{self.model_port}/v1",
            "OPENAI_API_KEY": "offline",
            "TURNKEEPER_HOME": str(self.home),
            "TURNKEEPER_LOOPBACK_OWNER": "dev",
            **QUICK,
            **self.env,
        }

    # --- the model -------------------------------------------------------------------------------------------

    def hold_model(self, *, after_tokens: int = 0, session: str | None = None) -> None:
        """From now on answers (of one session) stop after so many tokens, until :meth:`release_model`."""
        what = {"after_tokens": after_tokens} | ({"session": session} if session else {})
        self._model.post("/admin/hold", json=what).raise_for_status()

    def release_model(self) -> None:
        """Let held answers go on."""
        self._model.post("/admin/release", json={}).raise_for_status()

    def wait_for_calls(self, calls: int, *, session: str | None = None) -> None:
        """Wait until so many model calls have started."""
        params: dict[str, str | int | float] = {"calls": calls, "timeout": WAIT_S}
        if session is not None:
            params["session"] = session
        self._model.get("/admin/wait", params=params).raise_for_status()

    def calls(self, session: str) -> int:
        """Return how many chat calls a session has made."""
        return len([call for call in self.model_calls(session=session) if call["route"] == "chat"])

    def model_calls(self, **params: str) -> list[dict[str, Any]]:
        """Return the newest calls of the model, oldest first."""
        answer = self._model.get("/admin/calls", params={"limit": "1000"} | params).raise_for_status()
        calls: list[dict[str, Any]] = answer.json()["calls"]
        return calls

    # --- the producer ----------------------------------------------------------------------------------------

    def create_session(self) -> str:
        """Create a session and return its id."""
        answer = self.http.post("/v1/sessions", json={})
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["session_id"])

    def admit(self, session: str, message: str, **body: Any) -> dict[str, Any]:
        """Admit a turn and return its receipt."""
        answer = self.http.post(f"/v1/sessions/{session}/turns", json={"message": message, **body})
        assert answer.status_code == 202, answer.text
        receipt: dict[str, Any] = answer.json()
        return receipt

    def turn(self, turn_id: str) -> dict[str, Any]:
        """Return a turn's state."""
        state: dict[str, Any] = self.http.get(f"/v1/turns/{turn_id}").raise_for_status().json()
        return state

    def finished(self, turn_id: str, *, within_s: float = WAIT_S) -> dict[str, Any]:
        """Wait until a turn has finished and return its state."""

        def look() -> dict[str, Any] | None:
            state = self.turn(turn_id)
            return state if state["status"] in ("ended", "cancelled", "refused", "expired") else None

        found: dict[str, Any] = eventually(look, f"turn {turn_id} finished", within_s=within_s)
        return found

    # --- the truth -------------------------------------------------------------------------------------------

    def query(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        """Read the database."""
        with psycopg.connect(self.servers.database_url, autocommit=True, row_factory=dict_row) as connection:
            return connection.execute(statement, parameters).fetchall()

    def records(self, session: str) -> list[dict[str, Any]]:
        """Return a session's records in order."""
        return self.query("SELECT * FROM records WHERE session_id = %s ORDER BY seq", session)

    def kinds(self, session: str) -> list[str]:
        """Return the kinds of a session's records in order."""
        return [record["kind"] for record in self.records(session)]

    def effects(self) -> list[list[str]]:
        """Return the outside effects of the tools: (tool, turn, token) each."""
        path = self.home / "effects.log"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def verify(self, session: str) -> None:
        """Assert that the log is whole: dense, chained, each turn opened and closed once, nothing after its end."""
        [head] = self.query("SELECT seq, tail FROM sessions WHERE id = %s", session)
        tail = first_tail(session)
        ended: set[int] = set()
        n = 0  # a task that was never opened left nothing in its session
        for n, record in enumerate(self.records(session), start=1):
            assert record["seq"] == n
            assert record_digest(record["kind"], record["data"]) == record["digest"]
            assert record["turn"] not in ended, f"record {n} after the end of turn {record['turn']}"
            tail = chain_tail(tail, n, record["turn"], record["digest"])
            if record["kind"] == "turn.ended":
                ended.add(record["turn"])
        assert (n, tail) == (head["seq"], head["tail"])
        kinds = self.kinds(session)
        assert kinds.count("turn.started") == kinds.count("turn.ended") == len(ended)


def _ok(client: httpx2.Client, path: str) -> bool:
    try:
        return client.get(path, timeout=2.0).status_code == 200
    except httpx2.TransportError:
        return False


def _fail_if_ended(child: Child) -> bool:
    if child.is_running:
        return False
    raise AssertionError(f"{child.name} ended with {child.returncode}:\n{child.output_tail()}")
