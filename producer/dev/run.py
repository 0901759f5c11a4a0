"""``turnkeeper dev``: everything on this machine, started in order, watched, stopped in order (OPS-01, OPS-02)."""

from __future__ import annotations

import http.client
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from producer.dev.processes import Processes, Program
from producer.dev.run_file import RunFile, process_start, remove_run_file, write_run_file
from producer.dev.stop_signals import stop_signals, wait_for_stop
from shared.database.embedded import EmbeddedServers
from shared.database.embedded.home import HomeLock
from shared.database.embedded.ports import find_free_port, next_free_port
from shared.database.migrate import migrate
from shared.settings import Settings
from shared.wakes.names import TURNS, UPKEEP

Say = Callable[[str], None]

READY_BOUND_S: Final = 60.0
PROBE_BOUND_S: Final = 2.0
STOP_MARGIN_S: Final = 5.0
PLAIN_GRACE_S: Final = 5.0
LOOPBACK: Final = "127.0.0.1"
OFFLINE_KEY: Final = "offline"
#: Connections of PostgreSQL beside the workers': the producer's pool, upkeep's, the superuser's, and people's.
CONNECTIONS_BESIDE_WORKERS: Final = 60

PYTHON: Final = (sys.executable, "-P", "-m")


@dataclass(frozen=True, slots=True)
class DevOptions:
    """What the command line decides; the rest are settings. ``workers`` None: one turn worker a core."""

    fresh: bool = False
    port: int | None = None
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """Where the parts of this run are. ``offline_model`` is empty when a real endpoint is used."""

    home: Path
    database_url: str
    broker_url: str
    feed_url: str
    port: int
    flower_port: int
    offline_port: int

    @property
    def producer_url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def flower_url(self) -> str:
        return f"http://{LOOPBACK}:{self.flower_port}"

    @property
    def offline_model_url(self) -> str:
        return f"http://{LOOPBACK}:{self.offline_port}/v1" if self.offline_port else ""


def run_dev(options: DevOptions, settings: Settings, *, say: Say) -> None:
    """Run until SIGINT or SIGTERM, then stop what was started; a second signal kills instead of waiting.

    Raises ``HomeInUse`` beside another run on the same home folder, ``ConfigError`` when a server program is missing
    and ``ProcessFailed`` when a part does not become ready.
    """
    home = Path(settings.home).resolve()
    workers = options.workers or core_count()
    lock = HomeLock(home, "dev")
    lock.acquire()
    with ExitStack() as stack:
        stack.callback(lock.release)
        kill = stack.enter_context(stop_signals())
        try:
            places = _place(stack, options, settings, home=home, workers=workers, say=say)
            migrate(places.database_url)
            processes = stack.enter_context(_processes(places, say=say))
            kill.append(processes.kill)
            _start_all(processes, places, settings, workers=workers, say=say)
            _announce(places, workers, say)
            wait_for_stop()
        except KeyboardInterrupt:
            say("stopping (once more: at once)")


def core_count() -> int:
    """Return the number of cores this process may use."""
    # Not on macOS, where the count of the machine's cores has to do.
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _place(
    stack: ExitStack, options: DevOptions, settings: Settings, *, home: Path, workers: int, say: Say
) -> Places:
    database_url = settings.database_url.get_secret_value()
    broker_url = settings.broker_url.get_secret_value()
    feed_url = settings.effective_feed_url
    needs_postgres, needs_valkey = not database_url, not (broker_url and feed_url)
    if needs_postgres or needs_valkey:
        connections = CONNECTIONS_BESIDE_WORKERS + workers * settings.worker_connections
        servers = stack.enter_context(
            EmbeddedServers(
                home,
                fresh=options.fresh,
                tune={"max_connections": str(connections)},
                postgres=needs_postgres,
                valkey=needs_valkey,
            )
        )
        if needs_postgres:
            database_url = servers.database_url
            say(f"PostgreSQL under {home}")
        if needs_valkey:
            broker_url = broker_url or servers.redis_url
            feed_url = feed_url or servers.redis_url
            say(f"Valkey under {home}")
    has_model = bool(settings.openai_api_key.get_secret_value() or settings.openai_base_url)
    return Places(
        home=home,
        database_url=database_url,
        broker_url=broker_url,
        feed_url=feed_url,
        port=_choose_port("producer", options.port or settings.port, say),
        flower_port=_choose_port("Flower", settings.flower_port, say),
        offline_port=0 if has_model else find_free_port(),
    )


