"""``turnkeeper worker <pool>``: become one Celery worker process of a pool."""

from __future__ import annotations

import os
import secrets
import sys
from typing import Annotated, Final

import typer

from shared.domain.errors import InvalidInput
from shared.wakes.names import QUEUES

# Gossip and mingle make workers talk to each other for nothing of ours. Heartbeats stay: Flower and `celery events`
# know a worker by them.
FLAGS: Final = ("--without-gossip", "--without-mingle", "--loglevel=INFO")


def command(
    pool: Annotated[str, typer.Argument(help=f"The pool: {', '.join(QUEUES)}.")],
    capacity: Annotated[
        int | None, typer.Option("--capacity", min=1, max=10_000, help="Items this process runs at once.")
    ] = None,
) -> None:
    """Run one worker process; SIGTERM lets it finish what it runs, SIGQUIT gives it back."""
    if pool not in QUEUES:
        raise InvalidInput(f"no pool {pool!r}", field="pool", bound=", ".join(QUEUES))
    os.execv(sys.executable, worker_arguments(pool, capacity))


def worker_arguments(pool: str, capacity: int | None) -> list[str]:
    """Return the command line of a worker; its node name is unique, as several run on one host."""
    node = f"{pool}-{secrets.token_hex(3)}@%h"
    limit = [] if capacity is None else ["--concurrency", str(capacity)]
    celery = [sys.executable, "-P", "-m", "celery", "-A", "workers", "worker"]
    return [*celery, "-Q", pool, "-n", node, *limit, *FLAGS]
