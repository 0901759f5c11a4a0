"""The product's own processes on a site, started as an operator starts them: ``serve`` and ``worker``, told by environment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.harness.site import Site
from benchmarks.harness.stores import PostgresCounts
from producer.dev.processes import Program
from producer.dev.programs import OFFLINE_KEY, PYTHON, wait_ready
from shared.database.embedded.child import Child
from shared.database.embedded.ports import find_free_port
from shared.domain.errors import ProcessFailed
from shared.settings import Settings, variable_of
from shared.wakes.names import TURNS

READY_BOUND_S: Final = 60.0
LOOK_S: Final = 0.05
#: Longer than a worker drains when it holds nothing.
GRACE_S: Final = 10.0

#: Bounds against abuse are not what is measured: one machine's clients stand for many owners'.
WIDE: Final[Mapping[str, object]] = {
    "env": "production",
    "writes_per_s": 100_000,
    "writes_burst": 1_000_000,
    "queued_turns_per_session": 10_000,
    "queued_turns_per_owner": 1_000_000,
    "queued_turns_max": 10_000_000,
    "running_turns_per_owner": 100_000,
    "drain_s": 5,
}


@dataclass(slots=True)
class System:
    """Producers, workers and the offline model of one site. ``app`` is what ``TURNKEEPER_APP`` names; ``settings`` are fields.

    Nothing of the caller's environment or ``.env`` reaches a process. Methods block; a name is used once.
    """

    site: Site
    app: str
    settings: Mapping[str, object] = field(default_factory=dict)
    model_url: str = ""
    ports: dict[str, int] = field(default_factory=dict)

    def start_model(self, *, delay_ms: float = 0.0) -> None:
        """Start the offline model, which workers that start later are told of."""
        port = find_free_port()
        argv = (*PYTHON, "producer.dev.offline", "--port", str(port), "--delay-ms", f"{delay_ms:g}")
        child = self.site.processes.start(Program("model", argv, restart=False, grace_s=GRACE_S))
        wait_ready(child, port, "/healthz")
        self.model_url = f"http://127.0.0.1:{port}/v1"

    def start_producer(self, name: str = "producer", **settings: object) -> int:
        """Start a producer, wait until it answers, and return its port."""
        port = find_free_port()
        argv = (*PYTHON, "producer.cli", "serve", "--port", str(port))
        child = self._start(name, argv, settings)
        wait_ready(child, port, "/readyz")
        self.ports[name] = port
        return port

    def start_worker(self, name: str = "worker", *, queue: str = TURNS, **settings: object) -> Child:
        """Start a worker process of a queue, wait until it has written that it is there, and return it."""
        port = find_free_port()
        argv = (*PYTHON, "producer.cli", "worker", queue)
        child = self._start(name, argv, {"metrics_port": port, **settings})
        with PostgresCounts(self.site.database_url) as counts:
            child.wait_until(
                lambda: child.pid in counts.worker_pids(), what="presence", timeout_s=READY_BOUND_S
            )
        wait_ready(child, port, "/healthz")
        self.ports[name] = port
        return child

    def stop(self, *names: str) -> None:
        """Stop what is named; the first name goes first."""
        for name in names:
            self.site.processes.stop([name])
            self.ports.pop(name, None)

    def environment(self, settings: Mapping[str, object]) -> dict[str, str]:
        """Return every variable that a part reads; what is not set is empty, which lies over a ``.env`` file."""
        told = {
            **WIDE,
            "app": self.app,
            "home": self.site.home,
            "database_url": self.site.database_url,
            "broker_url": self.site.redis_url,
            "feed_url": self.site.redis_url,
            "openai_api_key": OFFLINE_KEY,
            "openai_base_url": self.model_url,
            **self.settings,
            **settings,
        }
        return {variable_of(name): str(told.get(name, "")) for name in Settings.model_fields}

    def _start(self, name: str, argv: tuple[str, ...], settings: Mapping[str, object]) -> Child:
        env = self.environment(settings)
        program = Program(name, argv, env=env, restart=False, grace_s=GRACE_S)
        return self.site.processes.start(program)


async def wait_until_idle(
    counts: PostgresCounts, bound_s: float, *, agents: Collection[str] | None = None
) -> None:
    """Return when no turn is owed (of some agents, or of all); raise ``ProcessFailed`` after ``bound_s`` seconds."""
    deadline = time.monotonic() + bound_s
    while counts.owes_turns(agents):
        if time.monotonic() > deadline:
            raise ProcessFailed(f"turns are still owed after {bound_s:g} s", name="worker")
        await asyncio.sleep(LOOK_S)  # a poll's pause, beside what is measured
