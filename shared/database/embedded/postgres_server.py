"""One PostgreSQL server of our own: its data folder, its start and stop, its databases."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

from shared.database.embedded.binaries import POSTGRES_NAMES, PostgresPrograms, find_postgres
from shared.database.embedded.child import Child, RunAs
from shared.database.embedded.home import stop_leftovers
from shared.database.embedded.ports import find_free_port
from shared.database.embedded.unprivileged import choose_user
from shared.domain.errors import ConfigError, ProcessFailed

USER: Final = "turnkeeper"
INIT_BOUND_S: Final = 120.0
READY_BOUND_S: Final = 120.0  # recovery after a crash replays the log first
FAST_STOP_S: Final = 30.0
IMMEDIATE_STOP_S: Final = 10.0
PORT_TRIES: Final = 5

SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # their paths are limited to about 100 bytes
    "max_connections": "100",
    "shared_buffers": "128MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "jit": "off",
    "random_page_cost": "1.1",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
}


class PostgresServer:
    """A PostgreSQL in ``home/postgres``. The caller holds the home folder's lock. Not thread-safe."""

    def __init__(self, home: Path, tune: Mapping[str, str]) -> None:
        self._home = home
        self._data = home / "postgres"
        self._secret = home / "postgres.password"
        self._log = home / "logs" / "postgres.log"
        self._tune = dict(tune)
        self._port = 0
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """The postmaster's process id; 0 while it is down."""
        return self._child.pid if self._child and self._child.is_running else 0

    def url(self, database: str) -> str:
        """Return the URL of one of the server's databases; raise ``ConfigError`` before the first start."""
        if not self._port:
            raise ConfigError("the embedded PostgreSQL was never started", field="DATABASE_URL")
        return f"postgresql://{USER}:{self._secret.read_text()}@127.0.0.1:{self._port}/{database}"

    def prepare(self, *, fresh: bool) -> None:
        """Stop leftovers, make the data folder when it is absent or ``fresh``; raise ``ConfigError`` if it cannot serve."""
        stop_leftovers(self._data, POSTGRES_NAMES, signal.SIGQUIT)
        if fresh:
            shutil.rmtree(self._data, ignore_errors=True)
        programs = find_postgres()
        if not self._data.exists():
            self._create_data_folder(programs)
        self._check_data_folder(programs)
        # Nobody runs in the folder, so a pid file there names a stranger by now: PostgreSQL would believe it.
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def start(self) -> None:
        """Start on the port of the last start, else on a free one; return when connections are taken."""
        programs = find_postgres()
        tries = 1 if self._port else PORT_TRIES
        for attempt in range(1, tries + 1):
            port = self._port or find_free_port()
            self._child = child = self._run(programs, port)
            try:
                child.wait_until(
                    partial(self._is_ready, child.pid), what="readiness", timeout_s=READY_BOUND_S
                )
            except ProcessFailed:
                self.stop(immediate=True)
                if attempt == tries or "could not bind" not in child.output():
                    raise
                continue
            self._port = port
            return

    def stop(self, *, immediate: bool) -> None:
        """Stop: fast (sessions end, checkpoint), or ``immediate`` (as a crash: the next start recovers)."""
        if self._child is None:
            return
        if immediate:
            self._child.stop(signal.SIGQUIT, grace_s=IMMEDIATE_STOP_S)
        elif self._child.is_running:
            self._child.send_signal(signal.SIGINT)
            if self._child.wait(FAST_STOP_S) is None:
                self._child.stop(signal.SIGQUIT, grace_s=IMMEDIATE_STOP_S)
        self._child = None

    def create_database(self, name: str, template: str | None) -> None:
        """Create a database, as a copy of ``template`` (which nobody may be connected to) when one is named."""
        source = sql.Identifier(template or "template1")
        self._execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), source))

    def drop_database(self, name: str) -> None:
        """Drop a database and end the sessions in it; nothing happens when it does not exist."""
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def ensure_database(self, name: str) -> None:
        """Create a database unless it exists."""
        if not self._execute(sql.SQL("SELECT 1 FROM pg_database WHERE datname = {}").format(name)):
            self.create_database(name, None)

    def _execute(self, statement: sql.Composed) -> bool:
        """Run one statement and say whether it returned a row."""
        try:
            with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
                rows: int = connection.execute(statement).rowcount
        except psycopg.Error as error:
            raise ProcessFailed(f"the embedded PostgreSQL refused: {error}", name="postgres") from error
        return rows > 0

    def _run(self, programs: PostgresPrograms, port: int) -> Child:
        settings = {**SETTINGS, **self._tune, "port": str(port)}
        child = Child(
            "postgres",
            [
                str(programs.folder / "postgres"),
                *("-D", str(self._data)),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            log=self._log,
            cwd=self._data,
            run_as=self._user(programs),
            death_signal=signal.SIGINT,
        )
        child.start()
        return child

    def _is_ready(self, pid: int) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"

    def _user(self, programs: PostgresPrograms) -> RunAs | None:
        return choose_user(self._home, self._data, programs.folder)

    def _create_data_folder(self, programs: PostgresPrograms) -> None:
        unfinished = self._data.with_name("postgres.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        user = self._user(programs)
        password = unfinished.with_name("postgres.password.unfinished")
        password.touch(mode=0o600)
        password.write_text(secrets.token_hex(16))
        if user is not None:
            os.chown(unfinished, user.uid, user.gid)
            os.chown(password, user.uid, user.gid)
        init = Child(
            "initdb",
            [str(programs.folder / "initdb"), "-D", str(unfinished), *_init_options(programs, password)],
            log=self._log,
            cwd=unfinished,
            run_as=user,
            death_signal=signal.SIGKILL,
        )
        try:
            init.start()
            init.wait(INIT_BOUND_S)
        finally:
            init.kill()
        if init.returncode != 0:
            raise ProcessFailed(f"initdb failed:\n{init.output_tail()}", name="initdb")
        password.replace(self._secret)
        unfinished.rename(self._data)

    def _check_data_folder(self, programs: PostgresPrograms) -> None:
        if os.geteuid() not in (0, self._data.stat().st_uid):
            raise ConfigError(
                f"{self._data} belongs to another user (an earlier run as root?): start as that user, or remove it",
                field="home",
            )
        version = self._data / "PG_VERSION"
        made_by = version.read_text().strip() if version.is_file() else "no PostgreSQL"
        if made_by != str(programs.major) or not self._secret.is_file():
            raise ConfigError(
                f"{self._data} was made by {made_by}, the programs here are PostgreSQL {programs.major}, or its password "
                "file is gone: start with --fresh (the data is removed), or bring that PostgreSQL and DATABASE_URL",
                field="home",
            )


def _init_options(programs: PostgresPrograms, password: Path) -> list[str]:
    options = [
        f"--username={USER}",
        f"--pwfile={password}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
    ]
    if programs.major >= 16:
        # The password is 128 random bits: more hashing only makes every new connection slower.
        options += ["--set", "scram_iterations=1"]
    if programs.major >= 17:
        options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return options
