"""The supervisor of `turnkeeper dev` with real child processes: starts, restarts, drains, kills (OPS-01)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from producer.dev.processes import Processes, Program
from shared.database.embedded.child import Child
from shared.domain.errors import ConfigError, ProcessFailed

BOUND_S = 20.0

DRAINS = """
import signal, sys
def drain(signum, frame):
    print("drained", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, drain)
print("up", flush=True)
while True:
    signal.pause()
"""
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
)
PARENT = """
import signal, subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"])
print("grandchild", grandchild.pid, flush=True)
signal.pause()
"""
SUPERVISOR = """
import signal, sys
from pathlib import Path
from producer.dev.processes import Processes, Program
processes = Processes(Path(sys.argv[1]), say=print)
child = processes.start(Program("kept", (sys.executable, "-c", sys.argv[2])))
child.wait_for_output("^up$", timeout_s=20)
print("child", child.pid, flush=True)
signal.pause()
"""

TWO_SIGNALS = """
import threading, time
from producer.dev.stop_signals import stop_signals, wait_for_stop
for _ in range(4):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
acts = []
with stop_signals() as on_repeat:
    on_repeat.append(lambda: acts.append("killed"))
    try:
        print("up", flush=True)
        wait_for_stop()
    except KeyboardInterrupt:
        print("stopping", flush=True)
        while not acts:  # the second one is heard here too, however late it comes
            time.sleep(0.01)
"""


def python(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code, *arguments)


class Heard:
    """What the supervisor said; waits for a line by condition."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._news:
            self.lines.append(line)
            self._news.notify_all()

    def wait(self, text: str, times: int = 1) -> None:
        with self._news:
            assert self._news.wait_for(lambda: sum(text in line for line in self.lines) >= times, BOUND_S), (
                self.lines
            )


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def processes(tmp_path: Path, heard: Heard) -> Iterator[Processes]:
    with Processes(tmp_path / "logs", say=heard, backoff_s=0.05) as supervisor:
        yield supervisor


def start(processes: Processes, name: str, code: str, **options: object) -> Child:
    child = processes.start(Program(name, python(code), **options))  # type: ignore[arg-type]  # passed through
    child.wait_for_output("^(up|grandchild.*)$", timeout_s=BOUND_S)
    return child


@pytest.mark.behaviour("OPS-01")
def test_stop_lets_every_program_finish_and_ends_all(processes: Processes, heard: Heard) -> None:
    children = [start(processes, f"worker-{n}", DRAINS) for n in range(3)]
    processes.stop()
    assert [(child.returncode, "drained" in child.output()) for child in children] == [(0, True)] * 3
    assert heard.lines == []


@pytest.mark.behaviour("OPS-01")
def test_stop_by_name_leaves_the_others_running(processes: Processes) -> None:
    model, worker = start(processes, "model", DRAINS), start(processes, "worker", DRAINS)
    processes.stop(["worker"])
    assert (worker.is_running, model.is_running) == (False, True)


def test_a_program_that_does_not_end_in_its_grace_is_killed_and_named(
    processes: Processes, heard: Heard
) -> None:
    child = start(processes, "stubborn", STUBBORN, grace_s=0.2)
    processes.stop()
    assert child.returncode == -signal.SIGKILL
    assert heard.lines == ["stubborn did not end within 0.2 s: killed"]


@pytest.mark.behaviour("OPS-01")
def test_kill_takes_the_whole_process_group_without_waiting_for_a_drain(processes: Processes) -> None:
    child = start(processes, "parent", PARENT)
    found = child.wait_for_output(r"^grandchild (\d+)$", timeout_s=BOUND_S)
    grandchild = psutil.Process(int(found[1]))
    processes.kill()
    assert child.wait(BOUND_S) == -signal.SIGKILL
    assert psutil.wait_procs([grandchild], timeout=BOUND_S)[1] == []


def test_a_program_that_dies_is_started_again_until_it_is_stopped(processes: Processes, heard: Heard) -> None:
    first = start(processes, "worker", DRAINS)
    first.send_signal(signal.SIGKILL)
    heard.wait("worker ended with status -9; starting it again in 0.05 s")
    assert first.wait(BOUND_S) == -signal.SIGKILL
    second = wait_for_next(processes, first)
    second.wait_for_output("^up$", timeout_s=BOUND_S)
    processes.stop()
    assert (second.returncode, processes.child("worker")) == (0, second)
    assert second.log.read_text().splitlines() == ["up", "up", "drained"]
    assert second.output().splitlines() == ["up", "drained"]


def wait_for_next(processes: Processes, before: Child) -> Child:
    """Return the run after ``before``; the supervisor tells of it through ``children`` only."""
    waiting = threading.Event()
    for _ in range(int(BOUND_S / 0.01)):
        child = processes.child(before.name)
        if child is not before and child.pid:
            return child
        waiting.wait(0.01)
    raise AssertionError(f"{before.name} was not started again")


