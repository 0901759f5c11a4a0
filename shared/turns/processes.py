"""What worker processes say of themselves, and what a pool owes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shared.domain.ids import WorkerId


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """What a worker process writes of itself every few seconds, also when idle.

    ``lag_s``: how far its event loop lags; ``overloaded``: so far that it takes no more work meanwhile.
    """

    worker: WorkerId
    host: str
    pid: int
    queues: Sequence[str]
    revisions: Sequence[str]
    capacity: int
    held: int
    version: str
    draining: bool = False
    lag_s: float = 0.0
    overloaded: bool = False


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a pool owes: ready rows, due or not; queued rows behind them; running rows; the oldest due one's age."""

    ready: int
    queued: int
    running: int
    oldest_due_s: float
    unserved: Mapping[str, int] = field(default_factory=dict)
