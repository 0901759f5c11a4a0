"""Free TCP ports on loopback, outside the range that the kernel hands to outgoing connections."""

from __future__ import annotations

import random
import socket
from typing import Final

from shared.domain.errors import ProcessFailed

# A client that keeps dialling a server that is down can be given the server's own port as its source when that lies
# in the outgoing range (32768 on Linux, 49152 on macOS): the server could then not come back.
LOWEST: Final = 15_000
HIGHEST: Final = 32_000
TRIES: Final = 200


def is_port_free(port: int, host: str = "127.0.0.1") -> bool:
    """Say whether a server could listen on ``host:port`` now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def find_free_port() -> int:
    """Return a port that nobody listens on; another process may still take it first, so a start must be tried again."""
    for _ in range(TRIES):
        port = random.randint(LOWEST, HIGHEST)
        if is_port_free(port):
            return port
    raise ProcessFailed(f"no free port between {LOWEST} and {HIGHEST}")


def next_free_port(port: int, *, host: str = "127.0.0.1") -> int:
    """Return ``port`` or the first free one of the fifty after it."""
    for candidate in range(port, min(port + 51, 65_536)):
        if is_port_free(candidate, host):
            return candidate
    raise ProcessFailed(f"no free port from {port} on")
