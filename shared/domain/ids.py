"""Identifiers. Each is a ``NewType`` so that one is never passed for another."""

from __future__ import annotations

import os
import time
import uuid
from typing import NewType

SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", uuid.UUID)
RunId = NewType("RunId", str)
OwnerId = NewType("OwnerId", str)
WorkerId = NewType("WorkerId", str)


def uuid7() -> uuid.UUID:
    """Return a UUIDv7 (RFC 9562): millisecond time first, so that ids made later sort later on one machine."""
    ms = time.time_ns() // 1_000_000
    rand = int.from_bytes(os.urandom(10), "big")
    value = (ms & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76
    value |= (rand >> 68 & 0xFFF) << 64
    value |= 0b10 << 62
    value |= rand & ((1 << 62) - 1)
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
