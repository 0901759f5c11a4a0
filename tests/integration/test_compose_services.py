"""Every service of ``compose.yaml`` that runs our image, by its own command, variables and health check.

Not in containers: real processes beside an embedded PostgreSQL and Valkey, at ports of this test's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from producer.dev.processes import Processes, Program
from shared.database.embedded import EmbeddedServers
from shared.database.embedded.child import Child
from shared.database.embedded.ports import find_free_port
from tests.support.compose_file import fill, own_services, read_compose, seconds
from tests.support.producer_process import ROOT, clean_environment
from tests.support.servers import TUNE
from tests.support.system import eventually

READY_S: Final = 60.0
PROGRAMS: Final = {"turnkeeper": ("-m", "producer.cli"), "celery": ("-m", "celery"), "python": ()}
LISTENING: Final = {"producer": "8000", "flower": "5555"}
METRICS: Final = "9100"


class Service:
    """A service of ours; the port that it listens at is moved to a free one wherever the file names it."""

    def __init__(self, name: str, described: Mapping[str, Any], given: Mapping[str, str]) -> None:
        filled = fill(dict(described), given)
        port = LISTENING.get(name, METRICS)
        moved = str(find_free_port())
        self.name = name
        check = filled.get("healthcheck", {"test": ["CMD", "python", "-c", ""]})["test"]
        self._check = argv([word.replace(f":{port}/", f":{moved}/") for word in check[1:]])
        told = {
            variable: moved if value == port else value for variable, value in filled["environment"].items()
        }
        removed = dict.fromkeys(os.environ.keys() - clean_environment().keys())
        self.program = Program(
            name,
            argv([word.replace(port, moved) for word in filled["command"]]),
            env={**removed, **told, "PYTHONPATH": str(ROOT)},
            grace_s=seconds(filled["stop_grace_period"]),
            restart=False,
        )

    def is_healthy(self) -> bool:
        """Run the health check once."""
        return subprocess.run(self._check, capture_output=True, check=False, timeout=30).returncode == 0


def argv(words: list[str]) -> tuple[str, ...]:
    return (sys.executable, *PROGRAMS[words[0]], *words[1:])


def wait_until_well(service: Service, child: Child) -> None:
    eventually(
        lambda: service.is_healthy() or not child.is_running, f"{service.name} is well", within_s=READY_S
    )
    assert child.is_running, child.output_tail()


def test_every_service_becomes_healthy_by_its_own_check_and_ends_well_when_it_is_stopped(
    tmp_path: Path,
) -> None:
    with (
        EmbeddedServers(tmp_path / "servers", tune=TUNE) as pair,
        Processes(tmp_path / "logs", say=lambda line: None) as processes,
    ):
        given = {
            "OPENAI_API_KEY": "k",
            "DATABASE_URL": pair.database_url,
            "CELERY_BROKER_URL": pair.redis_url,
            "FEED_URL": pair.redis_url,
        }
        services = {
            name: Service(name, described, given)
            for name, described in own_services(read_compose()["services"]).items()
        }
        migrate = services.pop("migrate")
        done = processes.start(migrate.program)
        assert done.wait(READY_S) == 0, done.output_tail()
        children = [processes.start(service.program) for service in services.values()]
        for service, child in zip(services.values(), children, strict=True):
            wait_until_well(service, child)
        processes.stop(list(services))
        assert {child.name: child.returncode for child in children} == dict.fromkeys(services, 0)
