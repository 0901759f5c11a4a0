"""A real worker process of a test: ``celery -A workers worker`` as a child, its log, its signals, its exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]


class WorkerProcess:
    """One Celery worker; ``arguments`` follow ``celery -A workers worker``."""

    def __init__(self, *arguments: str, environment: Mapping[str, str], log: Path, name: str = "w1") -> None:
        self._log = log
        self.node = f"{name}@test"
        command = [sys.executable, "-m", "celery", "-A", "workers", "worker", "-n", self.node, "-l", "INFO"]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*command, *arguments],
                cwd=ROOT,
                env={**_clean_environment(), **environment},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def await_log(self, text: str, *, times: int = 1, within_s: float = 20.0) -> None:
        wait_until(lambda: self.log.count(text) >= times, within_s=within_s, what=f"{text!r} in {self.log}")

    def await_ready(self) -> None:
        self.await_log(f"{self.node} ready")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def await_exit(self, within_s: float = 20.0) -> int:
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within_s:g} s: {self.log}") from None

    def kill(self) -> None:
        """End it whatever it does; harmless when it has ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)


def _clean_environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEPER_", "CELERY_"))
    }
