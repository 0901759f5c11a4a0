"""Identifiers. Each is a ``NewType`` so that one is never passed for another."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import Final, NewType

SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", uuid.UUID)
RunId = NewType("RunId", str)
OwnerId = NewType("OwnerId", str)
WorkerId = NewType("WorkerId", str)


class Ticks:
    """A clock of nanoseconds in ticks of 1/4096 ms, each given once: one that stands still or is set back turns no order."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._newest = 0
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            self._newest = max(self._clock() * 4096 // 1_000_000, self._newest + 1)
            return self._newest


_ticks: Final = Ticks()


def uuid7() -> uuid.UUID:
    """Return a UUIDv7 (RFC 9562, method 3): ids of one process sort in the order in which they were made.

    The twelve bits behind the milliseconds are the fraction of the millisecond, a tick of 244 ns, and never the same tick
    twice in a process. Ids of two processes sort by their clocks. The other 62 bits are random.
    """
    tick = _ticks.next()
    value = (tick >> 12 & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76
    value |= (tick & 0xFFF) << 64
    value |= 0b10 << 62
    value |= int.from_bytes(os.urandom(8), "big") >> 2
    return uuid.UUID(int=value)


def new_session_id() -> SessionId:
    """Return a fresh session id: ``ses_`` and 32 hex digits."""
    return SessionId(f"ses_{uuid7().hex}")


def new_turn_id() -> TurnId:
    """Return a fresh turn id. It is minted before the first try of an admission and kept over retries (core 1)."""
    return TurnId(uuid7())


def new_run_id() -> RunId:
    """Return a fresh run id; it names one turn's memory entries and idempotency tokens (SES-43, 44)."""
    return RunId(str(uuid.uuid4()))


def new_worker_id(pool: str, *, host: str, pid: int, started_at: float) -> WorkerId:
    """Return a worker process's identity: pool, host, pid, process start and a random part (DST-10)."""
    return WorkerId(f"{pool}@{host}:{pid}:{int(started_at)}:{os.urandom(6).hex()}")
