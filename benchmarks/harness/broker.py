"""What a Redis or Valkey server counts of its commands."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Any, Final, Self

import redis

BOUND_S: Final = 5.0


class RedisCounts:
    """Reads a server's command counts. Blocks; a context manager."""

    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(url, socket_timeout=BOUND_S)

    def commands(self) -> Counter[str]:
        """Return how often each command was run since the server's start, by any client; our own question left out."""
        stats: dict[str, dict[str, Any]] = self._client.info("commandstats")
        calls = {name.removeprefix("cmdstat_"): int(about["calls"]) for name, about in stats.items()}
        calls.pop("info", None)
        return Counter(calls)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
