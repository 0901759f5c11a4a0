"""How far an event loop lags behind its own timers, and whether that is more than its work can bear (DST-32)."""

from __future__ import annotations

import asyncio
import time
from typing import Final

#: Seconds between two measurements.
SAMPLE_S: Final = 0.1
#: Seconds over which the lag is smoothed: one long step (a model that is loaded) is no overload, a second of them is.
SMOOTH_S: Final = 1.0


class LoopLoad:
    """The lag of one loop, in seconds. Measured on the loop; its figures may be read from any thread.

    Above ``max_lag_s`` the loop is overloaded, until the lag is below half of it: whoever claims work for this loop takes
    none meanwhile, so that what it holds already is not delayed further. ``beats`` counts measurements: a loop whose beats
    stand still is blocked.
    """

    def __init__(self, max_lag_s: float = 0.25) -> None:
        self._max_lag_s = max_lag_s
        self.lag_s = 0.0
        self.beats = 0
        self.is_overloaded = False
        self._beaten_at = time.monotonic()

    def note(self, lag_s: float, passed_s: float) -> None:
        """Take one measurement: a timer that came ``lag_s`` late, ``passed_s`` after the one before."""
        self.beats += 1
        self._beaten_at = time.monotonic()
        self.lag_s += (lag_s - self.lag_s) * passed_s / (passed_s + SMOOTH_S)
        if self.lag_s > self._max_lag_s:
            self.is_overloaded = True
        elif self.lag_s < self._max_lag_s / 2:
            self.is_overloaded = False

    def silent_s(self) -> float:
        """Return the seconds since the last beat."""
        return time.monotonic() - self._beaten_at

    async def measure_for_ever(self) -> None:
        """Measure on a beat of ``SAMPLE_S``."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(SAMPLE_S)
            passed = loop.time() - began
            self.note(max(0.0, passed - SAMPLE_S), passed)
