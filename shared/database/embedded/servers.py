"""The pair of embedded servers under one home folder, as a context manager."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from shared.database.embedded.home import HomeLock
from shared.database.embedded.postgres_server import PostgresServer
from shared.database.embedded.valkey_server import ValkeyServer
from shared.domain.errors import ConfigError

DATABASE: Final = "turnkeeper"


class EmbeddedServers:
    """A real PostgreSQL and a real Valkey in ``home`` (OPS-01). Synchronous; one caller at a time.

    ``fresh`` removes the data of earlier runs first. ``tune`` lays PostgreSQL settings over ours. Either server can be
    left out. A second run on the same folder raises ``HomeInUse``; a server that does not come up, ``ProcessFailed``;
    missing programs, ``ConfigError``. ``stop_*`` and ``start_*`` of one server keep its port and its data.
    """

    def __init__(
        self,
        home: Path,
        *,
        fresh: bool = False,
        tune: Mapping[str, str] | None = None,
        postgres: bool = True,
        valkey: bool = True,
    ) -> None:
        home = home.resolve()
        self._fresh = fresh
        self._lock = HomeLock(home, "servers")
        self._postgres = PostgresServer(home, tune or {}) if postgres else None
        self._valkey = ValkeyServer(home) if valkey else None

    @property
    def database_url(self) -> str:
        """The URL of the database ``turnkeeper``."""
        return self._the_postgres().url(DATABASE)

    @property
    def redis_url(self) -> str:
        """The URL of the Valkey, for broker and feed."""
        return self._the_valkey().url

    @property
    def postgres_pid(self) -> int:
        """The postmaster's process id; 0 while it is down."""
        return self._postgres.pid if self._postgres else 0

    @property
    def valkey_pid(self) -> int:
        """The Valkey's process id; 0 while it is down."""
        return self._valkey.pid if self._valkey else 0

    def start(self) -> Self:
        """Start what was asked for and return self; on any error everything is stopped again."""
        self._lock.acquire()
        atexit.register(self.stop)
        try:
            if self._valkey is not None:
                self._valkey.prepare()
                self._valkey.start()
            if self._postgres is not None:
                self._postgres.prepare(fresh=self._fresh)
                self._postgres.start()
                self._postgres.ensure_database(DATABASE)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop what was started, PostgreSQL with a checkpoint; nothing happens the second time."""
        try:
            if self._postgres is not None:
                self._postgres.stop(immediate=False)
        finally:
            if self._valkey is not None:
                self._valkey.stop()
            self._lock.release()
            atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create a database and return its URL; ``template`` names one to copy that has no open connection."""
        self._the_postgres().create_database(name, template)
        return self._the_postgres().url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database and end the sessions in it; nothing happens when it does not exist."""
        self._the_postgres().drop_database(name)

    def start_postgres(self) -> None:
        """Start PostgreSQL again on its port."""
        self._the_postgres().start()

    def stop_postgres(self, *, immediate: bool = False) -> None:
        """Stop PostgreSQL; ``immediate`` is a crash: no checkpoint, recovery at the next start."""
        self._the_postgres().stop(immediate=immediate)

    def restart_postgres(self, *, immediate: bool = False) -> None:
        """Stop and start PostgreSQL."""
        self.stop_postgres(immediate=immediate)
        self.start_postgres()

    def start_valkey(self) -> None:
        """Start Valkey again on its port, empty."""
        self._the_valkey().start()

    def stop_valkey(self) -> None:
        """Stop Valkey; what it held is gone."""
        self._the_valkey().stop()

    def _the_postgres(self) -> PostgresServer:
        if self._postgres is None:
            raise ConfigError("no embedded PostgreSQL was asked for", field="postgres")
        return self._postgres

    def _the_valkey(self) -> ValkeyServer:
        if self._valkey is None:
            raise ConfigError("no embedded Valkey was asked for", field="valkey")
        return self._valkey
