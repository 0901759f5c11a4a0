"""A clock that a test moves by hand (KIT-08)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_START = datetime(2030, 1, 1, tzinfo=UTC)


class HandClock:
    """Stands still until ``advance``; call it to read the time.

    With ``tick_s`` every reading moves it as far, so that no two moments are equal, as on a database server.
    """

    def __init__(self, start: datetime = _START, *, tick_s: float = 0.0) -> None:
        self._now = start
        self._tick = timedelta(seconds=tick_s)

    def __call__(self) -> datetime:
        self._now += self._tick
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward."""
        self._now += timedelta(seconds=seconds)
