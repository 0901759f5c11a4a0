"""Gives a process of a test a wall clock that is wrong by ``WRONG_CLOCK_S`` seconds; clocks that only measure are left."""

from __future__ import annotations

import os
import time

_OFFSET_S = int(os.environ["WRONG_CLOCK_S"])
_time, _time_ns = time.time, time.time_ns

time.time = lambda: _time() + _OFFSET_S
time.time_ns = lambda: _time_ns() + _OFFSET_S * 1_000_000_000