def test_a_program_that_keeps_dying_is_started_ever_more_slowly(processes: Processes, heard: Heard) -> None:
    processes.start(Program("broken", python("raise SystemExit(3)")))
    heard.wait("broken ended with status 3", times=3)
    assert [line.split(" in ")[1].split(" (")[0] for line in heard.lines[:3]] == ["0.05 s", "0.1 s", "0.2 s"]


def test_a_program_kept_once_only_is_named_when_it_ends(processes: Processes, heard: Heard) -> None:
    child = processes.start(Program("once", python("raise SystemExit(3)"), restart=False))
    assert child.wait(BOUND_S) == 3
    heard.wait("once ended with status 3")
    assert processes.children() == [child]


@pytest.mark.behaviour("OPS-01")
@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems tell a child nothing of its parent's death"
)
def test_programs_drain_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    checkout = str(Path(__file__).resolve().parents[2])
    argv = [sys.executable, "-c", SUPERVISOR, str(tmp_path / "logs"), DRAINS]
    supervisor = Child("supervisor", argv, log=tmp_path / "log", env={"PYTHONPATH": checkout})
    supervisor.start()
    found = supervisor.wait_for_output(r"^child (\d+)$", timeout_s=BOUND_S)
    kept = psutil.Process(int(found[1]))
    supervisor.kill()
    assert psutil.wait_procs([kept], timeout=BOUND_S)[1] == []
    assert (tmp_path / "logs" / "kept.log").read_text().splitlines() == ["up", "drained"]


def test_a_child_outlives_the_thread_that_asked_for_it(processes: Processes) -> None:
    started: list[Child] = []
    asking = threading.Thread(target=lambda: started.append(start(processes, "worker", DRAINS)))
    asking.start()
    asking.join(BOUND_S)
    assert started[0].wait(0.2) is None


def test_variables_are_laid_over_ours_and_shown_to_nobody(processes: Processes, tmp_path: Path) -> None:
    code = "import os, signal; print(os.environ.get('HOME'), os.environ['PASS'], flush=True); signal.pause()"
    child = processes.start(Program("env", python(code), env={"HOME": None, "PASS": "p4ss"}))
    child.wait_for_output("^None p4ss$", timeout_s=BOUND_S)
    assert "p4ss" not in " ".join(psutil.Process(child.pid).cmdline())
    assert os.getpgid(child.pid) == child.pid != os.getpgid(0)


def test_waiting_for_a_program_that_ends_fails_with_the_end_of_its_log(processes: Processes) -> None:
    child = processes.start(
        Program("bad", python("print('no such table'); raise SystemExit(1)"), restart=False)
    )
    with pytest.raises(ProcessFailed, match=r"bad ended with status 1:\nno such table"):
        child.wait_for_output("ready", timeout_s=BOUND_S)


def test_a_program_that_does_not_exist_is_named(processes: Processes) -> None:
    child = processes.start(Program("missing", ("/no/such/program",), restart=False))
    with pytest.raises(ProcessFailed, match="cannot execute /no/such/program: No such file"):
        child.wait_for_output("ready", timeout_s=BOUND_S)


def test_a_name_runs_once(processes: Processes) -> None:
    start(processes, "worker", DRAINS)
    with pytest.raises(ConfigError, match="worker"):
        processes.start(Program("worker", python(DRAINS)))


def test_every_start_is_told_with_its_process_id(tmp_path: Path, heard: Heard) -> None:
    told: list[int] = []
    supervisor = Processes(
        tmp_path, say=heard, backoff_s=0.05, on_change=lambda: told.append(supervisor.child("worker").pid)
    )
    with supervisor:
        first = start(supervisor, "worker", DRAINS)
        first.send_signal(signal.SIGKILL)
        second = wait_for_next(supervisor, first)
        second.wait_for_output("^up$", timeout_s=BOUND_S)
    assert told == [first.pid, second.pid]


@pytest.mark.behaviour("OPS-01")
@pytest.mark.parametrize("both", [(signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)])
def test_two_stop_signals_at_once_still_stop_a_supervisor_with_threads(
    tmp_path: Path, both: tuple[signal.Signals, ...]
) -> None:
    checkout = str(Path(__file__).resolve().parents[2])
    # Which thread gets them is the kernel's choice: one round in two slept on before.
    for n in range(8):
        argv = [sys.executable, "-c", TWO_SIGNALS]
        child = Child("waiting", argv, log=tmp_path / f"{n}.log", env={"PYTHONPATH": checkout})
        child.start()
        child.wait_for_output("^up$", timeout_s=BOUND_S)
        for signum in both:
            child.send_signal(signum)
        status = child.wait(BOUND_S)
        child.kill()
        assert (status, "stopping" in child.output()) == (0, True)
