"""A real producer process of a test: ``python -m producer.cli serve`` as a child, its log, its signals, its exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support.brokers import free_port
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
DEAD_BROKER: Final = "redis://127.0.0.1:1/0"


def clean_environment(**names: str) -> dict[str, str]:
    """Return this process's environment without what would configure ours, and with ``names``."""
    ours = ("TURNKEEPER_", "DATABASE_URL", "CELERY_", "FEED_URL", "OPENAI_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PYTHONPATH": str(ROOT)} | names


def run_cli(*arguments: str, cwd: Path, stdin: str = "", **names: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "producer.cli", *arguments],
        cwd=cwd,
        env=clean_environment(**names),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class ProducerProcess:
    """A served producer; a context manager that ends it."""

    def __init__(self, folder: Path, *, port: int | None = None, **names: str) -> None:
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / f"producer-{self.port}.log"
        defaults = {
            "CELERY_BROKER_URL": DEAD_BROKER,
            "TURNKEEPER_ENV": "test",
            "TURNKEEPER_APP": "tests.support.small_app:app",
            "TURNKEEPER_LOOPBACK_OWNER": "dev",
            "TURNKEEPER_FOLLOWER_POLL_S": "0.05",
            "TURNKEEPER_WRITES_BURST": "100000",
        }
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "producer.cli", "serve", "--port", str(self.port)],
                cwd=folder,
                env=clean_environment(**(defaults | names)),
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return self._log.read_text(errors="replace")

    def await_ready(self) -> None:
        """Wait until it says that it is ready."""
        wait_until(self._is_ready, within_s=30.0, what="a ready producer")

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def await_exit(self, within_s: float = 30.0) -> int:
        """Return its status once it has ended."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within_s:g} s: {self.log}") from None

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self.log
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
