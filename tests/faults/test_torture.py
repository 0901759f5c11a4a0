"""``turnkeeper torture``: a minute of it holds, and a system with one rule taken out does not."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from producer.cli.torture import status_of
from producer.dev.torture.report import Report
from producer.dev.torture.run import TortureOptions, run_torture
from producer.dev.torture.schedule import Fault, plan_faults
from shared.settings import load_settings
from tests.support.producer_process import clean_environment
from tests.support.sabotage import take_out_fences, undo_groups

pytestmark = pytest.mark.alone

SECONDS: Final = 60.0
CONTROL_S: Final = 12.0
BOUND_S: Final = 400.0

#: Whoever may share a statement waits until one ends: what shares a commit in a short run is not left to chance.
PATIENT_GROUPS: Final = {"TURNKEEPER_GROUP_WAIT_S": "5"}
#: Nobody is told of a turn that became ready when the one before it ended, and nobody looks by himself.
WITHOUT_RINGS: Final = {
    "TURNKEEPER_ENV": "test",
    "TURNKEEPER_FAILPOINTS": "turn.ended=raise@every",
    "TURNKEEPER_UNASKED_CLAIM_S": "600",
    "TURNKEEPER_SWEEP_S": "600",
    "TURNKEEPER_SWEEP_LEASE_S": "1200",
}


@pytest.mark.behaviour("BEY-10")
def test_a_minute_of_torture_loses_and_doubles_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "producer.cli",
            "torture",
            "--seconds",
            f"{SECONDS:g}",
            "--seed",
            "1",
            "--json",
        ],
        cwd=tmp_path,
        env=clean_environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    told = done.stdout[-8_000:] + done.stderr[-4_000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert (figures["failures"], done.returncode) == ([], 0), told
    assert figures["admitted"] > figures["completed"] > 0
    assert [figures[name] for name in ("lost", "doubled_replies", "doubled_effects", "log_errors")] == [
        0
    ] * 4, told
    assert figures["stale_writes_refused"] > 0
    assert all(figures["faults_by_kind"].values())
    assert figures["faults"] == sum(figures["faults_by_kind"].values())
    assert figures["losses"] > 0
    assert 3.0 <= figures["longest_held_s"] <= figures["held_bound_s"]
    assert [path.name for path in tmp_path.iterdir()] == []
    assert processes_of(tmp_path) == []


@pytest.mark.mutation
@pytest.mark.behaviour("BEY-10")
def test_without_the_check_of_fences_it_finds_stale_writes_and_doubled_replies(tmp_path: Path) -> None:
    report = tortured(tmp_path, sabotage=take_out_fences)
    assert report.stale_accepted > 0
    assert report.figures()["doubled_replies"] > 0
    assert status_of(report) != 0


@pytest.mark.mutation
@pytest.mark.behaviour("BEY-10")
def test_without_chained_rings_and_unasked_claims_it_finds_lost_turns(tmp_path: Path) -> None:
    report = tortured(tmp_path, env=WITHOUT_RINGS, drain_bound_s=10.0)
    assert report.figures()["lost"] > 0
    assert report.figures()["doubled_replies"] == report.figures()["doubled_effects"] == 0
    assert status_of(report) != 0


@pytest.mark.mutation
@pytest.mark.behaviour("BEY-10")
def test_with_groups_that_are_acknowledged_before_they_are_stored_it_finds_lost_turns(tmp_path: Path) -> None:
    report = tortured(tmp_path, sabotage=undo_groups, env=PATIENT_GROUPS)
    assert report.figures()["lost"] > 0
    assert report.stale_accepted == 0
    assert status_of(report) != 0


@pytest.mark.second_matrix
@pytest.mark.behaviour("BEY-10")
def test_over_rabbitmq_nothing_is_lost_or_doubled_either(tmp_path: Path, virtual_host: str) -> None:
    of_broker = (Fault.BROKER_FLUSH, Fault.BROKER_RESTART, Fault.WAKES_TRIPLED)
    report = tortured(tmp_path, broker_url=virtual_host, early=of_broker)
    assert report.figures()["completed"] > 0
    assert all(report.faults[kind] > 0 for kind in of_broker)
    assert report.failures == [], list(report.findings())


@pytest.fixture
def virtual_host() -> Iterator[str]:
    """Make a virtual host on the machine's RabbitMQ that nobody else uses; pass the test over where that is not allowed."""
    name = f"turnkeeper-test-{os.getpid()}"
    try:
        rabbitmqctl("add_vhost", name)
        rabbitmqctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
    except (OSError, subprocess.SubprocessError):
        pytest.skip("no virtual host can be made on a RabbitMQ of this machine")
    try:
        yield f"amqp://guest:guest@127.0.0.1:5672/{name}"
    finally:
        rabbitmqctl("delete_vhost", name)


def rabbitmqctl(*arguments: str) -> None:
    subprocess.run(["rabbitmqctl", "-q", *arguments], check=True, capture_output=True, timeout=60)


def tortured(
    home: Path,
    *,
    early: Sequence[Fault] = (Fault.WORKER_KILL, Fault.WORKER_STOP),
    broker_url: str = "",
    env: Mapping[str, str] | None = None,
    sabotage: Callable[[str], None] | None = None,
    drain_bound_s: float = 20.0,
) -> Report:
    """Torture a system for a short time, from a seed with some faults ``early``."""
    options = TortureOptions(
        seconds=CONTROL_S,
        seed=first_seed_with(*early),
        home=home,
        broker_url=broker_url,
        env=env or {},
        sabotage=sabotage,
        workers=2,
        drain_bound_s=drain_bound_s,
    )
    said: list[str] = []
    return run_torture(options, load_settings({}), say=said.append)


def first_seed_with(*kinds: Fault) -> int:
    """Return the first seed whose plan has each of these kinds early in a short run."""
    return next(
        seed
        for seed in itertools.count()
        if set(kinds) <= {fault.kind for fault in plan_faults(seed, CONTROL_S * 0.6)}
    )


def processes_of(folder: Path) -> list[Any]:
    """Return the processes that were told to use this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            told = " ".join([*process.cmdline(), process.environ().get("TURNKEEPER_HOME", ""), process.cwd()])
        except psutil.Error:
            continue
        if str(folder) in told:
            found.append(told)
    return found
