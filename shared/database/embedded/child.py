"""One program run as a child process: own process group, output to a file, gone when we are gone.

The thread that starts the program waits for its end: Linux delivers the parent-death signal when the *thread* that
forked ends, so a child must never be started from a thread that comes and goes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shared.domain.errors import ProcessFailed

START_BOUND_S: Final = 30.0
KILL_BOUND_S: Final = 10.0
POLL_S: Final = 0.02
LOG_TAIL_LINES: Final = 12

_LAUNCH: Final = str(Path(__file__).with_name("launch.py"))


@dataclass(frozen=True, slots=True)
class RunAs:
    """The unprivileged user that root gives a program. ``keep_access`` keeps closed folders on its way passable."""

    uid: int
    gid: int
    keep_access: bool


class Child:
    """One run of one program. ``start`` once; every other method may be called from any thread.

    ``env`` is laid over our own environment; a ``None`` removes the name. ``death_signal`` is what the program gets
    when this process dies without stopping it (Linux). ``on_exit`` runs in the child's thread after its end.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        run_as: RunAs | None = None,
        death_signal: signal.Signals = signal.SIGTERM,
        on_exit: Callable[[int], None] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._argv = list(argv)
        self._env = dict(env or {})
        self._cwd = cwd
        self._run_as = run_as
        self._death_signal = death_signal
        self._on_exit = on_exit
        self._process: subprocess.Popen[bytes] | None = None
        self._started = threading.Event()
        self._ended = threading.Event()
        self._failure: OSError | None = None
        self._log_offset = 0

    @property
    def pid(self) -> int:
        """The program's process id; 0 before the start."""
        return self._process.pid if self._process else 0

    @property
    def is_running(self) -> bool:
        """Say whether the program was started and has not ended."""
        return self._process is not None and not self._ended.is_set()

    @property
    def returncode(self) -> int | None:
        """The exit status (negative: killed by that signal), or None while it runs."""
        return self._process.returncode if self._process and self._ended.is_set() else None

    def start(self) -> None:
        """Start the program; raise ``ProcessFailed`` when no process can be made. A bad program shows as its end."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_offset = self.log.stat().st_size if self.log.exists() else 0
        threading.Thread(target=self._run, name=f"child-{self.name}", daemon=True).start()
        self._started.wait(START_BOUND_S)
        if self._process is None:
            raise ProcessFailed(
                f"{self.name} could not be started: {self._failure}", name=self.name
            ) from self._failure

    def send_signal(self, signum: signal.Signals) -> None:
        """Send a signal to the program if it still runs."""
        if self._process is not None:
            self._process.send_signal(signum)

    def kill(self) -> None:
        """Kill the program and its process group, and wait for its end."""
        self.send_kill()
        if self._process is not None:
            self.wait(KILL_BOUND_S)

    def send_kill(self) -> None:
        """Kill the program and its process group without waiting; safe in a signal handler."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return the exit status once the program has ended, or None when ``timeout_s`` seconds pass first."""
        self._ended.wait(timeout_s)
        return self.returncode

    def stop(self, signum: signal.Signals = signal.SIGTERM, *, grace_s: float) -> int | None:
        """Ask the program to end and kill it after ``grace_s`` seconds; return its exit status."""
        self.send_signal(signum)
        if self._process is not None and self.wait(grace_s) is None:
            self.kill()
        return self.returncode

    def output(self) -> str:
        """Return what this run has written so far."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self._log_offset)
            return file.read().decode(errors="replace")

    def output_tail(self) -> str:
        """Return the last lines of this run's output, for a message."""
        return "\n".join(self.output().splitlines()[-LOG_TAIL_LINES:])

    def wait_for_output(self, pattern: str, *, timeout_s: float) -> re.Match[str]:
        """Return the first match of ``pattern`` in this run's output; raise ``ProcessFailed`` if it ends or time is up."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            match = re.search(pattern, self.output(), re.MULTILINE)
            found.extend([match] if match else [])
            return bool(found)

        self.wait_until(look, what=f"{pattern!r} in its output", timeout_s=timeout_s)
        return found[0]

    def wait_until(self, is_ready: Callable[[], bool], *, what: str, timeout_s: float) -> None:
        """Return once ``is_ready()``; raise ``ProcessFailed`` with the log's end if the program ends or time is up."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self._ended.is_set()
            if is_ready():
                return
            if ended:
                raise ProcessFailed(
                    f"{self.name} ended with status {self.returncode}:\n{self.output_tail()}", name=self.name
                )
            if time.monotonic() > deadline:
                raise ProcessFailed(
                    f"{self.name}: no {what} within {timeout_s:g} s:\n{self.output_tail()}", name=self.name
                )
            self._ended.wait(POLL_S)

    def _run(self) -> None:
        try:
            process = self._spawn()
        except OSError as error:
            self._failure = error
            self._started.set()
            return
        self._process = process
        self._started.set()
        code = process.wait()
        self._ended.set()
        if self._on_exit is not None:
            self._on_exit(code)

    def _spawn(self) -> subprocess.Popen[bytes]:
        order_read, order_write = os.pipe()
        try:
            with self.log.open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", _LAUNCH, str(order_read)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._cwd,
                    pass_fds=(order_read,),
                    start_new_session=True,
                )
        except OSError:
            os.close(order_write)
            raise
        finally:
            os.close(order_read)
        with contextlib.suppress(BrokenPipeError), os.fdopen(order_write, "w") as pipe:
            json.dump(self._order(), pipe)
        return process

    def _order(self) -> dict[str, object]:
        user = self._run_as
        return {
            "parent": os.getpid(),
            "death_signal": int(self._death_signal),
            "user": user and {"uid": user.uid, "gid": user.gid, "keep_access": user.keep_access},
            "env": self._env,
            "argv": self._argv,
        }
