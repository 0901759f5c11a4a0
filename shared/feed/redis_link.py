"""How the feed reaches Redis: names of keys and channels, clients with bounded waits, backoff, and the counters."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from shared.domain.ids import SessionId, TurnId, WorkerId
from shared.feed.port import FeedStats

CONNECT_S: Final = 1.0
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 2.0

#: What a server, a socket or a wait may raise: the feed's edge, where trouble becomes a count.
TROUBLE: Final = (RedisError, OSError, TimeoutError)


def feed_key(turn_id: TurnId) -> str:
    """The stream of a turn's text."""
    return f"tk:feed:{turn_id}"


def session_channel(session_id: SessionId) -> str:
    """Where changes of a session are told."""
    return f"tk:s:{session_id}"


def worker_channel(worker_id: WorkerId) -> str:
    """Where a worker process is told which of its turns to look at."""
    return f"tk:w:{worker_id}"


@dataclass(slots=True)
class Counts:
    """What a process's feed did; see :class:`~shared.feed.port.FeedStats`."""

    flushes: int = 0
    entries: int = 0
    snapshots: int = 0
    hints: int = 0
    dropped: int = 0
    failures: int = 0
    read: int = 0
    is_up: bool | None = None

    def fail(self) -> None:
        """An exchange with the server failed."""
        self.failures += 1
        self.is_up = False

    def stats(self) -> FeedStats:
        """The values as they are now."""
        return FeedStats(
            self.flushes,
            self.entries,
            self.snapshots,
            self.hints,
            self.dropped,
            self.failures,
            self.read,
            self.is_up,
        )


@dataclass(slots=True)
class Backoff:
    """Seconds to wait after failures in a row: doubling, with jitter, at most ``BACKOFF_MAX_S``."""

    random: random.Random = field(default_factory=random.Random)
    failures: int = 0

    def reset(self) -> None:
        """An exchange worked."""
        self.failures = 0

    def next_s(self) -> float:
        """Count a failure and return how long to wait."""
        ceiling = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(self.failures, 10))
        self.failures += 1
        return self.random.uniform(ceiling / 2, ceiling)


def make_client(url: str, *, answer_s: float) -> Redis:
    """Return a client that waits at most ``answer_s`` seconds for an answer and tries nothing twice by itself."""
    return Redis.from_url(
        _plain_url(url),
        protocol=2,
        decode_responses=False,
        socket_connect_timeout=CONNECT_S,
        socket_timeout=answer_s,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
    )


def _plain_url(url: str) -> str:
    """Return a broker's spelling of a Unix socket (``redis+socket://``) as the client spells it."""
    if not url.startswith("redis+socket://"):
        return url
    parts = urlsplit(url)
    database = parse_qs(parts.query).get("virtual_host", ["0"])[0].strip("/")
    return f"unix://{parts.path}?db={database}"
