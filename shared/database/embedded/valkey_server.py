"""One Valkey (or Redis) server of our own: nothing kept on disk, loopback only, behind a random password."""

from __future__ import annotations

import secrets
import signal
import socket
from functools import partial
from pathlib import Path
from typing import Final

from shared.database.embedded.binaries import VALKEY_NAMES, find_valkey
from shared.database.embedded.child import Child
from shared.database.embedded.home import stop_leftovers
from shared.database.embedded.ports import find_free_port
from shared.domain.errors import ConfigError, ProcessFailed

READY_BOUND_S: Final = 30.0
STOP_GRACE_S: Final = 10.0
ANSWER_BOUND_S: Final = 1.0
PORT_TRIES: Final = 5

CONFIGURATION: Final = """\
bind 127.0.0.1
port {port}
requirepass {password}
dir "{folder}"
daemonize no
save ""
appendonly no
"""


class ValkeyServer:
    """A Valkey in ``home/valkey``. The caller holds the home folder's lock. Not thread-safe."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "valkey"
        self._log = home / "logs" / "valkey.log"
        self._password = secrets.token_hex(16)
        self._port = 0
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """The server's process id; 0 while it is down."""
        return self._child.pid if self._child and self._child.is_running else 0

    @property
    def url(self) -> str:
        """The server's URL, database 0; raises ``ConfigError`` before the first start."""
        if not self._port:
            raise ConfigError("the embedded Valkey was never started", field="CELERY_BROKER_URL")
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    def prepare(self) -> None:
        """Stop leftovers and make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        stop_leftovers(self._folder, VALKEY_NAMES, signal.SIGTERM)

    def start(self) -> None:
        """Start on the port of the last start, else on a free one; return when it answers."""
        program = find_valkey()
        tries = 1 if self._port else PORT_TRIES
        for attempt in range(1, tries + 1):
            port = self._port or find_free_port()
            self._child = child = self._run(program, port)
            try:
                child.wait_until(partial(self._answers, port), what="answer", timeout_s=READY_BOUND_S)
            except ProcessFailed:
                self.stop()
                if attempt == tries or "bind" not in child.output():
                    raise
                continue
            self._port = port
            return

    def stop(self) -> None:
        """Stop it; everything in it is gone."""
        if self._child is not None:
            self._child.stop(grace_s=STOP_GRACE_S)
            self._child = None

    def _run(self, program: Path, port: int) -> Child:
        configuration = self._folder / "valkey.conf"
        configuration.touch(mode=0o600)
        configuration.write_text(
            CONFIGURATION.format(port=port, password=self._password, folder=str(self._folder.resolve()))
        )
        child = Child("valkey", [str(program), str(configuration)], log=self._log, cwd=self._folder)
        child.start()
        return child

    def _answers(self, port: int) -> bool:
        """Say whether a server that knows our password answers: a stranger on the port does not."""
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_BOUND_S) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2 and (more := connection.recv(256)):
                    answer += more
        except OSError:
            return False
        return answer == b"+OK\r\n+PONG\r\n"
