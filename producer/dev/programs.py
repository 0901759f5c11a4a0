"""The programs of a run on this machine, the same for ``dev`` and ``demo``: all started at once, waited for, kept."""

from __future__ import annotations

import http.client
import itertools
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from producer.dev.places import LOOPBACK, Places, Say
from producer.dev.processes import Processes, Program
from producer.dev.run_file import RunFile, process_start, remove_run_file, write_run_file
from shared.database.embedded.child import Child
from shared.settings import Settings
from shared.wakes.names import TURNS

READY_BOUND_S: Final = 60.0
PROBE_BOUND_S: Final = 2.0
STOP_MARGIN_S: Final = 5.0
PLAIN_GRACE_S: Final = 5.0
OFFLINE_KEY: Final = "offline"
MODEL: Final = "model"

PYTHON: Final = (sys.executable, "-P", "-m")


@contextmanager
def kept_processes(places: Places, *, say: Say) -> Iterator[Processes]:
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
        processes.stop([child.name for child in processes.children() if child.name != MODEL])
        processes.stop()
        remove_run_file(places.home)


def start_programs(
    processes: Processes,
    places: Places,
    settings: Settings,
    *,
    pools: Sequence[str],
    extra_env: Mapping[str, str] | None = None,
) -> None:
    """Start every program, then wait until the model and the producer answer; the workers come up beside them.

    ``pools`` is the queue of each worker process. ``extra_env`` is laid over what every part is told. Raises ``ProcessFailed`` when a part does not become ready.
    """
    env = environment_of_parts(places, settings) | dict(extra_env or {})
    drain_s = settings.drain_s + STOP_MARGIN_S
    awaited: list[tuple[Child, int, str]] = []
    if places.offline_port:
        model = (*PYTHON, "producer.dev.offline", "--port", str(places.offline_port))
        child = processes.start(Program(MODEL, model, grace_s=PLAIN_GRACE_S))
        awaited.append((child, places.offline_port, "/healthz"))
    serve = (*PYTHON, "producer.cli", "serve", "--port", str(places.port))
    child = processes.start(Program("producer", serve, env=env, grace_s=drain_s))
    awaited.append((child, places.port, "/readyz"))
    for name, queue in _named(pools):
        worker = (*PYTHON, "producer.cli", "worker", queue)
        processes.start(Program(name, worker, env=env, grace_s=drain_s))
    listen = (f"--address={LOOPBACK}", f"--port={places.flower_port}")
    flower = (*PYTHON, "celery", "-A", "workers", "flower", *listen)
    flower_env = {**env, "FLOWER_UNAUTHENTICATED_API": "true"}
    processes.start(Program("flower", flower, env=flower_env, grace_s=PLAIN_GRACE_S))
    for child, port, path in awaited:
        wait_ready(child, port, path)


def _named(pools: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and queue of each worker process; turn workers are numbered."""
    numbers = itertools.count(1)
    for queue in pools:
        yield (f"{queue}-{next(numbers)}" if queue == TURNS else queue), queue


def environment_of_parts(places: Places, settings: Settings) -> dict[str, str | None]:
    """Return what every part is told by its environment."""
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


def wait_ready(child: Child, port: int, path: str) -> None:
    """Return once a program answers 200; raise ``ProcessFailed`` when it ends, or not within ``READY_BOUND_S``."""
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
