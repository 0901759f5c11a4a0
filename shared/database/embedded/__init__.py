"""A real PostgreSQL and a real Valkey of our own, for development, tests and benchmarks (architecture 8).

    stopped ──start──▶ running ──stop──▶ stopped
                          │ ▲
       stop_postgres,     ▼ │  start_postgres, start_valkey (same ports)
       stop_valkey      one server down

1. One supervisor a home folder: the lock file is held for as long as the servers may run.
2. Only what lives in the home folder is ever signalled: a child of ours, or a server program whose working folder is
   our data folder, left by a supervisor that died. A process id alone proves nothing.
3. A child dies with its supervisor (Linux), or is stopped by the next start.
4. A data folder exists whole or not at all: it is made under another name and renamed.
5. Loopback only, random passwords: another user of the machine gets nothing.

Reading order: ``servers`` (the face), ``postgres_server``, ``valkey_server``, ``home`` (lock, leftovers), ``binaries``,
``unprivileged``, ``child``, ``launch``.
"""

from shared.database.embedded.servers import EmbeddedServers

__all__ = ["EmbeddedServers"]
