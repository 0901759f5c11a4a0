"""The place of one run: a temporary folder with servers and processes of its own, all gone at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from producer.dev.processes import Processes
from producer.dev.stop_signals import stop_signals
from shared.database.embedded import EmbeddedServers
from shared.database.migrate import migrate

#: As a small server of somebody who cares is set up. Nothing here makes a commit less durable.
POSTGRES_SETTINGS: Final[Mapping[str, str]] = {
    "max_connections": "200",
    "shared_buffers": "256MB",
    "effective_cache_size": "1GB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "on",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
}
LOGS: Final = "logs"
#: Names of the servers among the processes.
POSTGRES: Final = "postgres"
VALKEY: Final = "valkey"


@dataclass(slots=True)
class Site:
    """Servers that run, a migrated database, and a supervisor for what a benchmark starts.

    ``troubles`` collects what the supervisor says: a program that ended by itself spoils a run.
    """

    home: Path
    servers: EmbeddedServers
    processes: Processes
    troubles: list[str] = field(default_factory=list)

    @property
    def database_url(self) -> str:
        """The migrated database of the product."""
        return self.servers.database_url

    @property
    def redis_url(self) -> str:
        """Broker and feed of the product, in database 0."""
        return self.servers.redis_url

    def beside_url(self, number: int) -> str:
        """Return the URL of another database of the same Redis: a baseline shares the server, not the keys."""
        return f"{self.servers.redis_url.rsplit('/', 1)[0]}/{number}"

    def pids(self) -> dict[str, int]:
        """Return the process id of both servers and of everything that was started and still runs."""
        kept = {child.name: child.pid for child in self.processes.children() if child.is_running}
        return {POSTGRES: self.servers.postgres_pid, VALKEY: self.servers.valkey_pid, **kept}


@contextmanager
def open_site() -> Iterator[Site]:
    """Start servers in a temporary folder; at the end processes, servers and folder go. For the main thread.

    Raises ``ConfigError`` when a server program is missing, and ``ProcessFailed``.
    """
    home = Path(tempfile.mkdtemp(prefix="turnkeeper-bench-"))
    try:
        with ExitStack() as stack:
            kill = stack.enter_context(stop_signals())
            servers = stack.enter_context(EmbeddedServers(home, fresh=True, tune=POSTGRES_SETTINGS))
            migrate(servers.database_url)
            troubles: list[str] = []
            processes = stack.enter_context(Processes(home / LOGS, say=troubles.append))
            kill.append(processes.kill)
            yield Site(home, servers, processes, troubles)
    finally:
        shutil.rmtree(home, ignore_errors=True)