def _choose_port(name: str, wanted: int, say: Say) -> int:
    port = next_free_port(wanted, host=LOOPBACK) if wanted else find_free_port()
    if wanted and port != wanted:
        say(f"port {wanted} is taken: {name} on {port}")
    return port


@contextmanager
def _processes(places: Places, *, say: Say) -> Iterator[Processes]:
    """Yield the supervisor whose children are kept in ``run.json``; at the end the workers go before their model."""
    started_at = process_start()
    writing = threading.Lock()

    def note() -> None:
        with writing:
            write_run_file(
                places.home,
                RunFile(
                    pid=os.getpid(),
                    started_at=started_at,
                    producer_url=places.producer_url,
                    flower_url=places.flower_url,
                    database_url=places.database_url,
                    broker_url=places.broker_url,
                    feed_url=places.feed_url,
                    offline_model_url=places.offline_model_url,
                    processes={c.name: {"pid": c.pid, "log": str(c.log)} for c in processes.children()},
                ),
            )

    processes = Processes(places.home / "logs", say=say, on_change=note)
    try:
        yield processes
    finally:
        processes.stop([child.name for child in processes.children() if child.name != "model"])
        processes.stop()
        remove_run_file(places.home)


def _start_all(processes: Processes, places: Places, settings: Settings, *, workers: int, say: Say) -> None:
    if places.offline_port:
        say("no OPENAI_API_KEY or OPENAI_BASE_URL: an offline model answers, by simple rules")
        model = (*PYTHON, "producer.dev.offline", "--port", str(places.offline_port))
        _start_ready(
            processes, Program("model", model, grace_s=PLAIN_GRACE_S), places.offline_port, "/healthz"
        )
    env = _environment(places, settings)
    drain_s = settings.drain_s + STOP_MARGIN_S
    for name, queue in (*((f"turns-{n}", TURNS) for n in range(1, workers + 1)), ("upkeep", UPKEEP)):
        processes.start(Program(name, (*PYTHON, "producer.cli", "worker", queue), env=env, grace_s=drain_s))
    listen = (f"--address={LOOPBACK}", f"--port={places.flower_port}")
    flower = (*PYTHON, "celery", "-A", "workers", "flower", *listen)
    flower_env = {**env, "FLOWER_UNAUTHENTICATED_API": "true"}
    processes.start(Program("flower", flower, env=flower_env, grace_s=PLAIN_GRACE_S))
    serve = (*PYTHON, "producer.cli", "serve", "--port", str(places.port))
    _start_ready(processes, Program("producer", serve, env=env, grace_s=drain_s), places.port, "/readyz")


def _environment(places: Places, settings: Settings) -> dict[str, str | None]:
    env: dict[str, str | None] = {
        "DATABASE_URL": places.database_url,
        "CELERY_BROKER_URL": places.broker_url,
        "FEED_URL": places.feed_url,
        "TURNKEEPER_HOME": str(places.home),
        "TURNKEEPER_ENV": "test" if settings.env == "test" else "dev",
        "TURNKEEPER_LOOPBACK_OWNER": settings.loopback_owner or "dev",
        "TURNKEEPER_LOG_FORMAT": "console",
    }
    if places.offline_port:
        env |= {"OPENAI_BASE_URL": places.offline_model_url, "OPENAI_API_KEY": OFFLINE_KEY}
    return env


def _start_ready(processes: Processes, program: Program, port: int, path: str) -> None:
    child = processes.start(program)
    child.wait_until(lambda: _answers_ok(port, path), what=f"200 from {path}", timeout_s=READY_BOUND_S)


def _answers_ok(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=PROBE_BOUND_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _announce(places: Places, workers: int, say: Say) -> None:
    say(f"producer  {places.producer_url}  (API: /docs)")
    say(f"Flower    {places.flower_url}")
    say(f"workers   {workers} for turns, 1 for upkeep; logs in {places.home / 'logs'}")
    say("ready: ./turnkeeper chat in another terminal; Ctrl-C stops everything")
